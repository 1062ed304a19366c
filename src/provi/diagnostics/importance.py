r"""How far q is from the posterior, estimated by draws of q: estimates with standard errors, never certificates.

With weights $w = p(z)/q(z)$, $z \sim q$, and $p = e^{-\phi}$, normalised or not:

- $E\log w$ is the ELBO, $\log E w$ the log evidence, and their difference $\mathrm{KL}(q\|p)$;
- $\mathrm{Var}(\log w)/2$ is the KL to second order where $w$ varies little;
- $E|s|^2/6$, $s = C'(\nabla\phi + \nabla\log q)$ ($= C'\nabla\phi - u$ for square $C$), is the same at a Gaussian q
  that is *stationary*: $\log w$ then has Hermite terms $c_k$ of degree $k \ge 3$ only, $\mathrm{Var}\log w =
  \sum c_k^2$ and $E|s|^2 = \sum k c_k^2$, so $\mathrm{Var}(\log w)/2 \le E|s|^2/6$, equal when degree 3 dominates.
"""

import dataclasses
import io
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from rich.console import Console
from rich.table import Table

from provi.core.arguments import check_count, double_precision
from provi.core.interpreter import instant_jit
from provi.core.randomness import folded, key_of
from provi.core.types import RandomKey
from provi.diagnostics.pareto import FEWEST_WEIGHTS, SMALL_ERROR, pareto_k, tail_advice, usable_k
from provi.families.base import AbstractFamily
from provi.families.bases import Normal
from provi.families.location_scale import LocationScale, Point
from provi.targets.base import AbstractTarget

_CHUNKS_AT_ONCE = 16
_NOTHING = 1e-9  # nats: no divergence to run on for
_STREAM = 2**31 - 2  # a stream of the seed that no step of a run and no estimate of the ELBO uses


@dataclasses.dataclass(frozen=True)
class ImportanceDiagnostics:
    """Estimates of the quality of q from `num_draws` draws, in nats; none of them is a bound.

    - `elbo`, `log_evidence`, `kl_estimate` = `log_evidence - elbo`: with standard errors (delta method).
    - `half_variance_log_weights`: Var(log w)/2. - `fisher_sixth`: E|s|^2/6, None in dual form or of another base.
    - `total_variation`: E|w/Ew - 1|/2, the largest error of any probability; it needs no more of w than a mean.
    - `effective_sample_size`: (sum w)^2 / sum w^2. - `pareto_k`: the tail index of w.
    - `missed`: the share of the evidence at modes that q does not reach, where a search has found some.
    - `moment_error`: the largest error of a parameter's mean, in deviations, or of the logarithm of its deviation, as
      the weights and the known modes say, beyond their noise; `wrong`: the parameters where it is above 0.1.
    - `unknown`: whether neither q's own weights nor those of draws with heavier tails can say what the moments are.
    - `advice`: what these mean for the user of q, in words; `notes`: where single estimates are not to be trusted.
    """

    num_draws: int
    elbo: float
    elbo_standard_error: float
    log_evidence: float
    log_evidence_standard_error: float
    kl_estimate: float
    kl_standard_error: float
    half_variance_log_weights: float
    half_variance_standard_error: float
    fisher_sixth: float | None
    fisher_sixth_standard_error: float | None
    total_variation: float
    effective_sample_size: float
    pareto_k: float
    advice: str
    notes: tuple[str, ...]
    missed: float = 0.0
    moment_error: float = 0.0
    wrong: tuple[str, ...] = ()
    unknown: bool = False

    @property
    def adequate(self) -> bool:
        """Whether q may be used as it is: by the draws and the modes known, nothing is off by more than 0.1.

        No probability; and no mean, in standard deviations, and no deviation, in itself, where that was looked at.
        """
        return max(self.total_variation, self.missed, self.moment_error) <= SMALL_ERROR and not self.unknown

    @property
    def misses_posterior(self) -> bool:
        """Whether q misses part of the posterior, so that not even the weights of its draws can mend it."""
        heavy = self.total_variation > SMALL_ERROR and self.pareto_k >= usable_k(self.num_draws)
        return heavy or self.missed > SMALL_ERROR

    def table(self) -> Table:
        """The estimates as a rich table."""
        table = Table(title="Estimates (not certificates)", title_justify="left", show_edge=False, pad_edge=False)
        table.add_column("quantity")
        for column in ("estimate", "standard error"):
            table.add_column(column, justify="right")
        for name, value, error in (
            ("ELBO", self.elbo, self.elbo_standard_error),
            ("log evidence", self.log_evidence, self.log_evidence_standard_error),
            ("KL(q||p): log evidence - ELBO", self.kl_estimate, self.kl_standard_error),
            ("KL near 0: Var(log w)/2", self.half_variance_log_weights, self.half_variance_standard_error),
            ("KL at a stationary q: E|s|^2/6", self.fisher_sixth, self.fisher_sixth_standard_error),
            *([("evidence at modes out of reach", self.missed, None)] if self.missed else []),
            ("largest error of a probability: E|w/Ew - 1|/2", self.total_variation, None),
            *([("largest error of a mean or deviation", self.moment_error, None)] if self.moment_error else []),
            (f"effective sample size of {self.num_draws}", self.effective_sample_size, None),
            ("Pareto k-hat", self.pareto_k, None),
        ):
            cells = ("" if x is None else f"{x:.{digits}g}" for x, digits in ((value, 6), (error, 2)))
            table.add_row(name, *cells)
        return table

    def print(self, console: Console | None = None) -> None:
        """Print the table, the advice and the notes."""
        console = console or Console()
        console.print(self.table())
        for line in (self.advice, *self.notes):
            console.print(f"- {line}", markup=False)

    def __str__(self) -> str:
        console = Console(width=110, file=io.StringIO())
        self.print(console)
        return console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]


