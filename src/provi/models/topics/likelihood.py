r"""The words of one document given the log-weights $z$ of its topics, in matrix products.

With $B_{uk}$ the probability of the document's $u$-th distinct word under topic $k$, $c_u$ its count and $W=\sum c$,

$$f(z) = -\log p(c\mid z) = -\sum_uc_u\log\sum_kB_{uk}e^{z_k} + W\log\sum_ke^{z_k},$$

without the multinomial coefficient $W!/\prod c_u!$, which does not depend on $z$. f is not convex, and it does not
change when one number is added to all $z_k$.

For draws $z_s$ the rows $E = e^{z-\max z}$ give the word weights $EB'$ (draws, words), and everything else is a product
of (draws, words) and (words, topics) matrices: no (draws, words, topics) array is formed.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np


class WordWeights(NamedTuple):
    """E (draws, topics), the shares softmax(z), log sum E (draws,), E B' (draws, words) and c / (E B')."""

    topics: Any
    shares: Any
    log_totals: Any
    words: Any
    ratios: Any


def scaled_rows(rows: Any) -> tuple[Any, Any]:
    """B (words, topics) with the largest entry of each word one, and the logarithms of what was divided by.

    The derivatives of f do not change. A word that no topic emits has probability zero whatever z is: it says nothing
    of z, so its row becomes ones, and the logarithm is -inf.
    """
    largest = jnp.max(rows, axis=-1, keepdims=True)
    possible = largest > 0
    return jnp.where(possible, rows / jnp.where(possible, largest, 1), 1), jnp.log(largest[..., 0])


def log_scale(logs: Any, counts: Any) -> Any:
    """What `scaled_rows` took from the log-likelihood of the document: the sum of c log(largest)."""
    return jnp.sum(jnp.where(counts > 0, counts * logs, 0), axis=-1)


def word_weights(draws: Any, scaled: Any, counts: Any) -> WordWeights:
    """The products that f and its derivatives share, for draws (draws, topics) and rows scaled to a maximum of one.

    E is kept above the cube root of the smallest float, so that no square of a word's weight underflows and no word
    is lost: in double precision that is a difference of 236 in z, in single precision of 29.
    """
    exponent = draws - jnp.max(draws, axis=1, keepdims=True)
    topics = jnp.exp(jnp.maximum(exponent, jnp.log(jnp.finfo(exponent.dtype).tiny) / 3))
    totals = jnp.sum(topics, axis=1)
    words = topics @ scaled.T
    return WordWeights(topics, topics / totals[:, None], jnp.log(totals), words, counts[None, :] / words)


def values(weights: WordWeights, counts: Any) -> Any:
    """f at each draw (draws,), up to `log_scale`."""
    return jnp.sum(counts) * weights.log_totals - jnp.log(weights.words) @ counts


def gradients(weights: WordWeights, scaled: Any, counts: Any) -> Any:
    r"""$\nabla f(z_s) = W\pi - E\odot(c/(EB')\,B)$, (draws, topics)."""
    return jnp.sum(counts) * weights.shares - weights.topics * (weights.ratios @ scaled)


def word_pairs(scaled: Any) -> Any:
    """B_uk B_ul for k >= l, (words, topics (topics + 1) / 2): the same for all draws and steps of a document."""
    rows, columns = np.tril_indices(scaled.shape[-1])
    return scaled[..., rows] * scaled[..., columns]


def mean_hessian(weights: WordWeights, chances: Any, pairs: Any, counts: Any, gradient: Any) -> Any:
    r"""The mean of the Hessian (topics, topics) over draws of the given `chances` (draws,), which add up to one.

    `pairs` are `word_pairs`, `gradient` (topics,) is the mean gradient.

    $$\nabla^2f = diag(\nabla f) - W\pi\pi' + EE'\odot\big(B'\,diag(c/(EB')^2)\,B\big);$$

    the last term's lower triangle is one product of (draws, words) and (words, pairs) for all draws.
    """
    size = weights.topics.shape[1]
    rows, columns = np.tril_indices(size)
    place = np.zeros((size, size), int)
    place[rows, columns] = place[columns, rows] = np.arange(len(rows))
    words = ((weights.ratios / weights.words) @ pairs) * weights.topics[:, rows] * weights.topics[:, columns]
    shares = weights.shares.T @ (chances[:, None] * weights.shares)
    return jnp.diag(gradient) + (chances @ words)[place] - jnp.sum(counts) * shares


def mean_hessian_diagonal(weights: WordWeights, chances: Any, squares: Any, counts: Any, gradient: Any) -> Any:
    """The diagonal of `mean_hessian` (topics,), given the squares of B (words, topics), at the cost of a gradient."""
    words = weights.topics**2 * ((weights.ratios / weights.words) @ squares)
    return gradient + chances @ (words - jnp.sum(counts) * weights.shares**2)


def value_gradient_hessian(draws: Any, rows: Any, counts: Any) -> tuple[Any, Any, Any]:
    r"""$f(z_s)$ (draws,), $\nabla f(z_s)$ (draws, topics) and the *mean over draws* of $\nabla^2f$ (topics, topics).

    **Arguments:** for one document, `draws` (draws, topics); `rows`, B at its words (words, topics); `counts` (words,),
    zero at padding.
    """
    scaled, logs = scaled_rows(rows)
    weights = word_weights(draws, scaled, counts)
    slopes = gradients(weights, scaled, counts)
    chances = jnp.full(draws.shape[:1], 1 / draws.shape[0], draws.dtype)
    hessian = mean_hessian(weights, chances, word_pairs(scaled), counts, chances @ slopes)
    return values(weights, counts) - log_scale(logs, counts), slopes, hessian
