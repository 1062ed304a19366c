r"""The problem of paper 004's Figures 1 to 3, the settings of its four methods (Appendix C), and their runs.

Logistic regression with design U[0, 1], labels Bernoulli(1/2) and prior precision alpha. Two ways to read the
appendix are kept side by side:

- "corrected": the smoothness $L = \alpha + \sigma_{\max}(U)^2/4$ and the dimension factor
  $\rho = (d+2)\kappa/3$ of `provi.theory.noise`;
- "as printed": $L = \alpha + \sigma_{\max}(U)/4$ and $d - 1 + \kappa$.
"""

import dataclasses
import math
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from provi.algorithms import MPSGD
from provi.algorithms.base import without_guarantee
from provi.diagnostics.exact import exact_negative_elbo
from provi.families.bases import AbstractBase
from provi.families.location_scale import LocationScale
from provi.geometry.operators import BlockPreconditioner
from provi.runtime.loop import Carry, advance, estimate_elbo, initial_carry
from provi.schedules.averaging import GeometricAverage
from provi.targets.regressions import LogisticRegression
from provi.theory import mpsgd, noise
from provi_lab.common.curves import Curve

READINGS = ("corrected", "as printed")
METHODS = ("PSGD", "scaled PSGD", "MPSGD", "scaled MPSGD")


