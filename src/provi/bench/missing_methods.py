"""The problems and methods of `provi bench missing`, and what ProVI should reach in it."""

from collections.abc import Callable

from provi.bench.methods import Method
from provi.bench.missing_problem import MissingProblem
from provi.data.support2 import support2
from provi.data.synthetic_missing import synthetic_missing

TOLERANCE, TIMES_FASTER = 0.01, 10.0
"""The largest gap, in nats, and how many times faster than misaem without its standard errors."""

NUM_SEEDS = 3

_PEERS = "provi.bench.peers."


def _ours(name: str, program: str, setting: float, quantity: str) -> Method:
    return Method(name, _PEERS + program, (), "", (setting,), quantity, True)


def _misaem(name: str, setting: float) -> Method:
    return Method(name, _PEERS + "misaem_saem", ("misaem",), "misaem", (setting,), "standard errors")


MISSING_METHODS: dict[str, Method] = {
    "exact": _ours("ProVI, exact", "provi_missing", TOLERANCE, "tol"),
    "misso10": _ours("ProVI, MISSO10", "provi_missing_misso", 0.1, "batch"),
    "misso50": _ours("ProVI, MISSO50", "provi_missing_misso", 0.5, "batch"),
    "mcem": _ours("ProVI, MCEM", "provi_missing_mcem", TOLERANCE, "tol"),
    "misaem": _misaem("misaem", 0.0),
    "misaem-errors": _misaem("misaem with standard errors", 1.0),
    "numpy": Method("NumPy EM (no errors)", _PEERS + "numpy_missing_em", ("numpy",), "numpy", (TOLERANCE,), "tol"),
    "mean": Method(
        "mean imputation", _PEERS + "mean_imputation", ("sklearn",), "scikit-learn", (1e-8,), "solver's tol"
    ),
}


def _synthetic(share: float) -> Callable[[], list[MissingProblem]]:
    """n = 2000, p = 8, entries missing completely at random; one data set a seed."""

    def make() -> list[MissingProblem]:
        name = f"synthetic 2000 x 8, {share:.0%} missing"
        tables = [synthetic_missing(seed, 2000, 8, share) for seed in range(NUM_SEEDS)]
        return [MissingProblem(name, table.features, table.response, seed) for seed, table in enumerate(tables)]

    return make


def _support2() -> list[MissingProblem]:
    table = support2()
    return [MissingProblem("SUPPORT2, 9105 x 16, 17% missing", table.features, table.response)]


MISSING_PROBLEMS: dict[str, Callable[[], list[MissingProblem]]] = {
    "10%": _synthetic(0.1),
    "30%": _synthetic(0.3),
    "support2": _support2,
}
