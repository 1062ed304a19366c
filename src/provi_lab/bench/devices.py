"""`python -m provi_lab.bench.devices`: every structure on eight simulated devices and on one, side by side.

Each row is one problem, fitted with `mesh=1` and with `mesh=8`: the largest differences of means (in standard
deviations), of covariances, of the ELBO or of the potential at zero, of the proven gap and of the bound on the distance
to the posterior. Sums in another order differ in the last digits; the distance begins with a search in float32. Exit
code 1 where one differs by more, or where the arrays of a problem do not lie in eight parts. With `--record` the table
is also written to `benchmarks/results`, dated.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

DEVICES = 8
LARGEST, LARGEST_DISTANCE = 1e-8, 1e-4
"""Differences that are allowed; of the distance, relative."""


class Case(NamedTuple):
    """A problem, what `provi.fit` is told, and whether the distance to the posterior is compared."""

    name: str
    target: Callable[[], Any]
    options: dict[str, Any]
    distance: bool = True


def cases(only_quick: bool) -> list[Case]:
    """One of each structure; numbers of rows that eight does and does not divide."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    import provi

    rng = np.random.default_rng(0)
    X = rng.standard_normal((203, 8))
    y = (rng.random(203) < 1 / (1 + np.exp(-X[:, :3] @ np.ones(3)))).astype(float)
    targets, families, algorithms = provi.targets, provi.families, provi.algorithms

    def bowl(z: Any) -> Any:
        return -0.5 * jnp.sum(z**2) - jnp.sum(jnp.cosh(0.3 * z - 0.1))

    def logistic(X: Any, y: Any, z: Any) -> Any:
        return jnp.sum(y * (X @ z) - jnp.logaddexp(0.0, X @ z)) - 0.5 * jnp.sum(z**2)

    def with_rows() -> Any:
        tables = jnp.asarray(np.tile(X[:192], (8, 1))), jnp.asarray(np.tile(y[:192], 8))
        return targets.LogDensity(jax.tree_util.Partial(logistic, *tables), 8)

    def latent() -> Any:
        groups = rng.integers(6, size=203)
        model = provi.models.MixedModel("y ~ x + (1 | g)", family="bernoulli")
        return model.fit({"y": y, "x": X[:, 0], "g": np.char.add("g", groups.astype(str))}).fit_.target

    few, regression, density = provi.Budget(steps=5), targets.LogisticRegression, targets.LogDensity
    low_rank, diagonal = families.Gaussian(8, "low_rank", rank=1), families.Gaussian(3, "diagonal")
    misso, prox = ({"algorithm": x, "budget": few} for x in (algorithms.MISSO(), algorithms.ProxSGD(0.01, 20)))
    wide = np.sin(np.arange(640.0)).reshape(16, 40)
    quick = [
        Case("linear: logistic", lambda: regression(X, y), {}),
        Case("dual: Gaussian process", lambda: targets.GaussianProcess(X[:48], y[:48]), {}),
        Case("black box: draws", lambda: density(bowl, 3), {}),
        Case("whitened", lambda: density(bowl, 3), {"family": diagonal, "budget": few}, False),
        Case("nested", latent, {}, False),
        Case("richer: flow", lambda: density(bowl, 3), {"family": families.Flow(3), "budget": few}, False),
    ]
    others = [
        Case("MISSO table", lambda: regression(X, y), misso, False),
        Case("linear: weights, offset", lambda: regression(X, y, weights=1 + y, offset=0.1), {}),
        Case("linear: Poisson", lambda: targets.PoissonRegression(X, np.arange(203) % 3), {}),
        Case("linear: inducing points", lambda: targets.SparseGaussianProcess(X, y, inducing=6), {}),
        Case("linear: low rank", lambda: regression(X, y), {"family": low_rank, "budget": few}, False),
        Case("dual: wide", lambda: regression(wide, y[:16]), {}),
        Case("black box: rows", with_rows, {"budget": 3000}, False),
        Case("sampled: ProxSGD", lambda: regression(X, y), prox, False),
    ]
    return quick if only_quick else quick + others


