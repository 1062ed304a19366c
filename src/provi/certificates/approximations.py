"""Gaussian approximations made elsewhere, read as a mean and a covariance without importing the packages."""

from typing import Any

import numpy as np
from jax.flatten_util import ravel_pytree

from provi.core.arguments import as_array, check_count, check_positive_definite, double_precision
from provi.families.bases import Normal
from provi.families.location_scale import LocationScale

_ACCEPTED = (
    "a pair (mean, covariance) or (mean, variances); a provi fit or its posterior; "
    "a frozen scipy.stats.multivariate_normal; a NumPyro Normal, MultivariateNormal or LowRankMultivariateNormal "
    "(guide.get_posterior(params)); a PyMC MeanField or FullRank approximation (pymc.fit(...)); a BlackJAX state of "
    "meanfield_vi, fullrank_vi or pathfinder; or an object with arrays .mean and .covariance"
)


@double_precision
def as_gaussian(q: Any, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """The mean and the covariance of a Gaussian `q`, in float64; a vector of variances where `q` is diagonal.

    The coordinates must be those of the target's vector z: the same parameters, in the order of
    `target.parameter_names`, on the same unconstrained scale. Nothing in `q` tells its order, so this is not
    checked. NumPyro orders its sites, PyMC its variables and BlackJAX the leaves of its positions in their own
    ways; a target made from the same model by the same package agrees with them.

    Packages are recognised by the attributes and class names of what they return. An unknown object with `.mean`
    and `.covariance` is read as the Gaussian with these moments. A BlackJAX Pathfinder state is the Gaussian that
    `blackjax.vi.pathfinder.sample` draws from, whose mean is not the state's `position`.

    **Arguments:**

    - `q`: a pair (mean, covariance) or (mean, variances); a `provi.Fit` or `Posterior`; a frozen
      `scipy.stats.multivariate_normal`; a NumPyro `Normal`, `MultivariateNormal` or `LowRankMultivariateNormal`;
      a PyMC `MeanField` or `FullRank`; a BlackJAX state of `meanfield_vi`, `fullrank_vi` or `pathfinder`.
    - `dim`: the dimension of the target.

    **Returns:** the mean (dim,), and the covariance (dim, dim) or the variances (dim,).
    """
    dim = check_count("dim", dim)
    mean, spread = _moments(q)
    return _check_mean(mean, dim), _check_spread(spread, dim)


def _moments(q: Any) -> tuple[Any, Any]:
    """Mean, and covariance or variances, as `q` stores them."""
    posterior = getattr(q, "posterior", q)
    if isinstance(getattr(posterior, "family", None), LocationScale):
        return _from_provi(posterior)
    if hasattr(q, "_fields"):
        return _from_blackjax(q)
    if isinstance(q, tuple | list):
        if len(q) != 2:
            raise ValueError(f"q is a {type(q).__name__} of {len(q)} entries; pass the pair (mean, covariance).")
        return q[0], q[1]
    if hasattr(q, "loc") or hasattr(q, "base_dist"):
        return _from_distribution(q)
    mean = getattr(q, "mean", None)
    if hasattr(mean, "eval"):
        return _from_pymc(q)
    for name in ("covariance", "cov"):
        covariance = getattr(q, name, None)
        if mean is not None and covariance is not None and not callable(mean) and not callable(covariance):
            return mean, covariance
    raise _refusal(q)


def _refusal(q: Any) -> TypeError:
    return TypeError(f"q is a {type(q).__name__}, which is not known to be a Gaussian. Pass {_ACCEPTED}.")


def _from_provi(posterior: Any) -> tuple[Any, Any]:
    if not isinstance(posterior.family.base, Normal):
        raise ValueError(
            f"q has the base {posterior.family.base.name}, not the normal one: it is not a Gaussian. Fit "
            f"provi.families.Gaussian(dim), or pass (q.mean, q.covariance) for the Gaussian with its moments."
        )
    if posterior.family.scale == "diagonal":
        return posterior.mean, np.asarray(posterior.standard_deviation, np.float64) ** 2
    return posterior.mean, posterior.covariance


def _from_blackjax(q: Any) -> tuple[Any, Any]:
    """The named tuples of blackjax.vi; their positions may be pytrees, flattened in the order of their leaves."""
    fields = set(q._fields)
    if fields >= {"mu", "rho"}:
        return _flat(q.mu), np.exp(2 * _flat(q.rho))
    if fields >= {"mu", "chol_params"}:
        # The logarithms of the diagonal come first, then the rows of the strict lower triangle.
        mean, entries = _flat(q.mu), _flat(q.chol_params)
        dim = len(mean)
        if len(entries) != dim * (dim + 1) // 2:
            raise ValueError(f"q.chol_params has {len(entries)} entries; {dim} dimensions need {dim * (dim + 1) // 2}.")
        factor = np.diag(np.exp(entries[:dim]))
        factor[np.tril_indices(dim, -1)] = entries[dim:]
        return mean, factor @ factor.T
    if fields >= {"position", "grad_position", "alpha", "beta", "gamma"}:
        alpha, beta, gamma = (np.asarray(factor, np.float64) for factor in (q.alpha, q.beta, q.gamma))
        if alpha.ndim != 1:
            raise ValueError(
                f"q.alpha has shape {alpha.shape}: q is a whole path. Pass the state of one step, the first of what "
                f"pathfinder.approximate returns."
            )
        position, gradient = _flat(q.position), _flat(q.grad_position)
        covariance = np.diag(alpha) + beta @ gamma @ beta.T
        return position + covariance @ gradient, (covariance + covariance.T) / 2
    raise _refusal(q)


def _flat(tree: Any) -> np.ndarray:
    return np.asarray(ravel_pytree(tree)[0], np.float64)


def _from_distribution(q: Any) -> tuple[Any, Any]:
    """A distribution object with `loc`, known by its class's name: a Laplace has the same attributes as a Normal."""
    inner = q
    while type(inner).__name__ == "Independent":
        inner = inner.base_dist
    match type(inner).__name__:
        case "Normal":
            loc, scale = np.asarray(inner.loc), np.asarray(inner.scale, np.float64)
            return loc, np.broadcast_to(scale, loc.shape) ** 2
        case "MultivariateNormal":
            # Not `covariance_matrix`: its product is made in the distribution's own, lower precision.
            factor = np.asarray(inner.scale_tril, np.float64)
            return inner.loc, factor @ np.swapaxes(factor, -1, -2)
        case "LowRankMultivariateNormal":
            factor, diagonal = np.asarray(inner.cov_factor, np.float64), np.asarray(inner.cov_diag, np.float64)
            return inner.loc, factor @ np.swapaxes(factor, -1, -2) + diagonal[..., None] * np.eye(diagonal.shape[-1])
    raise _refusal(inner)


def _from_pymc(q: Any) -> tuple[Any, Any]:
    """Symbolic moments. The class's name tells a Gaussian from a cloud of particles (`Empirical`)."""
    match type(q).__name__:
        case "MeanField":
            return q.mean.eval(), np.asarray(q.std.eval(), np.float64) ** 2
        case "FullRank":
            return q.mean.eval(), q.cov.eval()
    raise _refusal(q)


def _check_mean(mean: Any, dim: int) -> np.ndarray:
    array = as_array("the mean of q", mean)
    if array.shape != (dim,):
        raise ValueError(
            f"the mean of q has shape {array.shape}, but the target has dimension {dim}. Pass all parameters of the "
            f"target as one vector, in the order of target.parameter_names and on their unconstrained scale."
        )
    return np.array(array, np.float64)


def _check_spread(spread: Any, dim: int) -> np.ndarray:
    array = as_array("the covariance of q", spread)
    if array.shape == (dim,):
        if not (array > 0).all():
            raise ValueError(
                f"the variances of q must be positive; the smallest is {array.min():.3g}. Pass variances, not their "
                f"logarithms, and leave out parameters that are fixed."
            )
        return np.array(array, np.float64)
    if array.shape != (dim, dim):
        raise ValueError(
            f"the covariance of q has shape {array.shape}; pass a ({dim}, {dim}) covariance matrix, or ({dim},) "
            f"variances for a diagonal q."
        )
    matrix = np.array(array, np.float64)
    # Products made in single precision are symmetric to about 1e-7 of their size only.
    if array.dtype != np.float64 and np.abs(matrix - matrix.T).max() <= 1e-5 * np.abs(matrix).max():
        matrix = (matrix + matrix.T) / 2
    check_positive_definite("the covariance of q", matrix)
    return (matrix + matrix.T) / 2
