"""The Dirichlet distribution."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from provi.core.arguments import check_count
from provi.core.types import Vector
from provi.families.exponential.base import AbstractExponentialFamily, all_finite, as_floating
from provi.families.exponential.gamma import digamma, log_gamma, polygamma

_INVERSE_STEPS, _ROOT_STEPS, _POLISH_STEPS = 6, 80, 3
_LOG_TOTALS = (-30.0, 35.0)


class Dirichlet(AbstractExponentialFamily):
    r"""The Dirichlet distribution on probability vectors of length K.

    Natural parameter: the K concentrations $a$, with the base measure $\prod_k1/x_k$; $T(x) = \log x$; mean parameter:
    $\psi(a_k) - \psi(\sum_ja_j)$; $A = \sum_k\log\Gamma(a_k) - \log\Gamma(\sum_ka_k)$.
    """

    outcomes: int = eqx.field(static=True)

    def __check_init__(self):
        check_count("outcomes", self.outcomes, minimum=2)

    @property
    def size(self) -> int:
        return self.outcomes

    def statistic(self, x):
        return jnp.log(as_floating(x))

    def log_base(self, x):
        return -jnp.sum(jnp.log(x))

    def mean_log_base(self, mean):
        return -jnp.sum(mean)

    def log_partition(self, natural):
        return jnp.sum(log_gamma(natural)) - log_gamma(jnp.sum(natural))

    def mean_from_natural(self, natural):
        return digamma(natural) - digamma(jnp.sum(natural))

    def fisher(self, natural):
        return jnp.diag(polygamma(1, natural)) - polygamma(1, jnp.sum(natural))

    def natural_from_mean(self, mean):
        return concentrations_from_mean(mean)

    def valid(self, natural):
        return all_finite(natural) & jnp.all(natural > 0)

    def sample(self, key, natural, count):
        return jax.random.dirichlet(key, natural, (count,), natural.dtype)

    def to_unconstrained(self, natural):
        return jnp.log(natural)

    def from_unconstrained(self, free):
        return jnp.exp(free)


def inverse_digamma(value: Vector) -> Vector:
    r"""The positive $a$ with $\psi(a) =$ `value`, by Newton from Minka's start ($e^y + \frac12$, or $-1/(y - \psi(1))$
    for $y < -2.22$). $\psi$ is concave and increasing, so after the first step the iterates rise to the root; six
    steps reach rounding."""
    small = -1 / (jnp.minimum(value, -2.22) + float(np.euler_gamma))
    start = jnp.where(value >= -2.22, jnp.exp(value) + 0.5, small)
    return jax.lax.fori_loop(0, _INVERSE_STEPS, lambda _, a: a - (digamma(a) - value) / polygamma(1, a), start)


@jax.custom_jvp
def concentrations_from_mean(mean: Vector) -> Vector:
    r"""The concentrations with $\psi(a_k) - \psi(s) = \mu_k$, $s = \sum_ka_k$; NaN where there are none.

    With $a_k(s) = \psi^{-1}(\mu_k + \psi(s))$ one equation in $s$ remains, $\sum_ka_k(s) = s$. The left side is larger
    as $s \to 0$, where it is $Ks$, and smaller as $s \to \infty$, where it is $s\sum_ke^{\mu_k}$, so it is solved by
    Newton in $\log s$ inside a bracket (halved when Newton leaves it); last come Newton steps on all equations.
    A mean parameter has $\sum_ke^{\mu_k} < 1$ (Jensen).
    """
    inside = jnp.sum(jnp.exp(mean)) < 1
    safe = jnp.where(inside, mean, digamma(jnp.ones_like(mean)) - digamma(jnp.asarray(mean.size, mean.dtype)))

    def refine(_, state):
        low, high, log_total = state
        total = jnp.exp(log_total)
        parts = inverse_digamma(safe + digamma(total))
        residual = jnp.log(jnp.sum(parts)) - log_total
        low, high = jnp.where(residual > 0, log_total, low), jnp.where(residual > 0, high, log_total)
        slope = total * polygamma(1, total) * jnp.sum(1 / polygamma(1, parts)) / jnp.sum(parts) - 1
        newton = log_total - residual / slope
        return low, high, jnp.where((newton > low) & (newton < high), newton, (low + high) / 2)

    def polish(_, parts):
        # A step that would leave the positive numbers is refused.
        residual = digamma(parts) - digamma(jnp.sum(parts)) - safe
        moved = parts - fisher_solve(parts, residual)
        return jnp.where(jnp.all(moved > 0), moved, parts)

    bracket = jnp.asarray(_LOG_TOTALS, mean.dtype)
    start = (bracket[0], bracket[1], jnp.log(jnp.asarray(mean.size, mean.dtype)))
    log_total = jax.lax.fori_loop(0, _ROOT_STEPS, refine, start)[2]
    parts = inverse_digamma(safe + digamma(jnp.exp(log_total)))
    return jnp.where(inside, jax.lax.fori_loop(0, _POLISH_STEPS, polish, parts), jnp.nan)


def fisher_solve(concentrations: Vector, right: Vector) -> Vector:
    r"""$(\mathrm{diag}\,\psi'(a) - \psi'(s)11')^{-1}$ times `right`, by Sherman and Morrison in O(K)."""
    weights = 1 / polygamma(1, concentrations)
    scaled = weights * right
    common = polygamma(1, jnp.sum(concentrations))
    return scaled + weights * (common * jnp.sum(scaled) / (1 - common * jnp.sum(weights)))


@concentrations_from_mean.defjvp
def _(primals, tangents):
    concentrations = concentrations_from_mean(primals[0])
    return concentrations, fisher_solve(concentrations, tangents[0])
