r"""Repair by importance: draws around q, weighted by $w = p/r$, are draws of the posterior where r covers it.

Half of the draws are q's and half have the heavier tails of Student's law with the same location and scale, $r = (q +
t_3)/2$: the posterior of a scale, say, falls off like an exponential, and q like a Gaussian, so that $p/q$ is huge at
the rare draws that go far. No weight is more than twice as large for it. A flow has the tails of the Gaussian that it
bends. Of a q without moments, r is q.

Expectations under the posterior are $\sum_s \tilde w_s f(z_s)$, $z_s \sim r$, with normalised weights whose largest
ones are smoothed by a Pareto law fitted to them (Vehtari et al. 2024). The shape k-hat of that law says whether it
works: below 0.7 it does with some ten thousand draws; from 1 on the weights have no mean and nothing is corrected.
Weights that are harmless may still rest the variance of one parameter on a few draws: so each parameter's moments, in
the model's own space, have errors and a k-hat of their own (`WeighedMoments`).
"""

import dataclasses
import math
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import numpy as np

from provi.core.arguments import check_count, device_array, double_precision
from provi.core.limits import check_memory
from provi.core.randomness import folded, key_of
from provi.diagnostics.loo import log_densities
from provi.diagnostics.pareto import (
    FEWEST_WEIGHTS,
    GOOD_K,
    WeighedMoments,
    smoothed_log_weights,
    usable_k,
    weighed_moments,
)
from provi.families.base import draws_of, log_probs_of
from provi.families.bases import Normal, StudentT
from provi.families.location_scale import Gaussian, LocationScale
from provi.result.drawn import DrawnPosterior
from provi.result.summary import parameter_values

if TYPE_CHECKING:
    from provi.result.posterior import Posterior

NO_MEAN_K = 1.0
"""The k-hat from which the weights have no mean."""

_AT_ONCE, _LARGEST_POOL = 2000, 2**25
_STREAM, _DF = 3, 3.0
_MANY, _BOUNDED = 1000, 5.0
_MOST_UNDEFINED, _MOST_VALUES, _NAMED, _LARGEST_AROUND = 0.01, 2**25, 3, 500


@dataclasses.dataclass(frozen=True, eq=False)
class CorrectedPosterior(DrawnPosterior):
    """The posterior by weighted draws around q. `z` holds resampled ones; moments of z are by the weights themselves.

    - `num_draws`: made. - `pareto_k`: the tail index of the weights. - `effective_sample_size`: 1 / sum of the squared
      normalised weights: so many draws of the posterior itself would do as well.
    - `mean`, `covariance`: of z. - `standard_error`: of each mean, by the weights.
    - `shift`: how far q's means were off, in corrected standard deviations; `ratio`: q's deviations over these.
    - `missed`: the share of the evidence at modes that q does not reach, which no weight can bring back.
    - `parameters`, `moments`: the parameters in the model's own space, and what the weights say of each; None where
      that would be too many numbers. - `doubtful`: the names of those whose mean or deviation is not known to a tenth.
    """

    num_draws: int
    pareto_k: float
    effective_sample_size: float
    weighted_mean: np.ndarray
    weighted_covariance: np.ndarray
    standard_error: np.ndarray
    shift: np.ndarray
    ratio: np.ndarray
    missed: float = 0.0
    parameters: tuple[str, ...] = ()
    moments: WeighedMoments | None = None

    origin: ClassVar[str] = "importance resampling"

    @property
    def mean(self) -> np.ndarray:
        """E[z], by the weights."""
        return self.weighted_mean

    @property
    def covariance(self) -> np.ndarray:
        """Cov[z], by the weights; its diagonal, as a matrix, above 2000 dimensions."""
        return self.weighted_covariance if self.weighted_covariance.ndim == 2 else np.diag(self.weighted_covariance)

    @property
    def standard_deviation(self) -> np.ndarray:
        """Marginal standard deviations, by the weights."""
        found = self.weighted_covariance
        return np.sqrt(np.diagonal(found) if found.ndim == 2 else found)

    @property
    def reliable(self) -> bool:
        """Whether weights with this k-hat are to be trusted, for every parameter, and no other modes are known."""
        return bool(self.pareto_k < usable_k(self.num_draws)) and self.missed <= 0.01 and not self.doubtful

    @property
    def doubtful(self) -> tuple[str, ...]:
        """Parameters whose mean or standard deviation rests on too few draws."""
        if self.moments is None:
            return ()
        return tuple(np.asarray(self.parameters, object)[self.moments.doubtful(self.num_draws)])

    def notes(self) -> tuple[str, ...]:
        """Where the numbers come from, and what to beware of."""
        made = (
            f"Corrected by importance: {self.num_draws:,} draws around q, effective sample size "
            f"{self.effective_sample_size:,.0f}, k-hat {self.pareto_k:.2f}."
        )
        return (made, *(f"Warning: {text}" for text in _warnings(self)))

    def attributes(self) -> dict[str, Any]:
        """With what says how far the weights can be trusted."""
        found = {"pareto_k": self.pareto_k, "effective_sample_size": self.effective_sample_size}
        return super().attributes() | {name: value for name, value in found.items() if math.isfinite(value)}

    def __str__(self) -> str:
        return str(self.summary())

    def __repr__(self) -> str:
        return f"<provi.CorrectedPosterior: {self.notes()[0]}>"