@double_precision
def importance_diagnostics(
    target: AbstractTarget, family: AbstractFamily, point: Any, *, num_draws: int = 10_000, seed: int = 0
) -> ImportanceDiagnostics:
    """Estimate ELBO, log evidence and KL(q||p) at a point of the family, and whether the weights can be trusted.

    Costs `num_draws` gradients of the log density, in chunks of bounded memory; compiled once for each shape and
    number of draws. The draws are not those of a run with the same seed.

    **Arguments:**

    - `target`: its log density may be unnormalised; `log_evidence` and `elbo` then lack the same constant.
    - `family`, `point`: q, of any base and scale, or in dual form: `fit.posterior.family`, `fit.posterior.point`.
    - `num_draws`: at least 25, which is what the fit of the tail needs.
    """
    if family.dim != target.dim:
        raise ValueError(f"family has dimension {family.dim}, but the target has {target.dim}.")
    num_draws = check_count("num_draws", num_draws, minimum=FEWEST_WEIGHTS)
    key = folded(key_of(check_count("seed", seed, minimum=0)), _STREAM)
    chunk = int(np.clip(2**20 // family.dim, 1, 64))
    if isinstance(family, LocationScale):
        num_chunks = -(-num_draws // chunk)
        # A number of chunks at a time, so that runs of all lengths share one program.
        count = min(num_chunks, _CHUNKS_AT_ONCE)
        parts = [
            _weights_and_residuals(key, target, family, point, np.asarray(first), count, chunk)
            for first in range(0, num_chunks, count)
        ]
        log_weights, residuals = (
            np.concatenate([np.asarray(array, np.float64) for array in arrays])[:num_draws]
            for arrays in zip(*parts, strict=True)
        )
    else:
        log_weights = np.asarray(_weights(key, target, family, point, num_draws), np.float64)
        residuals = None
    broken = int(np.sum(np.isnan(log_weights) | (log_weights == np.inf)))
    if broken:
        raise ValueError(
            f"target has a log density that is NaN or +infinity at {broken} of {num_draws} draws of q. Make it finite "
            f"there (or -infinity where the density is zero), or choose a narrower q."
        )
    if not np.isfinite(log_weights).any():
        raise ValueError("target has density zero at every draw of q. Move point to where the density is positive.")
    return _summarise(log_weights, residuals, family, bool(target.constants.log_concave.known))


@instant_jit
def _weights_and_residuals(
    key: RandomKey, target: AbstractTarget, family: LocationScale, point: Point, first: Array, count: int, chunk: int
) -> tuple[Float[Array, " draws"], Float[Array, " draws"]]:
    """log w and |s|^2 for each draw of `count` chunks from the `first` on; every chunk has its own stream."""
    factors = point.scale.factorise()
    u_shape = jax.ShapeDtypeStruct((chunk, point.scale.base_dim), point.loc.dtype)
    adjoint = jax.linear_transpose(point.scale.apply, u_shape)

    def one_chunk(index: Array) -> tuple[Array, Array]:
        u = family.sample_base(jax.random.fold_in(key, index), point, chunk)
        z = family.transform(point, u)
        potentials, gradients = jax.vmap(jax.value_and_grad(target.potential))(z)
        log_q = family.log_prob_of_draws(point, u, z)
        (pulled,) = adjoint(gradients + family.score(point, u, factors))
        return -potentials - log_q, jnp.sum(pulled**2, axis=1)

    log_weights, residuals = jax.lax.map(one_chunk, first + jnp.arange(count))
    return log_weights.reshape(-1), residuals.reshape(-1)


@instant_jit
def _weights(
    key: RandomKey, target: AbstractTarget, family: AbstractFamily, point: Any, num_draws: int
) -> Float[Array, " draws"]:
    """log w for each draw, for families that know their density but not its score at base draws."""
    z, log_q = family.sample_and_log_prob(key, point, num_draws)
    return -jax.vmap(target.potential)(z) - log_q


def _summarise(
    log_weights: np.ndarray, residuals: np.ndarray | None, family: AbstractFamily, searched: bool
) -> ImportanceDiagnostics:
    largest = float(log_weights.max())
    log_evidence = largest + math.log(float(np.exp(log_weights - largest).mean()))
    # The deviations of w / mean(w) from 1 are those of log mean(w), by the delta method.
    ratios = np.exp(log_weights - log_evidence)
    elbo, elbo_error = _mean(log_weights)
    half_variance = _mean((log_weights - elbo) ** 2 / 2) if math.isfinite(elbo) else (math.inf, math.inf)
    fisher = (math.inf, math.inf) if residuals is None or not math.isfinite(elbo) else _mean(residuals / 6)
    normal = isinstance(family.base, Normal) and residuals is not None
    effective = float(ratios.sum() ** 2 / (ratios**2).sum())
    notes = _notes(family, effective)
    # Impossible at a stationary Gaussian q, beyond the noise; below that many nats it is the rounding of log w.
    if normal and half_variance[0] - 4 * half_variance[1] > fisher[0] + 4 * fisher[1] + _NOTHING:
        notes.append("Var(log w)/2 exceeds E|s|^2/6: q is not stationary, and fisher_sixth is too low. Run on.")
    total_variation, tail = float(np.abs(ratios - 1).mean()) / 2, pareto_k(log_weights)
    return ImportanceDiagnostics(
        num_draws=len(log_weights),
        elbo=elbo,
        elbo_standard_error=elbo_error,
        log_evidence=log_evidence,
        log_evidence_standard_error=_mean(ratios)[1],
        kl_estimate=log_evidence - elbo,
        kl_standard_error=_mean(ratios - log_weights)[1],
        half_variance_log_weights=half_variance[0],
        half_variance_standard_error=half_variance[1],
        fisher_sixth=fisher[0] if normal else None,
        fisher_sixth_standard_error=fisher[1] if normal else None,
        total_variation=total_variation,
        effective_sample_size=effective,
        pareto_k=tail,
        advice=tail_advice(tail, len(log_weights), total_variation, searched=searched),
        notes=tuple(notes),
    )


def _notes(family: AbstractFamily, effective: float) -> list[str]:
    notes = []
    if not family.base.has_score:
        notes.append("q is zero outside a bounded set, so log_evidence and kl_estimate miss the mass of p there.")
    if effective < 100:
        notes.append(f"Effective sample size {effective:.0f}: log_evidence and kl_estimate are likely too low.")
    return notes


def _mean(values: np.ndarray) -> tuple[float, float]:
    """Mean and standard error, which is infinite where a value is."""
    mean = float(np.mean(values))
    return mean, float(np.std(values, ddof=1) / len(values) ** 0.5) if math.isfinite(mean) else math.inf
