r"""How far a Gaussian in dual form is from the posterior: the log-Sobolev bound of `posterior`, without inverses.

With the prior's curvature $H = \Sigma_0^{-1}$ and
$\nabla\log q - \nabla\log p = X'(a + \ell'(\eta) - s\circ(\eta - E\eta)) = X'\rho(\eta)$,
$KL(q\|p) \le \tfrac12E_q|X'\rho|^2_{\Sigma_0} = \tfrac12E_q\,\rho'K\rho$.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import LinAlgError, cholesky, eigh

from provi.certificates.confidence import mean_upper_bound
from provi.certificates.dual_pass import dual_pass
from provi.certificates.posterior import NUM_BATCHES, PosteriorBound
from provi.core.compilation import quick_jit
from provi.families.dual_gaussian import DualGaussian, DualPoint

_PAIRS, _LARGEST_SITES = 4, 2000


def dual_posterior_bound(
    target: Any, family: DualGaussian, point: DualPoint, *, confidence: float, seed: int
) -> PosteriorBound | None:
    """The bounds from 256 draws of q; None where the likelihood is not log-concave with bounded curvature.

    With bounded curvature the score is Lipschitz, and draws see all of it.
    """
    likelihood = target.likelihood
    if not likelihood.log_concave or not math.isfinite(likelihood.curvature[1]) or family.num_sites > _LARGEST_SITES:
        return None
    at = dual_pass(target, family, point)
    half = np.random.default_rng(seed).standard_normal((NUM_BATCHES, _PAIRS, family.num_sites))
    draws = np.concatenate([half, -half], axis=1).reshape(-1, family.num_sites) @ _root(at.covariance).T
    slopes = np.asarray(_slopes(at.likelihood, at.centre[None, :] + draws, at.response))
    residuals = np.asarray(point.dual_mean, np.float64)[None, :] + slopes - at.precision[None, :] * draws
    values = 0.5 * np.sum((residuals @ at.gram) * residuals, axis=1).reshape(NUM_BATCHES, -1).mean(axis=1)
    if not np.isfinite(values).all():
        return None
    kl = mean_upper_bound(values, 1 - confidence)
    if not math.isfinite(kl):
        return None
    variance = np.diagonal(at.gram) if family.prior is None else np.asarray(family.prior_variance(), np.float64)
    errors = tuple(float(x) for x in math.sqrt(2 * kl) * np.sqrt(variance))
    return PosteriorBound(kl, min(1.0, math.sqrt(kl / 2)), errors, confidence, len(draws))


def _root(covariance: np.ndarray) -> np.ndarray:
    """C with CC' = V; through the spectrum where rounding has left V without a Cholesky factor."""
    try:
        return cholesky(covariance, lower=True)
    except LinAlgError:
        values, vectors = eigh((covariance + covariance.T) / 2)
        return vectors * np.sqrt(np.maximum(values, 0.0))[None, :]


@quick_jit
def _slopes(likelihood: Any, eta: Any, response: Any) -> Any:
    def slope(row: Any) -> Any:
        _, pull = jax.vjp(lambda e: likelihood.potential(e, jnp.asarray(response)), row)
        return pull(jnp.ones_like(row))[0]

    return jax.lax.map(slope, jnp.asarray(eta))
