"""The fitted approximation, in NumPy."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from provi.algorithms.natural.modes import Modes
from provi.certificates.distance.bound import Deferred, PosteriorBound
from provi.core.arguments import as_array, check_count, device_array, double_precision
from provi.core.limits import check_memory
from provi.core.randomness import key_of
from provi.diagnostics.importance import ImportanceDiagnostics, importance_diagnostics
from provi.families.base import AbstractFamily, draws_of, log_probs_of, moment_of
from provi.families.bases import marginal_quantile
from provi.result.advice import with_advice
from provi.result.summary import Summary, content_note, summarise_model_space, tail_warning

if TYPE_CHECKING:
    from provi.result.corrected import CorrectedPosterior

_NO_TARGET = (
    "In free coordinates, as the target is not known: provi.load(path, target=target) has the model's own space."
)


@dataclasses.dataclass(frozen=True)
class Posterior:
    """The fitted approximation, in NumPy: exact moments, draws and densities of the family's member.

    `names` are those of the free coordinates z. With a `target`, `draws` and `summary` are in the model's own space.
    `distance`: what is known of how far it is from the posterior, or what computes that; `bound` has its value.
    `modes`: what a search for modes of the target has found; None where the fit's method makes none.
    `richer_tried`: whether richer families were tried before this one was taken, which nobody is then advised to do.
    """

    family: AbstractFamily
    point: Any
    names: tuple[str, ...]
    target: Any = dataclasses.field(default=None, compare=False, repr=False)
    distance: PosteriorBound | Deferred | None = dataclasses.field(default=None, compare=False, repr=False)
    modes: Modes | None = dataclasses.field(default=None, compare=False, repr=False)
    richer_tried: bool = dataclasses.field(default=False, compare=False, repr=False)
    _found: dict[Any, Any] = dataclasses.field(default_factory=dict, init=False, compare=False, repr=False)
    _made: dict[Any, Any] = dataclasses.field(default_factory=dict, init=False, compare=False, repr=False)

    @property
    def exact_moments(self) -> bool:
        """Whether mean, deviations and intervals are exact for q, and not from draws."""
        return self.family.exact_moments

    @property
    @double_precision
    def mean(self) -> np.ndarray:
        """E_q[z]."""
        return np.asarray(moment_of(self.family, self.point, "mean"))

    @property
    @double_precision
    def covariance(self) -> np.ndarray:
        """Cov_q[z]."""
        dim = self.family.dim
        check_memory(f"A covariance of {dim} dimensions", 16 * dim**2, "standard_deviation has its diagonal")
        return np.asarray(moment_of(self.family, self.point, "covariance"))

    @property
    @double_precision
    def standard_deviation(self) -> np.ndarray:
        """Marginal standard deviations."""
        return np.asarray(moment_of(self.family, self.point, "marginal_standard_deviation"))

    @double_precision
    def sample(self, n: int, seed: int) -> np.ndarray:
        """`n` independent draws of the free coordinates z, one a row."""
        n, seed, dim = check_count("n", n), check_count("seed", seed, minimum=0), self.family.dim
        check_memory(f"{n} draws of {dim} dimensions", 24 * n * dim, "take fewer at a time, with other seeds")
        return np.asarray(draws_of(self.family, key_of(seed), self.point, n))

    def draws(self, n: int, seed: int) -> Any:
        """`n` independent draws in the model's own space: a dictionary by variable, or the user's pytree, n in front.

        The draws are those of `sample(n, seed)`, constrained.
        """
        if self.target is None:
            raise ValueError(
                "draws needs the target, which says what the model's own space is: provi.load(path, target=target). "
                "sample(n, seed) draws the free coordinates."
            )
        return self.target.constrain(self.sample(n, seed))

    @double_precision
    def log_prob(self, z: Any) -> np.ndarray:
        """log q(z) for one point or for each row of an array of points."""
        array = as_array("z", z)
        if array.shape[-1] != self.family.dim or array.ndim > 2:
            raise ValueError(f"z has shape {array.shape}; its last axis must be the dimension {self.family.dim}.")
        rows = device_array(np.atleast_2d(array), jax.tree.leaves(self.point)[0].dtype)
        values = log_probs_of(self.family, self.point, rows)
        return np.asarray(values if array.ndim == 2 else values[0])

    def interval(self, probability: float = 0.94) -> np.ndarray:
        """Central credible intervals of the free coordinates, shape (dim, 2); exact for the family, or from draws."""
        if not 0 < probability < 1:
            raise ValueError(f"probability must lie between 0 and 1, not {probability}.")
        if not self.family.exact_moments:
            return self._sampled_interval((1 - probability) / 2)
        width = marginal_quantile(self.family.base, self.family.dim, (1 + probability) / 2)
        deviation = self.standard_deviation
        return np.stack([self.mean - width * deviation, self.mean + width * deviation], axis=1)

    @double_precision
    def _sampled_interval(self, tail: float) -> np.ndarray:
        family: Any = self.family
        return np.asarray(family.marginal_quantiles(self.point, (tail, 1 - tail))).T

    def summary(
        self,
        probability: float = 0.94,
        var_names: str | Sequence[str] | None = None,
        kind: str = "all",
        *,
        unconstrained: bool = False,
    ) -> Summary:
        """Mean, standard deviation and central interval of every parameter, by name.

        In the model's own space where the target is known: a parameter that is a free coordinate itself exactly, what
        is computed from them (a scale, a simplex, a deterministic site) from up to 10,000 draws of a fixed seed.
        Lines under the table say which, how much of the posterior the intervals provably hold, and warn where k-hat
        shows that q misses part of it.

        **Arguments:**

        - `probability`: of the central interval.
        - `var_names`: a name or several, of variables or of single rows, of which all rows are printed; `"~mu"` is
          all but mu, as in ArviZ.
        - `kind`: `"all"`, parameters before deterministics; `"parameters"`; or `"deterministics"`, which the model
          computes of its parameters. Printed in full only if `var_names` asks: many values of one are a line.
        - `unconstrained`: summarise the free coordinates z, all exactly.
        """
        free = Summary(self.names, self.mean, self.standard_deviation, self.interval(probability), probability)
        held = content_note(self, probability)
        if self.target is None:
            return dataclasses.replace(free.select(var_names, kind), notes=(_NO_TARGET, *held))
        if unconstrained:
            found = free.select(var_names, kind)
        else:
            found = summarise_model_space(self, free, var_names=var_names, kind=kind)
        return dataclasses.replace(found, notes=(*found.notes, *held, *tail_warning(self)))

    @property
    def bound(self) -> PosteriorBound | None:
        """Bounds on the distance to the posterior, computed when they are first asked for; None without any."""
        return self.distance() if isinstance(self.distance, Deferred) else self.distance

    def diagnose(self, num_draws: int = 10_000, seed: int = 0) -> ImportanceDiagnostics:
        """How far q is from the posterior: k-hat of the importance weights and its kin, by fresh draws.

        Computed once for each `num_draws` and `seed`. Costs `num_draws` gradients of the log density.
        """
        if self.target is None:
            raise ValueError(
                "the fit does not hold its target: provi.load(path, target=target), or "
                "dataclasses.replace(fit, target=target), gives it one."
            )
        if (num_draws, seed) not in self._found:
            found = importance_diagnostics(self.target, self.family, self.point, num_draws=num_draws, seed=seed)
            self._found[num_draws, seed] = with_advice(self, found)
        return self._found[num_draws, seed]

    def corrected(self, num_draws: int = 40_000, seed: int = 0) -> "CorrectedPosterior":
        """The posterior by importance: draws of q weighted by p/q, the largest weights smoothed.

        A repair where q covers the posterior and is not close to it (k-hat below 0.7): with the moments, draws,
        summary, ArviZ and predictions of q itself, and with k-hat and the effective sample size. Warns where k-hat is
        bad, and a `ValueError` where it is so bad that nothing is corrected. Computed once for each `num_draws` and
        `seed`, with `num_draws` evaluations of the log density.
        """
        from provi.result.corrected import corrected_posterior  # few need it

        if ("corrected", num_draws, seed) not in self._made:
            self._made["corrected", num_draws, seed] = corrected_posterior(self, num_draws, seed)
        return self._made["corrected", num_draws, seed]

    @property
    def latest_diagnosis(self) -> ImportanceDiagnostics | None:
        """What `diagnose` found with the most draws so far; None before its first call."""
        return max(self._found.values(), key=lambda found: found.num_draws, default=None)