@dataclasses.dataclass(frozen=True)
class Problem:
    """One of the three figures; `num_seeds` runs of each method, differing in their Monte-Carlo draws."""

    name: str
    base: AbstractBase
    num_data: int
    precision: float
    dim: int = 200
    budget: int = 5000
    num_seeds: int = 2

    def small(self) -> "Problem":
        """The same in a few seconds, to try it out."""
        return dataclasses.replace(self, dim=20, num_data=self.num_data // 10, budget=500, num_seeds=2)

    def family(self) -> LocationScale:
        return LocationScale(self.dim, self.base, "symmetric")

    def target(self, seed: int) -> LogisticRegression:
        generator = np.random.default_rng(seed)
        design = generator.random((self.num_data, self.dim))
        labels = generator.integers(0, 2, self.num_data)
        return LogisticRegression(design, labels, prior_scale=1 / math.sqrt(self.precision))

    def smoothness(self, target: LogisticRegression, reading: str) -> float:
        """L, from the largest singular value of the design or from its square."""
        largest = float(np.linalg.norm(np.asarray(target.design), 2))
        return self.precision + (largest if reading == "as printed" else largest**2) / 4

    def factors(self, reading: str) -> tuple[float, float]:
        """The dimension factors of E|g_C|^2 and of E|g|^2: (rho, 1 + rho), or as printed."""
        kurtosis = float(self.base.kurtosis(self.dim))
        rho = self.dim - 1 + kurtosis if reading == "as printed" else noise.radial_factor(self.dim, kurtosis)
        return rho, 1 + rho


@dataclasses.dataclass(frozen=True)
class Setting:
    """One method in one reading: `num_draws * num_steps` is at most the budget."""

    reading: str
    method: str
    smoothness: float
    step_size: float
    num_draws: int
    num_steps: int
    scale_factor: float
    noise_slope: float

    @property
    def label(self) -> str:
        return f"{self.method}, {self.reading}"

    def algorithm(self) -> MPSGD:
        """The method; it carries Theorem 6's average along, but the figures follow the iterates."""
        factor = mpsgd.averaging_factor(self.step_size, self.num_draws, self.noise_slope)
        return MPSGD(
            step_size=self.step_size,
            num_draws=self.num_draws,
            preconditioner=BlockPreconditioner(1.0, self.scale_factor),
            averaging=GeometricAverage(factor, of="before"),
            smallest_scale=1 / math.sqrt(self.smoothness),
        )


def settings(problem: Problem, target: LogisticRegression, reading: str) -> tuple[Setting, ...]:
    """Appendix C's four methods: one draw or a mini-batch, with and without the preconditioner."""
    smoothness = problem.smoothness(target, reading)
    rho, slope_factor = problem.factors(reading)
    # The appendix takes d - 1 + kappa in the step of PSGD; the minimiser of Theorem 6's bound has 1 + rho.
    single = rho if reading == "as printed" else slope_factor
    largest = mpsgd.largest_step_size(smoothness)
    rows = []
    for method in METHODS:
        scaled, minibatch = "scaled" in method, "MPSGD" in method
        draws = math.ceil(math.sqrt((1 if scaled else slope_factor) * problem.budget)) if minibatch else 1
        shrink = 1.0 if minibatch else math.sqrt((1 if scaled else single) * problem.budget)
        rows.append(
            Setting(
                reading=reading,
                method=method,
                smoothness=smoothness,
                step_size=largest / shrink,
                num_draws=draws,
                num_steps=problem.budget // draws,
                scale_factor=1 / (2 * rho) if scaled else 1.0,
                noise_slope=4 * smoothness**2 * (1 if scaled else slope_factor),
            )
        )
    return tuple(rows)


ELBO_DRAWS = 100
"""Draws behind each negative ELBO, as in the paper's figures."""

_NO_LIMIT = 2**62

_negative_elbo = eqx.filter_jit(exact_negative_elbo)


def late_gap(curve: Curve) -> float:
    """The mean gap over the last quarter of the gradients: the iterates of a run that is too bold swing."""
    return float(curve["gap"][curve["gradients"] >= 0.75 * curve["gradients"][-1]].mean())


def measure(
    setting: Setting,
    target: LogisticRegression,
    family: LocationScale,
    best: float,
    seed: int,
    num_records: int = 24,
) -> Curve:
    """Run `setting` from (0, I/sqrt(L)) and record gap, negative ELBO and CPU time against the gradients spent.

    CPU time is the process's, over the compiled loop only: neither compilation nor measurement counts.

    **Returns:** the run, the last record at its end; as its `more` the `setting`, the `averaged_gap` of Theorem 6's
    average, and the number of `rejected_steps`.
    """
    algorithm = without_guarantee(setting.algorithm().resolve(target, family))
    start = family.point(np.zeros(family.dim), setting.smoothness**-0.5)
    key, record_key = jax.random.split(jax.random.key(seed))
    carry: Carry = initial_carry(algorithm, start)
    parts = (key, algorithm, target, family)
    advance(*parts, carry, jnp.asarray(1), jnp.asarray(_NO_LIMIT))  # compiles; its result is not used
    rows, spent = [], 0.0
    for step in _records(setting.num_steps, num_records):
        before = time.process_time()
        carry = advance(*parts, carry, jnp.asarray(step), jnp.asarray(_NO_LIMIT))
        jax.block_until_ready(carry)
        spent += time.process_time() - before
        point = carry.state.point
        elbo, _ = estimate_elbo(jax.random.fold_in(record_key, step), target, family, point, ELBO_DRAWS)
        gap = float(_negative_elbo(target, family, point)) - best
        rows.append((step, step * setting.num_draws, spent, gap, -float(elbo)))
    average = algorithm.output(carry.state)
    averaged_gap = float(_negative_elbo(target, family, average)) - best
    columns = (np.array(column) for column in zip(*rows, strict=True))
    return Curve(
        {"reading": setting.reading, "method": setting.method, "seed": seed},
        dict(zip(("step", "gradients", "cpu_seconds", "gap", "negative_elbo"), columns, strict=True)),
        {"setting": setting, "averaged_gap": averaged_gap, "rejected_steps": int(carry.health.rejected)},
    )


def _records(num_steps: int, num_records: int) -> list[int]:
    """Step numbers from 0 to the last, evenly spaced, with a few early ones for short times."""
    even = np.linspace(0, num_steps, min(num_records, num_steps + 1))
    early = [step for step in (1, 2, 5, 10, 25, 50) if step < num_steps]
    return sorted({int(round(step)) for step in (*even, *early)})
