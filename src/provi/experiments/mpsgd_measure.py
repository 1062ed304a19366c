"""Runs one method of Figures 1 to 3 and measures it along the way, off the clock."""

import dataclasses
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from provi.algorithms.base import without_guarantee
from provi.diagnostics.exact import exact_negative_elbo
from provi.experiments.mpsgd_problem import Setting
from provi.experiments.report import Row
from provi.families.location_scale import LocationScale
from provi.runtime.loop import Carry, advance, estimate_elbo, initial_carry
from provi.targets.regressions import LogisticRegression

ELBO_DRAWS = 100
"""Draws behind each negative ELBO, as in the paper's figures."""

_NO_LIMIT = 2**62

_negative_elbo = eqx.filter_jit(exact_negative_elbo)


@dataclasses.dataclass(frozen=True)
class Curve:
    """One run: the recorded rows, the last of them at the end, and the gap of Theorem 6's average."""

    setting: Setting
    seed: int
    rows: tuple[Row, ...]
    averaged_gap: float
    rejected_steps: int

    def column(self, name: str) -> np.ndarray:
        return np.array([row[name] for row in self.rows])

    @property
    def final_gap(self) -> float:
        return float(self.rows[-1]["gap"])

    @property
    def late_gap(self) -> float:
        """The mean gap over the last quarter of the gradients: the iterates of a run that is too bold swing."""
        gradients = self.column("gradients")
        return float(self.column("gap")[gradients >= 0.75 * gradients[-1]].mean())

    @property
    def cpu_seconds(self) -> float:
        return float(self.rows[-1]["cpu_seconds"])


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
        rows.append(
            {
                "reading": setting.reading,
                "method": setting.method,
                "seed": seed,
                "step": step,
                "gradients": step * setting.num_draws,
                "cpu_seconds": spent,
                "gap": float(_negative_elbo(target, family, point)) - best,
                "negative_elbo": -float(elbo),
            }
        )
    average = algorithm.output(carry.state)
    averaged_gap = float(_negative_elbo(target, family, average)) - best
    return Curve(setting, seed, tuple(rows), averaged_gap, int(carry.health.rejected))


def _records(num_steps: int, num_records: int) -> list[int]:
    """Step numbers from 0 to the last, evenly spaced, with a few early ones for short times."""
    even = np.linspace(0, num_steps, min(num_records, num_steps + 1))
    early = [step for step in (1, 2, 5, 10, 25, 50) if step < num_steps]
    return sorted({int(round(step)) for step in (*even, *early)})