def parts_of(target: Any, family: Any) -> int:
    """In how many parts the tables of a problem, or else its draws, lie on the devices."""
    import jax
    import jax.numpy as jnp

    from provi.core.devices import over_draws

    leaves = [leaf for leaf in jax.tree.leaves((target, family)) if isinstance(leaf, jax.Array)]
    parts = max((leaf.size // leaf.addressable_shards[0].data.size for leaf in leaves if leaf.size), default=1)
    if parts == 1 and target.division is not None and target.division.draws:
        sines = jax.jit(lambda z: over_draws(target.division, jnp.sin, z).sum())
        program = sines.lower(jnp.zeros((2 * DEVICES, 3))).compile().as_text() or ""
        parts = DEVICES if "[2,3]" in program and "all-gather" in program else 1
    return parts


def parts_of_step(structure: Any, fit: Any) -> int:
    """The same of the draws in a step of path gradients, as its compiled program has them."""
    import jax

    from provi.algorithms.proximal.path_gradient import PathGradient

    algorithm = PathGradient(num_steps=5, num_draws=8 * DEVICES)
    state = algorithm.init(fit.posterior.point)
    key, target, family = jax.random.key(0), structure.target, structure.family
    program = jax.jit(lambda state: algorithm.step(key, state, target, family, 1.0)).lower(state).compile().as_text()
    return DEVICES if f"[8,{target.dim}]" in (program or "") and "all-gather" in (program or "") else 1


def compared(case: Case) -> tuple[dict[str, float], int, float]:
    """The differences of the two fits, the parts, and the seconds of processor that it took."""
    import jax
    import numpy as np

    import provi
    from provi.core.devices import chosen_mesh
    from provi.fit import choose
    from provi.structures.richer import Richer

    began, target = time.process_time(), case.target()
    one, many = (provi.fit(target, mesh=mesh, progress=False, **case.options) for mesh in (1, DEVICES))
    with jax.enable_x64(True):
        mesh = chosen_mesh(DEVICES, target)
        assert mesh is not None
        structure = choose(target, case.options.get("family")).on(mesh)
        parts = parts_of(getattr(structure.family, "target", structure.target), structure.family)
        if isinstance(structure, Richer):
            parts = min(parts, parts_of_step(structure, many))
        potentials = [float(each.potential(jax.numpy.zeros(target.dim))) for each in (target, structure.target)]
    means, covariances = ([np.asarray(getattr(f.posterior, x)) for f in (one, many)] for x in ("mean", "covariance"))
    spread = np.sqrt(np.diagonal(covariances[0]))
    found = {
        "mean": float(np.max(np.abs(means[0] - means[1]) / spread)),
        "covariance": float(np.max(np.abs(covariances[0] - covariances[1]) / np.outer(spread, spread))),
        "ELBO": max(abs(one.elbo.value - many.elbo.value), abs(potentials[0] - potentials[1])),
        "gap": abs((one.certificate.gap or 0.0) - (many.certificate.gap or 0.0)),
    }
    if case.distance and one.certificate.kl is not None:
        found["distance"] = abs(one.certificate.kl / (many.certificate.kl or np.nan) - 1)
    return found, parts, time.process_time() - began


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one problem of each structure")
    parser.add_argument("--record", action="store_true", help="also write benchmarks/results/DATE-devices.json")
    given = parser.parse_args()
    flag = f"--xla_force_host_platform_device_count={DEVICES}"
    if given.quick:  # programs that run once: less time for the compiler
        os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}"
    heads = ("mean", "covariance", "ELBO", "gap", "distance")
    print(f"{'':26}" + "".join(f"{head:>12}" for head in heads) + f"{'parts':>7}{'CPU s':>7}")
    rows = []
    for case in cases(given.quick):
        found, parts, seconds = compared(case)
        limits = {name: LARGEST_DISTANCE if name == "distance" else LARGEST for name in found}
        good = all(found[name] <= limits[name] for name in found) and parts == DEVICES
        about = {"differences": found, "allowed": limits, "parts": parts, "cpu_seconds": round(seconds, 1)}
        rows.append({"problem": case.name, **about, "equal": good})
        numbers = "".join(f"{found[head]:12.1e}" if head in found else f"{'':12}" for head in heads)
        print(f"{case.name:26}{numbers}{parts:7}{seconds:7.1f}{'' if good else '  DIFFERS'}", flush=True)
    if given.record:
        print(f"Wrote {_written(rows)}.")
    return int(not all(row["equal"] for row in rows))


def _written(rows: list[dict[str, Any]]) -> Path:
    from provi_lab.bench.record import RESULTS, make_record

    command = " ".join(["python -m provi_lab.bench.devices", *sys.argv[1:]])
    record = {**make_record("devices", rows), "command": command}
    path = RESULTS / f"{record['date']}-devices.json"
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return path


if __name__ == "__main__":
    sys.exit(main())
