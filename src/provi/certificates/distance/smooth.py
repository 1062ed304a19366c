r"""How far any smooth density q is from the posterior: flows, mixtures, guides, whatever has draws and a log density.

The Fenchel-Young bound of docs/theory/posterior.md asks nothing of q but a score: $KL(q\|p) \le E_q[\phi(x) +
\phi^*(s) - \langle x, s\rangle]$, $s = -\nabla\log q(x)$, and $\log Z$ lies between the means of $-\phi(x) - \log q(x)$
and of $-\log q(x) + \phi^*(s) - \langle x, s\rangle$. Nothing is known of the tails of q, so that the confidence is
asymptotic: 'statistical'.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from provi.certificates.distance.bound import EvidenceBracket, PosteriorBound
from provi.certificates.distance.conjugate import DensityProblem, conjugates
from provi.certificates.distance.dual_bound import skewed_bound
from provi.certificates.distance.problems import curvature_lower_bound
from provi.targets.base import AbstractTarget

_PILOT, _DRAWS, _STREAM = 1024, 4096, 2**31 - 5
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


def smooth_posterior_bound(
    target: AbstractTarget, sample: Sample, log_prob: LogProb, *, confidence: float, seed: int
) -> PosteriorBound | None:
    """The distance of q to the posterior and the bracket of the evidence; None without a curvature bound.

    **Arguments:**

    - `sample`: (key, n) -> draws (n, dim). - `log_prob`: x -> log q(x), normalised and differentiable.
    - `seed`: of the draws.
    """
    curvature = curvature_lower_bound(target)
    if curvature is None:
        return None
    keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), _STREAM), 2)
    pilot = np.asarray(sample(keys[0], _PILOT), np.float64)
    x = np.asarray(sample(keys[1], _DRAWS), np.float64)
    if not (np.isfinite(pilot).all() and np.isfinite(x).all()):
        raise ValueError("q draws numbers that are not finite.")
    loc = pilot.mean(axis=0)
    spread = np.atleast_2d(np.cov(pilot.T)) + 1e-9 * np.diag(pilot.var(axis=0) + 1e-300)
    root = np.linalg.cholesky(spread)
    log_q, score = (np.asarray(each, np.float64) for each in _density(log_prob, x))
    potential = np.asarray(_potentials(target, np.concatenate([x, loc[None]])), np.float64)
    points = -score @ root
    problem = DensityProblem(target, loc, root, curvature)
    found = conjugates(problem, points, 1e-3)
    if found is None or not (np.isfinite(log_q).all() and np.isfinite(potential).all()):
        return None
    inner = -np.sum((x - loc) * score, axis=1)
    distance = potential[:-1] - potential[-1] + found.upper - inner
    if not np.isfinite(distance).all():
        return None
    share = (1 - confidence) / 3
    kl = max(skewed_bound(distance, share), 0.0)
    elbo = -potential[:-1] - log_q
    lower, upper = -skewed_bound(-elbo, share), skewed_bound(elbo + distance, share)
    inverse = np.diagonal(np.linalg.inv(curvature))
    return PosteriorBound(
        kl=kl,
        coordinate_error=tuple(float(e) for e in np.sqrt(2 * kl * inverse)),
        confidence=confidence,
        num_samples=_DRAWS,
        status="statistical",
        estimate=float(np.mean(distance)),
        statistical=kl,
        proven=math.inf,
        evidence=EvidenceBracket(lower, upper, confidence, "statistical"),
    )


def _density(log_prob: LogProb, x: np.ndarray) -> tuple[Any, Any]:
    return jax.lax.map(jax.value_and_grad(log_prob), jnp.asarray(x), batch_size=64)


def _potentials(target: AbstractTarget, x: np.ndarray) -> Any:
    return jax.lax.map(target.potential, jnp.asarray(x, target.dtype), batch_size=64)
