r"""Hyperparameters of a Gaussian process by maximum ELBO: L-BFGS on the value function.

That is the least negative ELBO, $F^*(\theta) = \min_{a, s}F(a, s; \theta)$, $\theta$ the logarithms of the kernel's
numbers and, if wanted, of the likelihood's and of the jitter. By the envelope theorem (Danskin) its gradient is the
partial derivative of F at the minimiser, with (a, s) held fixed. With $\alpha, \gamma$ the mean slopes and curvatures
of the likelihood, $C = (I + KS)^{-1}$ and $P = (K + S^{-1})^{-1}$,

$$\partial F/\partial K = \tfrac12(a\alpha' + \alpha a' + aa' + P + C'\mathrm{diag}(\gamma - s)C),$$

at the minimiser, where $\alpha = -a$ and $\gamma = s$, $\tfrac12(P - aa')$; the kernel's own derivative does the rest.
A gap of $\delta$ left by the inner fit is an error of $\delta$ in the value and of the order $\sqrt\delta$ in the
gradient.

The value function is not convex: a local optimum is found, and no certificate covers the choice.

The outer loop is SciPy's, on the host; each evaluation is one compiled program whose inner loop takes the steps of
`DualNaturalGradient`, not through `runtime`, since the step, its end and the derivative must be one program to be
called some hundred times at milliseconds each.
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve
from scipy.optimize import minimize

from provi.algorithms.natural.dual_natural_gradient import DualNaturalGradient, evaluate
from provi.algorithms.natural.trial import gap_estimate
from provi.core.arguments import check_count, check_positive, device_array, double_precision
from provi.core.interpreter import instant_quick_jit
from provi.core.types import Scalar
from provi.families.dual_gaussian import DualGaussian, DualPoint, dual_gaussian
from provi.families.site_solver import SiteFactor, covariance_root, factorise
from provi.runtime.record import ProgressBar
from provi.structures.dual import site_start
from provi.targets.gaussian_process import GaussianProcess, kernel_matrix
from provi.targets.likelihoods import UserLikelihood

_MOST_INNER_STEPS, _SMALLEST_STEP = 200, 1e-10

_RESTART_SPREAD = 2.0
_PENALTY = 1e3


class Learnt(eqx.Module):
    """Which numbers of (kernel, likelihood, jitter) are learnt: a tree of True and False for each."""

    kernel: Any
    likelihood: Any
    jitter: Any


def learnt_numbers(target: GaussianProcess, likelihood: bool = True, jitter: bool = False) -> Learnt:
    """Every number of the kernel, and if wanted those of the likelihood and the jitter."""
    likelihood = likelihood and not isinstance(target.likelihood, UserLikelihood)
    return Learnt(
        jax.tree.map(eqx.is_inexact_array, target.kernel),
        jax.tree.map(lambda leaf: likelihood and eqx.is_inexact_array(leaf), target.likelihood),
        jitter,
    )


def _numbers(target: GaussianProcess) -> Learnt:
    """Kernel, likelihood and jitter in the structure of `Learnt`."""
    return Learnt(target.kernel, target.likelihood, target.jitter)


def log_hyperparameters(target: GaussianProcess, learnt: Learnt) -> np.ndarray:
    """The logarithms of the learnt numbers, as one vector."""
    leaves = jax.tree.leaves(eqx.filter(_numbers(target), learnt))
    values = np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in leaves]) if leaves else np.zeros(0)
    if len(values) == 0:
        raise ValueError("There is no hyperparameter to learn: the kernel has no numbers.")
    if not (values > 0).all():
        raise ValueError("Every hyperparameter must be positive to be learnt: start from jitter=1e-6, not from 0.")
    return np.log(values)


def with_log_hyperparameters(target: GaussianProcess, vector: Any, learnt: Learnt) -> GaussianProcess:
    """The process whose learnt numbers have these logarithms; traced and differentiable."""
    changing, fixed = eqx.partition(_numbers(target), learnt)
    leaves, structure = jax.tree.flatten(changing)
    ends = np.cumsum([leaf.size for leaf in leaves])[:-1]
    pieces = jnp.split(jnp.exp(vector), ends)
    new = [piece.reshape(leaf.shape).astype(leaf.dtype) for piece, leaf in zip(pieces, leaves, strict=True)]
    numbers = eqx.combine(jax.tree.unflatten(structure, new), fixed)
    gram = kernel_matrix(numbers.kernel, target.inputs, numbers.jitter)
    parts = (numbers.kernel, numbers.likelihood, numbers.jitter, gram)
    return eqx.tree_at(lambda t: (t.kernel, t.likelihood, t.jitter, t.gram), target, parts)


@instant_quick_jit
def value_and_gradient(
    vector: Any, target: GaussianProcess, learnt: Learnt, start: DualPoint, tol: Any
) -> tuple[Scalar, Any, DualPoint]:
    """F* and its gradient at the logarithms `vector`, and the (a, s) of the inner fit; one compiled program.

    The inner fit is a loop of its own, over the steps of `DualNaturalGradient`: it ends within the program, by a
    tolerance, where a run of `runtime` would come back to the host after every step.
    """
    process = with_log_hyperparameters(target, vector, learnt)
    family = _family(process)
    algorithm, key = DualNaturalGradient(), jax.random.key(0)  # it draws nothing

    def unfinished(state: Any) -> Any:
        ended = (state.stage == algorithm.settled) & (gap_estimate(state.gradient_norms) <= tol)
        return ~ended & (state.step < _MOST_INNER_STEPS) & (state.step_size > _SMALLEST_STEP)

    def advance(state: Any) -> Any:
        return algorithm.step(key, state, process, family, jnp.ones_like(state.step_size))[0]

    state = jax.lax.while_loop(unfinished, advance, algorithm.init(start))
    gradient = _partial_gradient(vector, target, learnt, state.point)
    return state.evaluation.negative_elbo, gradient, state.point


def _partial_gradient(vector: Any, target: GaussianProcess, learnt: Learnt, point: DualPoint) -> Any:
    """The derivative of F(a, s; theta) in theta at any (a, s), by the formula above."""
    (gram, _), pull_back = jax.vjp(lambda v: _matrix_and_numbers(v, target, learnt), vector)
    process = with_log_hyperparameters(target, vector, learnt)
    family = _family(process)
    factor = factorise(gram, point.site_precision, family.root)
    at = evaluate(process, family, point, factor)
    mean = family.site_mean + at.deviation

    def likelihood_value(likelihood: Any) -> Scalar:
        return jnp.sum(likelihood.moments(mean, at.variance, process.response).value)

    numbers = eqx.filter_grad(likelihood_value)(process.likelihood)
    return pull_back((_gram_derivative(gram, factor, point, at.slope, at.weight), numbers))[0]


def _matrix_and_numbers(vector: Any, target: GaussianProcess, learnt: Learnt) -> tuple[Any, Any]:
    """What F depends on theta through: K, and the likelihood's numbers."""
    process = with_log_hyperparameters(target, vector, learnt)
    return process.gram, eqx.filter(process.likelihood, eqx.is_inexact_array)


