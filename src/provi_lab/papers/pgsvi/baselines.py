r"""SGD and the adaptive methods on the mean and a triangular factor of the covariance, with the papers' updates.

q = N(m, CC'), C lower triangular, its diagonal stored as logarithms (as the authors' code does). The gradient of the
negative ELBO from a batch of M data, the factor N/M in it, exact expectations:

$$g_m = K^{-1}m + \hat\alpha, \qquad
  g_C = \mathrm{tril}(K^{-1}C + \mathrm{diag}(\hat\gamma)C) - \mathrm{diag}(1/C_{nn}).$$

The authors' baselines lack the factor N/M; so does the unweighted gradient here, which is that of another objective,
with M/N of the likelihood.

Whitened: $m = Lw$, $C = LR$ with $K = LL'$, so that the prior's part is $w$ and $R$ themselves.
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from provi.core.types import Indices, Matrix, RandomKey, Vector
from provi.schedules.sampling import ReshuffledSampling
from provi_lab.papers.pgsvi.problem import Factors, Judgement, Problem, Setting, judge_root

EPSILON = 1e-8
"""Where the papers write epsilon; the value is the authors' code's."""

_BLOCKS = 8


class Factored(eqx.Module):
    """(m, C), or (w, R) in whitened coordinates; the diagonal of `log_root` holds logarithms."""

    mean: Vector
    log_root: Matrix

    @property
    def root(self) -> Matrix:
        """C itself."""
        diagonal = jnp.diagonal(self.log_root)
        return jnp.tril(self.log_root, -1) + jnp.diag(jnp.exp(diagonal))


def lower_product(left: Matrix, lower: Matrix) -> Matrix:
    """tril(AB) for a lower triangular B: block columns, each from its first row on, at 0.4 of the cost."""
    size = left.shape[0]
    edges = [round(k * size / _BLOCKS) for k in range(_BLOCKS + 1)]
    product = jnp.zeros_like(lower)
    for first, last in zip(edges, edges[1:], strict=False):
        product = product.at[first:, first:last].set(left[first:, first:] @ lower[first:, first:last])
    return jnp.tril(product)


@dataclasses.dataclass(frozen=True)
class Form:
    """Of a baseline: in which coordinates it moves, and whether its gradient has the factor N/M."""

    whitened: bool = False
    weighted: bool = True


PLAIN = Form()


def gradient(problem: Problem, parts: Factors, point: Factored, indices: Indices, form: Form = PLAIN) -> Factored:
    """The gradient above from the data `indices`, in the coordinates of `point`."""
    whitened = form.whitened
    target, root = problem.target, point.root
    rows = parts.lower[indices]
    seen = rows @ root if whitened else root[indices]
    mean = rows @ point.mean if whitened else point.mean[indices]
    moments = target.likelihood.moments(mean, jnp.sum(seen**2, axis=1), target.response[indices])
    scale = target.num_terms / indices.shape[0] if form.weighted else 1.0
    slopes, bends = scale * moments.slope, scale * moments.weight[:, None] * seen
    if whitened:
        slope, curve = point.mean + rows.T @ slopes, root + rows.T @ bends
    else:
        slope = parts.inverse @ point.mean + jnp.zeros_like(point.mean).at[indices].add(slopes)
        curve = lower_product(parts.inverse, root).at[indices].add(bends)
    curve = jnp.tril(curve)
    diagonal = jnp.diagonal(curve) * jnp.diagonal(root) - 1
    return Factored(slope, jnp.tril(curve, -1) + jnp.diag(diagonal))


@eqx.filter_jit
def descend(
    rule: optax.GradientTransformation,
    problem: Problem,
    parts: Factors,
    carries: Any,
    keys: Any,
    first: Any,
    num: int,
    batch: int,
    form: Form,
) -> Any:
    """`num` steps from each of `carries`, stacked (point, state of the rule); the first is number `first`."""
    return jax.vmap(lambda carry, key: _descend_one(rule, problem, parts, carry, key, first, num, batch, form))(
        carries, keys
    )


def _descend_one(
    rule: optax.GradientTransformation,
    problem: Problem,
    parts: Factors,
    carry: Any,
    key: RandomKey,
    first: Any,
    num: int,
    batch: int,
    form: Form,
) -> Any:
    one, terms = ReshuffledSampling(1), problem.target.num_terms
    whole = terms // batch

    def step(carry: Any, k: Any) -> Any:
        point, state = carry
        # Whole batches only: a pass begins anew every `whole` steps.
        place = (k // whole) * terms + (k % whole) * batch
        indices = jax.vmap(lambda i: one.indices(key, i, terms)[0])(place + jnp.arange(batch))
        slope: Any = gradient(problem, parts, point, indices, form)
        updates, state = rule.update(slope, state, point)
        return (optax.apply_updates(point, updates), state), None

    return jax.lax.scan(step, carry, first + jnp.arange(num))[0]


def start_at_prior(parts: Factors, whitened: bool) -> Factored:
    """m = 0, V = K, as the papers do."""
    lower = np.asarray(parts.lower)
    root = np.eye(len(lower)) if whitened else lower
    root = np.tril(root, -1) + np.diag(np.log(np.diagonal(root)))
    return Factored(jnp.asarray(np.zeros(len(lower))), jnp.asarray(root))


@eqx.filter_jit
def judge_factored(problem: Problem, parts: Factors, point: Factored, whitened: bool) -> Judgement:
    """Of the Gaussian that the coordinates stand for."""
    if not whitened:
        return judge_root(problem, parts, point.mean, point.root)
    return judge_root(problem, parts, parts.lower @ point.mean, parts.lower @ point.root)


def adadelta(step_size: float, forgetting: float) -> optax.GradientTransformation:
    """(94)-(96) of paper 002: alpha_0 is inside the average of squared updates, which optax leaves out."""

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        del params
        squares, moves = state
        squares = jax.tree.map(lambda s, g: (1 - forgetting) * s + forgetting * g**2, squares, updates)
        steps = jax.tree.map(
            lambda d, s, g: -step_size * jnp.sqrt(d + EPSILON) / jnp.sqrt(s + EPSILON) * g, moves, squares, updates
        )
        moves = jax.tree.map(lambda d, u: (1 - forgetting) * d + forgetting * u**2, moves, steps)
        return steps, (squares, moves)

    def init(params: Any) -> Any:
        zero = jax.tree.map(jnp.zeros_like, params)
        return zero, zero

    return optax.GradientTransformation(init, update)


def decaying_sgd(kappa: float) -> optax.GradientTransformation:
    """Steps alpha_0 (k+1)^-kappa; the state is (alpha_0, k), so that another alpha_0 compiles nothing."""

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        del params
        first, count = state
        size = first * (count + 1) ** -kappa
        return jax.tree.map(lambda g: -size * g, updates), (first, count + 1)

    def init(params: Any) -> Any:
        del params
        return sgd_state(0.0)

    return optax.GradientTransformation(init, update)


def sgd_state(first: float) -> Any:
    """The state to begin with, for the first step size `first`."""
    return jnp.asarray(np.asarray(first)), jnp.asarray(np.zeros(()))


def first_adadelta(setting: Setting) -> optax.GradientTransformation:
    """ADADELTA as in paper 000, which is Zeiler's: no alpha_0."""
    return adadelta(1.0, setting.first_adadelta)


def adaptive_rules(setting: Setting) -> dict[str, optax.GradientTransformation]:
    """The papers' four, with their settings; epsilon inside the root for ADAGRAD and RMSprop, as printed."""
    rate, decay = setting.rmsprop
    return {
        "ADAGRAD": optax.adagrad(setting.adagrad, initial_accumulator_value=0.0, eps=EPSILON),
        "RMSprop": optax.rmsprop(rate, decay, EPSILON, eps_in_sqrt=True),
        "ADADELTA": adadelta(*setting.adadelta),
        "ADAM": optax.adam(setting.adam, b1=0.9, b2=0.999, eps=EPSILON),
    }
