r"""How far any density q is from the posterior: flows, mixtures, guides, whatever has draws and a log density.

$KL(q\|p) = \log Z - ELBO(q)$. The evidence is bounded from above by `dual_bound`, which knows nothing of q but where to
draw from: a Gaussian with q's moments. The ELBO is the mean of $-\phi(x) - \log q(x)$ over draws of q, of whose tails
nothing is known, so that its confidence is asymptotic: 'statistical'. The upper end of the evidence is proven.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from provi.certificates.distance.bound import EvidenceBracket, PosteriorBound
from provi.certificates.distance.dual_bound import Energy, dual_bound, skewed_bound
from provi.certificates.distance.problems import curvature_lower_bound, density_problem, linear_problem
from provi.families.location_scale import Gaussian
from provi.targets.base import AbstractTarget

_PILOT, _DRAWS, _STREAM, _EVALUATIONS = 1024, 8192, 2**31 - 5, 40_000
Sample = Callable[[Any, int], Any]
LogProb = Callable[[Any], Any]


def as_sampler(q: Any, dim: int) -> tuple[Sample, LogProb] | None:
    """Functions (key, n) -> (n, dim) draws and x -> log q(x), of an object with `sample` and `log_prob`; else None.

    The conventions of NumPyro and flowjax (`sample(key, (n,))`), Distrax (`sample(seed=key, sample_shape=(n,))`) and
    TensorFlow Probability (`sample((n,), seed=key)`) are tried in this order.
    """
    if not (callable(getattr(q, "sample", None)) and callable(getattr(q, "log_prob", None))):
        return None

    def sample(key: Any, count: int) -> Any:
        for call in (
            lambda: q.sample(key, (count,)),
            lambda: q.sample(seed=key, sample_shape=(count,)),
            lambda: q.sample((count,), seed=key),
        ):
            try:
                return jnp.asarray(call()).reshape(count, -1)
            except TypeError:
                continue
        raise TypeError(f"q is a {type(q).__name__} whose sample takes neither (key, (n,)) nor (seed=, sample_shape=).")

    found = jax.eval_shape(lambda: sample(jax.random.key(0), 2))
    if found.shape != (2, dim):
        raise ValueError(
            f"q draws vectors of {found.shape[1]} numbers, but the target has dimension {dim}. Its coordinates must be "
            f"those of target.parameter_names, on their unconstrained scale."
        )
    return sample, lambda x: jnp.sum(q.log_prob(x))


def any_posterior_bound(
    target: AbstractTarget, sample: Sample, log_prob: LogProb, *, confidence: float, seed: int
) -> PosteriorBound | None:
    """The distance of q to the posterior and the bracket of the evidence; None without a curvature bound.

    **Arguments:**

    - `sample`: (key, n) -> draws (n, dim). - `log_prob`: x -> log q(x), normalised.
    - `seed`: of the draws.
    """
    curvature = curvature_lower_bound(target)
    if curvature is None:
        return None
    keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), _STREAM), 2)
    pilot, x = (np.asarray(sample(key, count), np.float64) for key, count in zip(keys, (_PILOT, _DRAWS), strict=True))
    if not (np.isfinite(pilot).all() and np.isfinite(x).all()):
        raise ValueError("q draws numbers that are not finite.")
    share = (1 - confidence) / 2
    elbo = -np.asarray(_over_rows(target.potential, x.astype(target.dtype)), np.float64)
    elbo -= np.asarray(_over_rows(log_prob, x), np.float64)
    upper = _log_evidence(target, curvature, pilot, share, seed)
    if upper is None or not np.isfinite(elbo).all():
        return None
    lower = -skewed_bound(-elbo, share)
    kl = max(upper - lower, 0.0)
    variances = np.diagonal(np.linalg.inv(curvature))
    return PosteriorBound(
        kl=kl,
        coordinate_error=tuple(float(e) for e in np.sqrt(2 * kl * variances)),
        confidence=confidence,
        num_samples=_DRAWS,
        status="statistical",
        estimate=max(upper - float(np.mean(elbo)), 0.0),
        evidence=EvidenceBracket(lower, upper, confidence, "statistical"),
    )


def _log_evidence(
    target: AbstractTarget, curvature: np.ndarray, pilot: np.ndarray, delta: float, seed: int
) -> float | None:
    """An upper bound on log Z, from a Gaussian with the moments of the pilot's draws."""
    family, loc = Gaussian(target.dim), pilot.mean(axis=0)
    spread = np.atleast_2d(np.cov(pilot.T)) + 1e-9 * np.diag(pilot.var(axis=0) + 1e-300)
    point = family.point_from_covariance(loc, spread, np.float64)
    model = target.linear_model()
    found = None
    if model is not None and not model.has_variance_offset:
        found = linear_problem(model, family, point)
    problem = density_problem(target, point, curvature)[0] if found is None else found[0]
    # The energy does not enter the bound on the evidence: any number will do.
    bound = dual_bound(problem, Energy(0.0), delta=delta, seed=seed, most_evaluations=_EVALUATIONS)
    if bound is None or not math.isfinite(bound.log_mass):
        return None
    here = float(np.asarray(target.potential(jnp.asarray(loc, target.dtype))))
    log_det = float(np.linalg.slogdet(np.asarray(problem.root))[1])
    rounding = 64 * float(np.finfo(target.dtype).eps) * abs(here) + 1e-12 * (abs(log_det) + target.dim)
    return bound.log_mass - here + 0.5 * target.dim * math.log(2 * math.pi) + log_det + rounding


def _over_rows(function: Callable[[Any], Any], x: np.ndarray) -> Any:
    return jax.lax.map(function, jnp.asarray(x), batch_size=64)