def _gram_derivative(gram: Any, factor: SiteFactor, point: DualPoint, slope: Any, weight: Any) -> Any:
    """dF/dK for fixed (a, s)."""
    dual, precision = point.dual_mean, point.site_precision
    identity = jnp.eye(len(dual), dtype=gram.dtype)
    squared = factor.half.T @ factor.half
    covariance = squared if factor.whitened else gram - squared
    if factor.whitened:
        inner = jnp.diag(precision) - precision[:, None] * covariance * precision[None, :]
    else:
        root = jnp.sqrt(precision)
        inner = root[:, None] * cho_solve((factor.lower, True), jnp.diag(root))
    left = identity - covariance * precision[None, :]
    mixed = jnp.outer(dual, slope)
    return 0.5 * (mixed + mixed.T + jnp.outer(dual, dual) + inner + left.T @ ((weight - precision)[:, None] * left))


def _family(process: GaussianProcess) -> DualGaussian:
    """`dual_gaussian(process)`, traced."""
    root = None if process.likelihood.log_concave else covariance_root(process.gram)
    return DualGaussian(process.gram, process.mean * jnp.ones(process.dim, process.dtype), root=root)


@dataclasses.dataclass(frozen=True)
class LearntHyperparameters:
    """What was learnt.

    - `target`: the process with the best hyperparameters found; `start`: its (a, s), for `provi.fit(target, start=)`.
    - `elbo`: there; `gradient`: of the negative ELBO in the logarithms.
    - `num_evaluations`: of F*, over all starts; `converged`: whether L-BFGS says so of the best of them.
    """

    target: GaussianProcess
    start: DualPoint
    elbo: float
    gradient: np.ndarray
    num_evaluations: int
    converged: bool
    message: str


