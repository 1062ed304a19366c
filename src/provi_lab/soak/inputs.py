"""Hostile numbers, types and arguments: a clear error, or a fit whose certificate is not below the truth."""

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import provi
from provi import kernels, targets
from provi.targets.likelihoods import BernoulliLogit, BernoulliProbit, GaussianNoise, NegativeBinomial, Poisson
from provi_lab.bench.distance_oracle import LinearPosterior
from provi_lab.soak.oracle import CONFIDENCE, check_against, check_sane, gaussian_of
from provi_lab.soak.tally import Tally, clear

LINKS: dict[str, Callable[[float], Any]] = {
    "logit": lambda parameter: BernoulliLogit(),
    "probit": lambda parameter: BernoulliProbit(),
    "poisson": lambda parameter: Poisson(),
    "gaussian": GaussianNoise,
    "binomial": NegativeBinomial,
}
_SHAPES = ((1, 1), (10, 1), (10, 1), (10, 1), (10, 2), (4, 3))
"""Few: a program is traced for each, which takes ten times as long as a fit."""

_PASSES = 25  # over the data: some of these problems take thousands
_DTYPES = "?bhilqBHILQefdgFDGOSUMm"
ARGUMENTS = ("X", "y", "prior_scale", "prior_covariance", "prior_mean", "offset", "weights", "names", "tol", "seed")
ARGUMENTS += ("confidence", "budget", "start", "family", "algorithm", "checkpoint", "kernel", "likelihood", "jitter")
ARGUMENTS += ("target", "scale", "prior", "mean", "dispersion", "noise", "exposure")


@contextlib.contextmanager
def cases() -> Iterator[Callable[[np.random.Generator, Tally], str]]:
    """A case: a small regression or process with something hostile in its numbers, types or arguments."""

    def case(rng: np.random.Generator, tally: Tally) -> str:
        kind = str(rng.choice(["numbers", "types", "arguments"], p=[0.5, 0.3, 0.2]))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return {"numbers": numbers, "types": types, "arguments": arguments}[kind](rng)

    yield case


def numbers(rng: np.random.Generator) -> str:
    """Scales, condition numbers, duplicates, separable labels, counts; verified where the oracle can follow."""
    link, design, response, sd, parameter = hostile_problem(rng)
    try:
        target = targets.GeneralisedLinearModel(design, response, LINKS[link](parameter), sd)
        fit = provi.fit(
            target, progress=False, tol=float(10 ** rng.uniform(-6, 0)), confidence=CONFIDENCE, budget=_PASSES
        )
    except Exception as error:
        return f"numbers: {clear(error, *ARGUMENTS)}"
    check_sane(fit)
    dim = design.shape[1]
    posterior = LinearPosterior(design, response, link, np.zeros(dim), sd**2 * np.eye(dim), parameter)
    if not (np.all(np.isfinite(posterior.prior_covariance)) and sd**2 > 0):
        return "numbers: beyond the oracle"
    better = [mode for mode in [laplace(posterior)] if mode is not None]
    return f"numbers: {check_against(fit.certificate, posterior, gaussian_of(fit), better, plane=rng.random() < 0.1)}"


def hostile_problem(
    rng: np.random.Generator, widest: float = 150.0
) -> tuple[str, np.ndarray, np.ndarray, float, float]:
    """Link, design, response, prior deviation and the likelihood's parameter; scales of 1e-`widest` to 1e`widest`."""
    link = str(rng.choice(list(LINKS)))
    terms, dim = _SHAPES[int(rng.integers(len(_SHAPES)))]
    design, parameter = rng.normal(size=(terms, dim)), 1.0
    for way in rng.choice(["scale", "columns", "copies", "nearly", "constant", "rows", "huge row", "none"], 2):
        if way == "scale":
            design = design * 10.0 ** (rng.uniform(-widest, widest) if rng.random() < 0.5 else rng.uniform(-8, 8))
        elif way == "columns":
            design = design * 10.0 ** rng.uniform(-8, 8, dim)
        elif way == "copies":
            design[:, -1] = design[:, 0]
        elif way == "nearly":
            design[:, -1] = design[:, 0] * (1 + 10.0 ** rng.uniform(-14, -2) * rng.normal(size=terms))
        elif way == "constant":
            design[:, 0] = rng.choice([0.0, 1.0, -1e8, 1e-300])
        elif way == "rows":
            design[:] = design[0]
        elif way == "huge row":
            design[0] *= 10.0 ** rng.uniform(0, 20)
    eta = np.clip(np.nan_to_num(design @ rng.normal(size=dim)), -1e300, 1e300)
    if link in ("logit", "probit"):
        response = (eta > 0 if rng.random() < 0.5 else rng.random(terms) < rng.choice([0.0, 0.5, 1.0])).astype(float)
    elif link == "gaussian":
        parameter = float(
            10 ** (rng.uniform(-0.7 * widest, 0.7 * widest) if rng.random() < 0.2 else rng.uniform(-4, 4))
        )
        response = rng.normal(size=terms) * 10.0 ** (
            rng.uniform(-widest, widest) if rng.random() < 0.2 else rng.uniform(-6, 6)
        )
    else:
        parameter = float(10 ** rng.uniform(-6, 8)) if link == "binomial" else 1.0
        response = rng.poisson(10.0 ** rng.uniform(-2, rng.choice([1, 6, 15]), terms)).astype(float)
    sd = float(10 ** (rng.uniform(-1.06 * widest, 1.06 * widest) if rng.random() < 0.2 else rng.uniform(-4, 4)))
    return link, design, response, sd, parameter


