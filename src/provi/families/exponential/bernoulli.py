"""Independent coins."""

import equinox as eqx
import jax
import jax.numpy as jnp

from provi.families.exponential.base import AbstractExponentialFamily, all_finite, as_floating


class Bernoulli(AbstractExponentialFamily):
    r"""`dim` independent Bernoulli variables, x in {0, 1}^dim.

    Natural parameter: the log-odds $\lambda_i = \log p_i/(1-p_i)$; mean parameter: $p_i$; $T(x) = x$,
    $A = \sum_i\log(1 + e^{\lambda_i})$.
    """

    dim: int = eqx.field(static=True, default=1)

    @property
    def size(self) -> int:
        return self.dim

    @property
    def reverse_kl_convex_in_mean(self) -> bool:
        return True  # -p log p' is convex in p'

    def statistic(self, x):
        return as_floating(x)

    def log_partition(self, natural):
        return jnp.sum(jax.nn.softplus(natural))

    def mean_from_natural(self, natural):
        return jax.nn.sigmoid(natural)

    def fisher(self, natural):
        return jnp.diag(jax.nn.sigmoid(natural) * jax.nn.sigmoid(-natural))

    def natural_from_mean(self, mean):
        inside = (mean > 0) & (mean < 1)
        return jnp.where(inside, jnp.log(mean) - jnp.log1p(-mean), jnp.nan)

    def valid(self, natural):
        return all_finite(natural)

    def sample(self, key, natural, count):
        uniform = jax.random.uniform(key, (count, self.dim), natural.dtype)
        return (uniform < jax.nn.sigmoid(natural)[None, :]).astype(natural.dtype)

    def to_unconstrained(self, natural):
        return natural

    def from_unconstrained(self, free):
        return free

    def entropy(self, natural):
        # Every term is positive, so nothing cancels where a coin is nearly certain.
        return self._cross_entropy(natural, natural)

    def kl(self, first, second):
        return self._cross_entropy(first, second) - self._cross_entropy(first, first)

    def _cross_entropy(self, first, second):
        """The cross entropy -E_first log q_second = sum p softplus(-eta) + (1 - p) softplus(eta)."""
        heads, tails = jax.nn.sigmoid(first), jax.nn.sigmoid(-first)
        return jnp.sum(heads * jax.nn.softplus(-second) + tails * jax.nn.softplus(second))


BERNOULLI_ALPHA = 4.0
r"""$(p - q)\,\partial_p KL(p\|q) = (p - q)(\mathrm{logit}\,p - \mathrm{logit}\,q) \ge 4(p - q)^2$, since the slope of
the logit is $1/(p(1-p)) \ge 4$: the largest constant, attained at $p = q = 1/2$. Paper 000 has 2 (errata 25)."""

PAPER_BERNOULLI_ALPHA = 2.0
"""The constant printed in the papers: valid, half of the largest."""
