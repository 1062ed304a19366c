r"""Trials that prove their own descent, and Anderson's acceleration of them: the core of the exact natural gradients.

**The step.** $F = f + h$ with f the likelihood part and $h = KL(\cdot\|p)$; mirror descent in the mean parameters
$\mu$ of a Gaussian with h treated exactly takes
$$q_+ = \arg\min_{q'}\ \phi(q'),\qquad \phi(q') = \langle\nabla f(q), \mu'\rangle + h(q') + KL(q'\|q)/\beta .$$
In natural parameters x it is the damped fixed-point iteration $x_+ = x + \rho(G(x) - x)$, $\rho = \beta/(1 + \beta)$,
with G(x) those of the prior times the Gaussian sites that match the likelihood at q.

**What it promises.** $\phi$ is $1 + 1/\beta$ times the negative entropy, plus something linear, so
$\phi(q) = \phi(q_+) + (1 + 1/\beta)KL(q\|q_+)$. Where f is smooth relative to the divergence along the step,
$f(q_+) \le f(q) + \langle\nabla f(q), \mu_+ - \mu\rangle + KL(q_+\|q)/\beta$, the two give
$$F(q) - F(q_+) \ge (1 + 1/\beta)KL(q\|q_+).$$

**Accept and reject.** The smoothness is not known. So every step is a *trial*: it is accepted when a share of that
descent is seen, half of it (`plain_share`); else the old state is kept and beta cut (`StepRule`). F falls at every
accepted step, and $\sum_k(1 + 1/\beta_k)KL(q_k\|q_{k+1}) \le 2(F_0 - F^*)$: the steps tend to zero. The first trials of
a run evaluate the start, which moves nothing and is accepted if it is finite.

**Acceleration** (`Memory`). The last residuals $R_i = R(x_i)$, $R = G - x$, are combined so that the least-squares
residual $|R - \sum_i\theta_i(R - R_i)|_M$ is smallest; the step is
$x_+ = x + \rho R - \sum_i\theta_i[(x - x_i) + \rho(R - R_i)]$. On a linear map it is GMRES in another guise. A mixed
step promises nothing: it is accepted when F falls by a tenth of the divergence. A failure ends the memory, so that the
next trial is a plain step, which descends if it is short enough.

Other natural gradients decide otherwise, and say so: `StochasticNaturalGradient` (a test on noisy values, one step
late), `PGSVI` (a record, once a pass), `SiteTable` and `learn_sparse_hyperparameters` (no trial).
"""

import dataclasses
import functools
import operator
from abc import abstractmethod
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from equinox import AbstractClassVar

from provi.algorithms.base import AbstractAlgorithm, Progress, StepInfo
from provi.core.arguments import device_array
from provi.core.tree import select, squared_norm
from provi.core.types import Count, Flag, Scalar, Vector

MIXED_SHARE = 0.1
"""Of the divergence, by which F must fall in a mixed step."""

_LEAST_SHARE = 0.1


class StepRule(NamedTuple):
    """How a step size follows its trials: times `growth`, up to `largest`, or divided by `cut`."""

    growth: float
    largest: Any
    cut: float

    def grown(self, step_size: Scalar) -> Scalar:
        """After a success."""
        return jnp.minimum(self.growth * step_size, self.largest)

    def cut_back(self, step_size: Scalar) -> Scalar:
        """After a failure."""
        return step_size / self.cut


def step_share(beta: Scalar) -> Scalar:
    r"""$\rho = 1 - r = \beta/(1 + \beta)$: the part of the way to G(x)."""
    return beta / (1 + beta)


def plain_share(beta: Scalar) -> Scalar:
    """Half of the descent that a plain step promises, over the divergence KL(q || q_+)."""
    return 0.5 * (1 + 1 / beta)


def needed_share(beta: Scalar, mixed: Flag) -> Scalar:
    """The descent that a trial must show, over the divergence."""
    return jnp.where(mixed, MIXED_SHARE, plain_share(beta))


def rounding_slack(dtype: Any, *sizes: Scalar) -> Scalar:
    """What rounding may hide in a sum of terms of these sizes.

    It decides between equal values at the end of a run, and must not stop the last steps.
    """
    return 64 * jnp.finfo(dtype).eps * functools.reduce(operator.add, (jnp.abs(size) for size in sizes))


def not_overshot(wanted: Vector, here: Vector, goal: Vector) -> Vector:
    """Site precisions of a mixed step, which may overshoot; plain ones stay between s = `here` and gamma = `goal`."""
    return jnp.maximum(wanted, _LEAST_SHARE * jnp.minimum(here, goal))


def gap_estimate(norms: Any) -> Any:
    """Half the sum of the squared whitened gradients: the gap to second order. Traced numbers or the host's."""
    return 0.5 * (norms[0] ** 2 + norms[1] ** 2)