def laplace(posterior: LinearPosterior) -> tuple[np.ndarray, np.ndarray] | None:
    """A member that is often better than a bad fit."""
    with np.errstate(all="ignore"):
        try:
            mode, covariance = posterior.mode()
            covariance = (covariance + covariance.T) / 2  # whoever reads one triangle reads the same
            np.linalg.cholesky(covariance)
        except np.linalg.LinAlgError:
            return None
    return (mode, covariance) if np.all(np.isfinite(mode)) else None


def types(rng: np.random.Generator) -> str:
    """Every dtype, order of bytes, mask, shape, container and hole, in one of the arrays."""
    design, labels = rng.normal(size=(8, 2)), (rng.random(8) < 0.5).astype(float)
    if rng.random() < 0.6:
        design = mangled(rng, design)
    else:
        labels = mangled(rng, labels)
    options: dict[str, Any] = {}
    if rng.random() < 0.3:
        options[str(rng.choice(["offset", "weights"]))] = mangled(rng, np.abs(rng.normal(size=8)))
    kind = str(rng.choice(["logit", "poisson", "process", "linear"]))
    try:
        if kind == "process":
            target: Any = targets.GaussianProcess(design, labels, kernel=kernels.Matern32(0.8))
        elif kind == "linear":
            target = targets.LinearRegression(design, labels, 1.0, **options)
        else:
            regression = {"logit": targets.LogisticRegression, "poisson": targets.PoissonRegression}[kind]
            target = regression(design, labels, **options)
        fit = provi.fit(target, progress=False)
    except Exception as error:
        return f"types: {clear(error, *ARGUMENTS)}"
    check_sane(fit)
    return "types: fitted"


def mangled(rng: np.random.Generator, array: np.ndarray) -> Any:
    """The same numbers as something else, or nearly the same numbers."""
    way = str(rng.choice(["dtype", "order", "mask", "hole", "shape", "container", "view", "text"]))
    if way == "dtype":
        with np.errstate(all="ignore"):
            whole = np.asarray(np.round(array), dtype="i8")
            code = str(rng.choice(list(_DTYPES)))
            return whole.astype("M8[D]" if code == "M" else "m8[D]" if code == "m" else code)
    if way == "order":
        return array.astype(str(rng.choice([">f8", ">f4", ">i4", "<f8", ">u2", ">f2"])))
    if way == "mask":
        return np.ma.masked_array(array, mask=rng.random(array.shape) < rng.choice([0.0, 0.3]))
    if way == "hole":
        found = array.copy()
        found.flat[int(rng.integers(found.size))] = rng.choice([np.nan, np.inf, -np.inf, 1e308, -1e-320, 2.0**53])
        return found
    if way == "shape":
        shapes = [array[:0], array[:1], array[..., None], array.T, array.ravel(), array[0], array[None], array[:-1]]
        return shapes[int(rng.integers(len(shapes)))]
    if way == "view":
        return [
            array[::-1],
            np.asfortranarray(array),
            np.repeat(array, 2, 0)[::2],
            np.broadcast_to(array, array.shape),
        ][int(rng.integers(4))]
    if way == "text":
        found = array.astype(object)
        found.flat[0] = rng.choice(np.array(["a", None, "1.0", 1j, (), "nan", 10**400], dtype=object))
        return found
    return _container(rng, array)


def _container(rng: np.random.Generator, array: np.ndarray) -> Any:
    import jax.numpy as jnp
    import pandas as pd
    import polars as pl
    from scipy import sparse

    flat = array.ndim == 1
    makers: list[Callable[[], Any]] = [
        array.tolist,
        lambda: tuple(map(tuple, np.atleast_2d(array).tolist())),
        lambda: pd.Series(array) if flat else pd.DataFrame(array, columns=list("ab")),
        lambda: pd.DataFrame(np.atleast_2d(array)).astype("Int64", errors="ignore"),
        lambda: pd.DataFrame(np.column_stack([array.reshape(8, -1)] * 2)).rename(columns=lambda k: "same"),
        lambda: pl.Series(array) if flat else pl.DataFrame(array),
        lambda: sparse.csr_matrix(np.atleast_2d(array)),
        lambda: jnp.asarray(array),
        lambda: {"a": array},
        lambda: None,
        lambda: "X",
        lambda: iter(array),
        lambda: memoryview(np.ascontiguousarray(array).data),
        lambda: np.zeros(8, [("a", float), ("b", float)]),
        lambda: float(array.flat[0]),
        object,
    ]
    return makers[int(rng.integers(len(makers)))]()


_ODD = (math.nan, math.inf, -math.inf, -1, 0, 1, 2.5, 2**63, 2**70, 10**400, 1e-320, 1e308, "x", "", b"1", None, True)
_ODD += ([], [1.0], (), {}, 1j, np.float32(0.5), np.int8(3), np.array(2), np.array([0.5, 0.1]), object(), len)


def arguments(rng: np.random.Generator) -> str:
    """One argument of `provi.fit` or of the target is odd."""
    design, labels = np.random.default_rng(5).normal(size=(8, 2)), np.tile([0.0, 1.0], 4)
    names = ("prior_scale", "prior_mean", "prior_covariance", "names", "offset", "weights")
    others = ("tol", "confidence", "budget", "seed", "start", "family", "algorithm", "checkpoint", "target")
    name = str(rng.choice([*names, *others]))
    value: Any = _ODD[int(rng.integers(len(_ODD)))]
    of_target = name in names
    if name == "checkpoint" and isinstance(value, str):
        value = "/proc/no/such/place"
    try:
        target: Any = targets.LogisticRegression(design, labels, **({name: value} if of_target else {}))
        fit = provi.fit(
            value if name == "target" else target,
            progress=False,
            **({} if of_target or name == "target" else {name: value}),
        )
    except Exception as error:
        return f"arguments: {clear(error, *ARGUMENTS)}"
    check_sane(fit)
    return "arguments: fitted"