@double_precision
def corrected_posterior(posterior: "Posterior", num_draws: int = 40_000, seed: int = 0) -> CorrectedPosterior:
    """Weigh `num_draws` draws of q; a `ValueError` where k-hat shows that no weights can repair q.

    The draws are made twice, block by block, so that no more than a block of them is in memory beside the resampled.
    """
    target, family = posterior.target, posterior.family
    num_draws, seed = check_count("num_draws", num_draws, minimum=FEWEST_WEIGHTS), check_count("seed", seed, minimum=0)
    if target is None:
        raise ValueError("corrected needs the target: provi.load(path, target=target).")
    if not family.has_density:
        raise ValueError(f"corrected needs the density of q, which {type(family).__name__} does not know.")
    check_memory(f"A block of draws of {family.dim} dimensions", 24 * _AT_ONCE * family.dim, "take another family")
    proposal = _Proposal(posterior, seed)
    log_weights = np.concatenate([proposal.log_weights(z) for z in proposal.blocks(num_draws)])
    undefined = int(np.isnan(log_weights).sum())
    if undefined > _MOST_UNDEFINED * num_draws or np.nanmax(log_weights) == np.inf:
        raise ValueError(
            f"corrected: log p or log q is not a number at {undefined or 'some'} of {num_draws} draws of q. "
            f"fit.diagnose() says more."
        )
    if undefined:  # far out, where a factorisation fails, say
        log_weights = np.where(np.isnan(log_weights), -np.inf, log_weights)
        warnings.warn(
            f"corrected: log p is not a number at {undefined} of {num_draws} draws, which count as of density zero.",
            stacklevel=4,
        )
    if not np.isfinite(log_weights).any():
        raise ValueError("corrected: the target has density zero at every draw of q.")
    smoothed, tail = _smoothed(log_weights)
    missed = 0.0 if posterior.modes is None else posterior.modes.missed
    if math.isnan(tail) or tail >= NO_MEAN_K:
        raise ValueError(
            f"k-hat is {tail:.2f} with {num_draws} draws: their weights have no mean, so they cannot correct q, "
            f"which misses part of the posterior. fit.sample_exact() samples it, with q as its start."
        )
    weights = np.exp(smoothed)
    size = min(num_draws, max(_LARGEST_POOL // family.dim, 1000))
    places = _resampled(weights, size, np.random.default_rng((seed, _STREAM)))
    mean, covariance, error, pool = _moments(proposal, weights, places)
    spread = np.sqrt(np.diagonal(covariance) if covariance.ndim == 2 else covariance)
    parameters, moments = _parameter_moments(proposal, weights)
    found = CorrectedPosterior(
        z=pool[None],
        names=posterior.names,
        target=target,
        num_draws=num_draws,
        pareto_k=float(tail),
        effective_sample_size=float(1 / np.sum(weights**2)),
        weighted_mean=mean,
        weighted_covariance=covariance,
        standard_error=error,
        shift=(posterior.mean - mean) / spread,
        ratio=posterior.standard_deviation / spread,
        missed=missed,
        parameters=parameters,
        moments=moments,
    )
    for text in _warnings(found):
        warnings.warn(f"corrected: {text}", stacklevel=4)
    return found


class _Proposal:
    """r: half of it q and half Student's law with the location and the scale of q, or the moments of a richer q."""

    def __init__(self, posterior: "Posterior", seed: int) -> None:
        self.posterior, self.seed, self.mean = posterior, seed, posterior.mean
        family, self.heavy, self.around = posterior.family, None, posterior.point
        if isinstance(family, LocationScale):
            if isinstance(family.base, Normal):
                self.heavy = LocationScale(family.dim, StudentT(_DF), family.scale, rank=family.rank)
        elif family.dim <= _LARGEST_AROUND:
            covariance = np.asarray(posterior.covariance, np.float64)
            if np.isfinite(covariance).all() and np.linalg.eigvalsh(covariance)[0] > 0:
                self.heavy = LocationScale(family.dim, StudentT(_DF), "triangular")
                dtype = jax.tree.leaves(posterior.point)[0].dtype
                self.around = Gaussian(family.dim).point_from_covariance(self.mean, covariance, dtype)
        self.stretch = math.sqrt(_DF / (_DF - 2))  # of unit covariance, so stretched to unit scale

    def blocks(self, num_draws: int) -> Iterator[np.ndarray]:
        """The draws, `_AT_ONCE` rows at a time: the same ones at every call."""
        for index, first in enumerate(range(0, num_draws, _AT_ONCE)):
            own = int(np.random.SeedSequence((self.seed, _STREAM, index)).generate_state(1)[0])
            rows = np.array(self.posterior.sample(_AT_ONCE, own))
            if self.heavy is not None:
                far = draws_of(self.heavy, folded(key_of(own), 1), self.around, _AT_ONCE // 2)
                rows[1::2] = self.mean + self.stretch * (np.asarray(far, np.float64) - self.mean)
            yield rows[: num_draws - first]

    def log_weights(self, z: np.ndarray) -> np.ndarray:
        """log p - log r at each row."""
        family, point = self.posterior.family, self.posterior.point
        log_p, log_r = log_densities(self.posterior.target, family, point, z)
        if self.heavy is not None:
            rows = device_array(self.mean + (z - self.mean) / self.stretch, jax.tree.leaves(point)[0].dtype)
            log_t = np.asarray(log_probs_of(self.heavy, self.around, rows), np.float64)
            log_r = np.logaddexp(log_r, log_t - family.dim * math.log(self.stretch)) - math.log(2)
        return log_p - log_r


def _smoothed(log_weights: np.ndarray) -> tuple[np.ndarray, float]:
    """`smoothed_log_weights`; plain, and minus infinity, where none of many weights is five times their mean.

    Of S weights with a tail of shape k the largest is about S^k times the mean: there is no tail then, whatever the
    last digits of the largest say. So it is where q is the posterior, and all of q's draws weigh the same.
    """
    smoothed, tail = smoothed_log_weights(log_weights)
    plain = log_weights - log_weights.max()
    bounded = len(plain) <= _BOUNDED * np.exp(plain).sum()
    if len(plain) >= _MANY and bounded and not tail < GOOD_K:
        return plain - math.log(float(np.exp(plain).sum())), -math.inf
    return smoothed, tail


def _resampled(weights: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    """Numbers of draws, ascending: one uniform number in each of `size` equal parts of the cumulated weights."""
    levels = (np.arange(size) + rng.uniform(size=size)) / size
    return np.minimum(np.searchsorted(np.cumsum(weights / weights.sum()), levels), len(weights) - 1)


def _moments(
    proposal: _Proposal, weights: np.ndarray, places: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Mean, covariance (its diagonal above 2000 dimensions), standard error of the mean, and the resampled draws."""
    centre, dim, pool, first = proposal.mean, len(proposal.mean), [], 0
    dense = dim <= 2000
    total, second = np.zeros(dim), np.zeros((dim, dim) if dense else dim)
    squares = np.zeros((3, dim))  # of w^2, w^2 x and w^2 x^2: the error of the mean without another pass
    for z in proposal.blocks(len(weights)):
        own = weights[first : first + len(z)]
        x = z - centre  # around q's mean, so that nothing is lost in differences of large numbers
        total += own @ x
        second += (x * own[:, None]).T @ x if dense else own @ x**2
        squares += np.stack([np.full(dim, np.sum(own**2)), own**2 @ x, own**2 @ x**2])
        inside = places[(places >= first) & (places < first + len(z))] - first
        pool.append(z[inside])
        first += len(z)
    covariance = second - (np.outer(total, total) if dense else total**2)
    error = np.sqrt(np.maximum(squares[2] - 2 * total * squares[1] + total**2 * squares[0], 0.0))
    return centre + total, covariance, error, np.concatenate(pool)


def _parameter_moments(proposal: _Proposal, weights: np.ndarray) -> tuple[tuple[str, ...], WeighedMoments | None]:
    """Names and moments of the parameters in the model's own space, by the draws that count."""
    target, names, parts, first = proposal.posterior.target, [], [], 0
    if len(target.constrained_names) * len(weights) > _MOST_VALUES:
        return (), None
    for z in proposal.blocks(len(weights)):
        counted = weights[first : first + len(z)] > 0  # where the density is zero a parameter may be undefined
        names, values = parameter_values(target, np.where(counted[:, None], z, proposal.mean))
        parts.append(values)
        first += len(z)
    return tuple(names), weighed_moments(np.concatenate(parts), weights)


def _warnings(posterior: CorrectedPosterior) -> list[str]:
    found, usable = [], usable_k(posterior.num_draws)
    if not posterior.pareto_k < usable:
        found.append(
            f"k-hat {posterior.pareto_k:.2f} is above {usable:.2f}: the weights may have no variance, and what few "
            f"draws say counts for much. fit.sample_exact() is sure."
        )
    elif posterior.doubtful:
        names = posterior.doubtful
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        found.append(
            f"the mean or standard deviation of {', '.join(names[:_NAMED])}{more} rests on few draws (k-hat of single "
            f"parameters, or standard errors above 5%). More draws, corrected(num_draws=...), or fit.sample_exact()."
        )
    if posterior.missed > 0.01:
        found.append(
            f"about {posterior.missed:.0%} of the evidence is at modes that q does not reach (fit.modes): weights of "
            f"draws of q do not bring it back."
        )
    return found