@double_precision
def learn_hyperparameters(
    target: GaussianProcess,
    *,
    learn_likelihood: bool = True,
    learn_jitter: bool = False,
    start: DualPoint | None = None,
    inner_tol: float = 1e-6,
    max_evaluations: int = 200,
    num_restarts: int = 0,
    bounds: tuple[float, float] = (1e-5, 1e5),
    seed: int = 0,
    progress: bool | None = False,
) -> LearntHyperparameters:
    """Maximise the ELBO over the hyperparameters.

    **Arguments:**

    - `learn_likelihood`: also the likelihood's numbers (noise scale, degrees of freedom, dispersion). A
      `UserLikelihood` has none: its `width` is a setting of the quadrature. - `learn_jitter`: also the jitter.
    - `inner_tol`: the inner fits, each from the (a, s) of the last, end at this estimated gap in nats.
    - `num_restarts`: further starts, `target`'s hyperparameters times exp(2 N(0, 1)); the best end is kept.
    - `bounds`: of every hyperparameter; widened to hold the first start.

    An evaluation that is not finite counts as infinitely bad: L-BFGS takes a shorter step.
    """
    if not 0 < bounds[0] < bounds[1] < np.inf:
        raise ValueError(f"bounds must be two positive numbers, the smaller one first, not {bounds}.")
    learnt = learnt_numbers(target, learn_likelihood, learn_jitter)
    first = log_hyperparameters(target, learnt)
    limits = np.asarray([(min(np.log(bounds[0]), x), max(np.log(bounds[1]), x)) for x in first])
    restarts = check_count("num_restarts", num_restarts, minimum=0)
    spread = _RESTART_SPREAD * np.random.default_rng(seed).normal(size=(restarts, len(first)))
    vectors = [first, *np.clip(first + spread, *limits.T)]
    evaluations = check_count("max_evaluations", max_evaluations)
    with ProgressBar(evaluations * len(vectors), progress) as bar:
        objective = _Objective(target, learnt, start, check_positive("inner_tol", inner_tol), bar)
        ends = [_descend(objective, vector, limits, evaluations) for vector in vectors]
    value, vector, point, gradient = objective.best
    if not np.isfinite(value):
        raise ValueError(
            "The ELBO is not finite at the first hyperparameters: scale X and y, or start from a smaller amplitude."
        )
    process, end = with_log_hyperparameters(target, jnp.asarray(vector), learnt), min(ends, key=lambda end: end.fun)
    return LearntHyperparameters(
        process, point, -value, gradient, objective.num_evaluations, bool(end.success), str(end.message)
    )


def _descend(objective: "_Objective", vector: np.ndarray, limits: np.ndarray, evaluations: int) -> Any:
    """L-BFGS from one start."""
    objective.warm = objective.start
    options = {"maxfun": evaluations, "maxiter": evaluations, "ftol": 1e-10, "gtol": 1e-4}
    return minimize(objective, vector, jac=True, method="L-BFGS-B", bounds=limits, options=options)


class _Objective:
    """F* and its gradient for SciPy; remembers the best evaluation, and (a, s) of the last good one."""

    def __init__(
        self, target: GaussianProcess, learnt: Learnt, start: DualPoint | None, tol: float, bar: ProgressBar
    ) -> None:
        self.target, self.learnt, self.tol, self.bar = target, learnt, device_array(np.asarray(tol, target.dtype)), bar
        self.first = site_start(target, dual_gaussian(target))
        self.start = self.first if start is None else start
        self.warm, self.num_evaluations = self.start, 0
        self.best: tuple[float, Any, Any, Any] = (np.inf, None, None, None)

    def __call__(self, vector: np.ndarray) -> tuple[float, np.ndarray]:
        for start in (self.warm, self.first):
            value, gradient, point = self.evaluate(vector, start)
            if np.isfinite(value):
                break
        self.num_evaluations += 1
        self.bar.update(self.num_evaluations, -np.fmin(value, self.best[0]))
        if not (np.isfinite(value) and np.isfinite(gradient).all()):
            # The line search interpolates: a large finite value and no slope make it take a part of the step.
            height = abs(self.best[0]) if np.isfinite(self.best[0]) else 0.0
            return height + _PENALTY * (1 + height), np.zeros_like(vector)
        self.warm = point
        if value < self.best[0]:
            self.best = (value, vector.copy(), point, gradient)
        return value, gradient

    def evaluate(self, vector: np.ndarray, start: DualPoint) -> tuple[float, np.ndarray, DualPoint]:
        value, gradient, point = value_and_gradient(jnp.asarray(vector), self.target, self.learnt, start, self.tol)
        return float(value), np.asarray(gradient, np.float64), point
