r"""How far q is from the posterior itself: bounds on KL, total variation, Wasserstein distance, means and deviations.

If the potential's Hessian is at least $H \succ 0$ everywhere, p satisfies the log-Sobolev inequality in the metric of
H, $KL(q\|p) \le \tfrac12E_q|\nabla\log q - \nabla\log p|^2_{H^{-1}}$, and Talagrand's, $W_H(q, p)^2 \le 2KL(q\|p)$
with $W_H^2$ the least $E|z - z'|_H^2$ over couplings. For one coordinate
$(\Delta\text{mean}_j)^2 + (\Delta\text{sd}_j)^2 \le W(q_j, p_j)^2 \le (H^{-1})_{jj}W_H^2$. Pinsker:
$TV \le \sqrt{KL/2}$. Proofs: docs/theory/certificates.md.

How far a Gaussian in dual form is from the posterior: the log-Sobolev bound of `posterior`, without inverses.

With the prior's curvature $H = \Sigma_0^{-1}$ and $\nabla\log q - \nabla\log p = X'(a + \ell'(\eta) - s\circ(\eta -
E\eta)) = X'\rho(\eta)$, $KL(q\|p) \le \tfrac12E_q|X'\rho|^2_{\Sigma_0} = \tfrac12E_q\,\rho'K\rho$.
"""

import dataclasses
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import LinAlgError, cholesky, eigh, solve_triangular

from provi.certificates.bounds import mean_upper_bound
from provi.certificates.dual.dual_pass import dual_pass
from provi.core.compilation import quick_jit
from provi.families.bases import Normal
from provi.families.dual_gaussian import DualGaussian, DualPoint
from provi.families.location_scale import LocationScale, Point
from provi.targets.base import AbstractTarget, outer_spectrum

NUM_BATCHES, _PAIRS = 32, 4
_LARGEST_DENSE = 2000


@dataclasses.dataclass(frozen=True)
class PosteriorBound:
    """Upper bounds on the distance between q and the posterior, each in words of the user's own parameters.

    - `kl`: nats; `total_variation`: at most 1, the error of any posterior probability; `confidence`: of all of them.
    - `coordinate_error`: for each parameter a bound on both |mean_q - mean_p| and |sd_q - sd_p|.
    """

    kl: float
    total_variation: float
    coordinate_error: tuple[float, ...]
    confidence: float
    num_samples: int


def posterior_bound(
    target: AbstractTarget, family: LocationScale, point: Point, *, confidence: float, seed: int
) -> PosteriorBound | None:
    """The bounds, from the scores at 256 draws of q; None where no curvature bound is known or q has no score.

    None where the base has no fourth moment, without which a mean over draws has no confidence; and for a model with
    variance offsets: its potential is the integrand of an ELBO and no posterior.
    """
    linear = target.linear_model()
    if linear is not None and linear.has_variance_offset:
        return None
    curvature = curvature_lower_bound(target)
    if curvature is None or not family.base.has_score or target.dim > _LARGEST_DENSE:
        return None
    if not family.base.has_fourth_moment(family.dim):
        return None
    factor = np.linalg.cholesky(curvature)  # H = KK'
    scores = np.asarray(_score_differences(target, family, point, _antithetic_draws(family, point, seed)), np.float64)
    white = solve_triangular(factor, scores.T, lower=True)  # |x|^2 in H^-1 is |K^-1 x|^2
    values = 0.5 * np.sum(white**2, axis=0).reshape(NUM_BATCHES, -1).mean(axis=1)
    if not np.isfinite(values).all():
        return None
    kl = mean_upper_bound(values, 1 - confidence)
    if not math.isfinite(kl):
        return None
    inverse = solve_triangular(factor, np.eye(target.dim), lower=True)
    spread = np.sqrt(np.sum(inverse**2, axis=0))  # square roots of the diagonal of H^-1
    errors = tuple(float(x) for x in math.sqrt(2 * kl) * spread)
    return PosteriorBound(kl, min(1.0, math.sqrt(kl / 2)), errors, confidence, scores.shape[0])


def curvature_lower_bound(target: AbstractTarget) -> np.ndarray | None:
    """H, proven or declared and positive definite, as a matrix; None where there is none."""
    bound = target.curvature_lower_bound()
    if bound is not None and outer_spectrum(bound)[0] > 0:
        return bound
    constant = target.constants.strong_convexity
    if constant.status not in ("proven", "declared") or not (constant.value and constant.value > 0):
        return None
    return float(constant.value) * np.eye(target.dim)


def _antithetic_draws(family: LocationScale, point: Point, seed: int) -> np.ndarray:
    """Rows u, -u batch by batch. The normal base draws on the host: compiling a generator costs more than the draws."""
    num, width = NUM_BATCHES * _PAIRS, point.scale.base_dim
    if isinstance(family.base, Normal):
        half = np.random.default_rng(seed).standard_normal((num, width))
    else:
        half = np.asarray(family.base.sample(jax.random.key(seed), num, width, np.float64))
    half = half.reshape(NUM_BATCHES, _PAIRS, width)
    return np.concatenate([half, -half], axis=1).reshape(2 * num, width).astype(point.loc.dtype)


@eqx.filter_jit
def _score_differences(target: AbstractTarget, family: LocationScale, point: Point, u: Any) -> Any:
    """grad log q - grad log p at each z = m + Cu."""
    gradients = jax.lax.map(jax.grad(target.potential), family.transform(point, u), batch_size=2 * _PAIRS)
    return family.score(point, u, point.scale.factorise()) + gradients


_SITE_PAIRS, _LARGEST_SITES = 4, 2000


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
    half = np.random.default_rng(seed).standard_normal((NUM_BATCHES, _SITE_PAIRS, family.num_sites))
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
