"""Discrete families: independent coins, and one outcome out of K."""

import equinox as eqx
import jax
import jax.numpy as jnp

from provi.core.arguments import check_count
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


class Categorical(AbstractExponentialFamily):
    r"""A categorical variable, x in {0, ..., K-1}, in minimal form: the last outcome is the reference.

    Natural parameter: $\lambda_i = \log p_i/p_{K-1}$, $i < K-1$; mean parameter: $p_i$, $i < K-1$; $T(x)$ marks the
    outcome, $A = \log(1 + \sum_ie^{\lambda_i})$.
    """

    outcomes: int = eqx.field(static=True)

    def __check_init__(self):
        check_count("outcomes", self.outcomes, minimum=2)

    @property
    def size(self) -> int:
        return self.outcomes - 1

    @property
    def reverse_kl_convex_in_mean(self) -> bool:
        return True  # -p log p' is convex in p'

    def log_probabilities(self, natural):
        """log p of all K outcomes."""
        return jax.nn.log_softmax(jnp.append(natural, jnp.zeros((), natural.dtype)))

    def statistic(self, x):
        return jax.nn.one_hot(x, self.outcomes, dtype=jnp.result_type(float))[:-1]

    def log_partition(self, natural):
        return jax.nn.logsumexp(jnp.append(natural, jnp.zeros((), natural.dtype)))

    def mean_from_natural(self, natural):
        return jnp.exp(self.log_probabilities(natural))[:-1]

    def natural_from_mean(self, mean):
        rest = 1 - jnp.sum(mean)
        inside = jnp.all(mean > 0) & (rest > 0)
        return jnp.where(inside, jnp.log(mean) - jnp.log(rest), jnp.nan)

    def valid(self, natural):
        return all_finite(natural)

    def sample(self, key, natural, count):
        return jax.random.categorical(key, self.log_probabilities(natural), shape=(count,))

    def to_unconstrained(self, natural):
        return natural

    def from_unconstrained(self, free):
        return free

    def entropy(self, natural):
        logs = self.log_probabilities(natural)
        return -jnp.sum(jnp.exp(logs) * logs)

    def kl(self, first, second):
        logs = self.log_probabilities(first)
        return jnp.sum(jnp.exp(logs) * (logs - self.log_probabilities(second)))


def categorical_alpha(outcomes: int) -> float:
    r"""The largest alpha with $(p - q)'\nabla_1KL(p\|q) \ge \alpha|p - q|^2$ in the mean parameter: 2, for K = 2 4.

    The left side is $KL(p\|q) + KL(q\|p) \ge |\delta|_1^2$ over all K outcomes (Pinsker twice), $\delta = p - q$. As
    $\delta$ sums to zero, its positive and its negative part both sum to $|\delta|_1/2$, so
    $|\delta|_1^2 \ge 2|\delta|_2^2$, and the K-1 free coordinates have at most that norm. Attained in the limit by
    moving mass between two outcomes of probability 1/2. For K = 2, $|\delta|_1 = 2|\delta_0|$.
    """
    return 4.0 if outcomes == 2 else 2.0


PAPER_MULTINOMIAL_ALPHA = 1.0
"""The constant printed in the papers: valid, half of the largest for K > 2."""