class Trial(NamedTuple):
    """What came of one trial. Step sizes and numbers of both states are still those before it.

    - `better`: the state if it is accepted; `same`: the old one, with what the method changes after a failure.
    - `negative_elbo`: there. - `enough`: whether it is as much lower as was promised.
    """

    better: Any
    same: Any
    negative_elbo: Scalar
    enough: Flag


class AbstractTrialDescent(AbstractAlgorithm):
    """Descent by trials, see the module. A member says what a trial is and when its descent is enough.

    Its states have, beside `point` and `step`: `evaluation`, that of the accepted point, with a `negative_elbo`;
    `step_size`, beta of the next trial; `stage`, which counts up to `settled`; `gradient_norms`, those of the whitened
    gradients in the mean and in the covariance.
    """

    settled: AbstractClassVar[int]
    """The stage from which on there is an evaluation to descend from."""

    branches: ClassVar[bool] = False
    """Whether the two outcomes are branches of a conditional, not a selection leaf by leaf: XLA would compute the
    decision anew for every leaf of the second, and compile as many copies of it."""

    few_steps: ClassVar[bool] = True

    quantities: ClassVar[tuple[str, str, str]] = (
        "the whitened gradient of the mean",
        "the whitened gradient of the covariance",
        "the new parameters",
    )

    @abstractmethod
    def step_rule(self) -> StepRule:
        """How beta follows the trials."""

    @abstractmethod
    def attempt(self, state: Any, target: Any, family: Any, beta: Scalar, moving: Flag) -> Trial:
        """The trial with step size `beta`; nothing is to move while `moving` does not hold."""

    def step(self, key, state, target, family, shrink):
        del key
        beta, moving = state.step_size * shrink, state.stage == self.settled
        trial = self.attempt(state, target, family, beta, moving)
        accepted = jnp.isfinite(trial.negative_elbo) & (~moving | trial.enough)
        rule, count = self.step_rule(), state.step + 1
        grown = jnp.where(moving, rule.grown(state.step_size), state.step_size)
        better = dataclasses.replace(trial.better, step_size=grown, step=count)
        same = dataclasses.replace(trial.same, step_size=rule.cut_back(state.step_size), step=count)
        if self.branches:
            chosen = jax.lax.cond(accepted, lambda: better, lambda: same)
        else:
            chosen = select(accepted, better, same)
        norms = (*chosen.gradient_norms, jnp.sqrt(squared_norm(chosen.point)))
        return chosen, StepInfo(beta, jnp.asarray(1, jnp.int32), norms)

    def cost_at(self, step):
        """One pass over the data, or one factorisation, whether the trial is accepted or not."""
        del step
        return np.asarray(1, np.int32)

    def output(self, state):
        return state.point

    def elbo_error(self, state: Any) -> Any:
        """The standard error of the state's ELBO: none, unless a method says otherwise."""
        del state
        return 0.0

    def recorded_elbo(self, state):
        known = int(state.stage) == self.settled
        return -np.asarray(state.evaluation.negative_elbo), self.elbo_error(state) if known else np.nan

    def progress(self, state):
        if int(state.stage) < self.settled:
            return None
        norms = [float(norm) for norm in state.gradient_norms]
        return Progress(gap_estimate(norms), float(state.evaluation.negative_elbo))


MEMORY = 5
_REGULARISATION = 1e-10


class Memory(eqx.Module):
    """The last points and residuals, newest last, (MEMORY, size) each; `count` of them are real."""

    points: Any
    residuals: Any
    count: Count

    @staticmethod
    def empty(size: int, dtype: Any) -> "Memory":
        """Nothing remembered; made on the host."""
        zero = device_array(np.zeros((MEMORY, size), dtype))
        return Memory(zero, zero, device_array(np.asarray(0)))

    def remember(self, point: Vector, residual: Vector, real: Any = True) -> "Memory":
        """With one more, the oldest forgotten; nothing is remembered after one that is not `real`."""
        return Memory(
            jnp.concatenate([self.points[1:], point[None, :]]),
            jnp.concatenate([self.residuals[1:], residual[None, :]]),
            jnp.where(real, jnp.minimum(self.count + 1, MEMORY), 0),
        )

    def forget(self) -> "Memory":
        """Nothing remembered."""
        return Memory(self.points, self.residuals, jnp.zeros_like(self.count))

    def mixed(self, point: Vector, residual: Vector, share: Scalar, metric: Vector) -> Vector:
        """The accelerated step from `point`; the plain one when nothing is remembered.

        `metric`: M is the diagonal matrix of its squares.
        """
        real = jnp.arange(MEMORY) >= MEMORY - self.count
        steps = jnp.where(real[:, None], point[None, :] - self.points, 0)
        changes = jnp.where(real[:, None], residual[None, :] - self.residuals, 0)
        scaled = metric[None, :] * changes
        normal = scaled @ scaled.T
        ridge = _REGULARISATION * jnp.trace(normal) + ~real
        shares = jax.scipy.linalg.solve(normal + jnp.diag(ridge), scaled @ (metric * residual), assume_a="pos")
        return point + share * residual - shares @ (steps + share * changes)
