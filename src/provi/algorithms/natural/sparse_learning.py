r"""Kernel, likelihood and inducing points of a sparse Gaussian process, learnt by mini-batches.

In the whitened coordinates the prior of w does not depend on the hyperparameters $\theta$, so that the negative ELBO is
$\sum_n\psi_n(\theta, q) + KL(q\|N(0, I))$ with all of $\theta$ in the first sum. A step draws a batch of B inputs, and
from one evaluation of its features at the present $(q, \theta)$ takes a natural-gradient step of q,

$$P_+ = (1 - \rho)P + \rho(I + \tfrac NB\Phi'\Gamma\Phi),\qquad
(Pm)_+ = (1 - \rho)Pm + \rho\tfrac NB\Phi'(\gamma\mu - \alpha),$$

and an Adam step on $\theta$ along $\tfrac NB\sum_{n \in B}\nabla_\theta\psi_n$, which is unbiased because q has not
seen the batch yet (Hensman et al. 2013; Salimbeni et al. 2018). Nothing of size N x M is formed.
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.scipy.linalg import cho_solve

from provi.algorithms.natural.natural_gradient import scale_from_precision
from provi.core.arguments import check_count, check_positive, device_array, double_precision
from provi.core.compilation import program_jit
from provi.core.tree import all_finite, select
from provi.core.types import Matrix, Scalar, Vector
from provi.families.location_scale import Point
from provi.targets.sparse_gaussian_process import SparseGaussianProcess, inducing_factor, inducing_features

_ADAM: Any = optax.scale_by_adam()


@dataclasses.dataclass(frozen=True)
class LearntProcess:
    """What was learnt.

    - `target`: the process with its new kernel, likelihood and inducing points.
    - `start`: q(w) at the end of the run, for `provi.fit(target, start=start)`.
    - `negative_elbo`: the estimates from the batches, one a step.
    """

    target: SparseGaussianProcess
    start: Point
    negative_elbo: np.ndarray


class Hyperparameters(eqx.Module):
    """Logarithms of what is positive, and the moves of the inducing points in standard deviations of the columns.

    `kernel` and `likelihood` have the structure of the target's own, with logarithms in the place of numbers.
    """

    kernel: Any
    likelihood: Any
    moves: Any


class _State(eqx.Module):
    precision: Matrix
    shift: Vector
    hyper: Hyperparameters
    adam: Any


@double_precision
def learn_sparse_hyperparameters(
    target: SparseGaussianProcess,
    *,
    num_steps: int = 1000,
    batch_size: int = 1024,
    learning_rate: float = 0.03,
    natural_step: float = 0.1,
    learn_inducing: bool = True,
    learn_likelihood: bool = True,
    seed: int = 0,
) -> LearntProcess:
    """Maximise the ELBO over the hyperparameters and q together; no certificate: the ELBO is not convex in them.

    **Arguments:**

    - `batch_size`: rows a step, drawn with replacement.
    - `learning_rate`: of Adam on logarithms and on standardised inducing points; falls linearly to zero.
    - `natural_step`: rho; the first steps average, rho = 1/(k + 1) while that is larger.
    - `learn_inducing`, `learn_likelihood`: whether these change, too.
    """
    check_count("num_steps", num_steps)
    batch_size = min(check_count("batch_size", batch_size), target.num_terms)
    if check_positive("natural_step", natural_step) > 1:
        raise ValueError(f"natural_step must be at most 1, not {natural_step}.")
    rates = check_positive("learning_rate", learning_rate) * np.asarray([1.0, learn_likelihood, learn_inducing])
    hyper = initial_hyperparameters(target)
    keys = jax.random.split(jax.random.key(seed), num_steps)
    # The table of features is of no use here, and need not be passed on.
    bare = eqx.tree_at(lambda t: (t.design, t.offset), target, (None, None), is_leaf=lambda x: x is None)
    state, values = _learn(keys, bare, hyper, rates, np.asarray(natural_step), batch_size)
    kernel, likelihood, inducing = with_hyperparameters(target, state.hyper)
    process = SparseGaussianProcess(
        np.asarray(target.inputs),
        np.asarray(target.response),
        np.asarray(inducing, target.dtype),
        kernel,
        likelihood,
        relative_jitter=float(target.relative_jitter),
        stream=target.design is None,
    )
    start = Point(*_point(state.precision, state.shift))
    return LearntProcess(process, start, np.asarray(values))


def initial_hyperparameters(target: SparseGaussianProcess) -> Hyperparameters:
    """Those of the target itself."""
    arrays = [eqx.filter(part, eqx.is_inexact_array) for part in (target.kernel, target.likelihood)]
    if not all(np.all(np.asarray(leaf) > 0) for leaf in jax.tree.leaves(arrays)):
        raise ValueError("kernel and likelihood must have positive numbers only: their logarithms are learnt.")
    kernel, likelihood = jax.tree.map(lambda leaf: device_array(np.log(leaf)), arrays)
    return Hyperparameters(kernel, likelihood, device_array(np.zeros(target.inducing.shape, target.dtype)))


def with_hyperparameters(target: SparseGaussianProcess, hyper: Hyperparameters) -> tuple[Any, Any, Any]:
    """Kernel, likelihood and inducing points that `hyper` stands for; traced and differentiable."""
    kernel = eqx.combine(jax.tree.map(jnp.exp, hyper.kernel), target.kernel)
    likelihood = eqx.combine(jax.tree.map(jnp.exp, hyper.likelihood), target.likelihood)
    return kernel, likelihood, target.inducing + hyper.moves * jnp.std(target.inputs, axis=0, keepdims=True)


def batch_energy(
    hyper: Hyperparameters, target: SparseGaussianProcess, loc: Vector, root: Matrix, indices: Any
) -> tuple[Scalar, Any]:
    """N/B times the sum of E[-log p(y_n | f_n)] over the batch for q = N(loc, root root'); and what it was made of."""
    kernel, likelihood, inducing = with_hyperparameters(target, hyper)
    factor = inducing_factor(kernel, inducing, target.relative_jitter)
    features, offset = inducing_features(kernel, inducing, factor, target.inputs[indices])
    centre, variance = features @ loc, jnp.sum((features @ root) ** 2, axis=1) + offset
    moments = likelihood.moments(centre, variance, target.response[indices])
    scale = target.num_terms / indices.shape[0]
    return scale * jnp.sum(moments.value), (features, centre, moments)


@program_jit
def _learn(
    keys: Any, target: SparseGaussianProcess, hyper: Hyperparameters, rates: Any, natural_step: Any, size: int
) -> Any:
    """All steps; `rates` are those of the kernel, the likelihood and the inducing points.

    A scan and not a run of `runtime`: the target changes with every step, no member of a family is what is sought, and
    the batch's estimate of each step is a result. There is no trial either, as batches are noisy: only what is not
    finite is left out.
    """
    dim, dtype, num_steps = target.dim, target.dtype, keys.shape[0]
    identity = jnp.eye(dim, dtype=dtype)

    def step(state: _State, inputs: Any) -> Any:
        key, k = inputs
        loc, scale = _point(state.precision, state.shift)
        root = scale.matrix
        indices = jax.random.randint(key, (size,), 0, target.num_terms)
        (energy, (features, centre, moments)), gradient = eqx.filter_value_and_grad(batch_energy, has_aux=True)(
            state.hyper, target, loc, root, indices
        )
        divergence = 0.5 * (jnp.sum(root**2) + jnp.sum(loc**2) - dim) - scale.log_det()
        weight, share = target.num_terms / size, jnp.maximum(natural_step, 1 / (k + 1)).astype(dtype)
        precision = identity + weight * features.T @ (moments.weight[:, None] * features)
        shift = weight * features.T @ (moments.weight * centre - moments.slope)
        updates, adam = _ADAM.update(gradient, state.adam)
        moved = _moved(state.hyper, updates, rates * (1 - k / num_steps))
        new = _State(
            state.precision + share * (precision - state.precision),
            state.shift + share * (shift - state.shift),
            moved,
            adam,
        )
        # A length scale that went too far makes the factor of k(Z, Z) fail: that step is not taken.
        return select(all_finite((new, energy)), new, state), energy + divergence

    start = _State(identity, jnp.zeros(dim, dtype), hyper, _ADAM.init(hyper))
    return jax.lax.scan(step, start, (keys, jnp.arange(num_steps)))


def _moved(hyper: Hyperparameters, updates: Hyperparameters, rates: Any) -> Hyperparameters:
    def part(values: Any, steps: Any, rate: Any) -> Any:
        return jax.tree.map(lambda x, step: x - rate.astype(x.dtype) * step, values, steps)

    return Hyperparameters(
        part(hyper.kernel, updates.kernel, rates[0]),
        part(hyper.likelihood, updates.likelihood, rates[1]),
        part(hyper.moves, updates.moves, rates[2]),
    )


def _point(precision: Matrix, shift: Vector) -> tuple[Vector, Any]:
    scale = scale_from_precision(precision, "triangular")
    return cho_solve((jnp.linalg.cholesky(precision), True), shift), scale
