r"""The observed information of logistic regression with missing covariates, in closed form, and standard errors.

Louis's formula: the information of the observed data is $E[\text{complete information}] - \mathrm{Var}[\text{complete
score}]$ given the data. Both moments are under the law of $\eta_i$ tilted by the label, hence functions of the ratios
$r_1, \dots, r_4$ ($r_k = P^{-1}\partial^kP/\partial\mu^k$), and their difference collapses. The shortest way to the
result is to differentiate $l_i = \log N(z_o; \beta, \Omega_{oo}) + g(\mu_i, v_i)$, $g = \log P$, $v_i = s_i^2$, twice.
By Stein's lemma (the heat equation) $\partial P/\partial v = \frac12\partial^2P/\partial\mu^2$, so
$$g_\mu = r_1,\; g_v = r_2/2,\; g_{\mu\mu} = r_2 - r_1^2,\; g_{\mu v} = (r_3 - r_1r_2)/2,\; g_{vv} = (r_4 - r_2^2)/4.$$
With $K = K_o^+$, $A = I - \Omega K$, $w = K(z_o - \beta)$ and $a = A'\delta$ (so that $b = C\delta = \Omega a$),
$$dK = -K\,d\Omega\,K,\;\; dC = A\,d\Omega\,A',\;\; dm = A(d\beta + d\Omega\,w),\;\; da = A'd\delta - K\,d\Omega\,a,$$
$$d\mu = d\delta_0 + m'd\delta + a'd\beta + a'd\Omega\,w,\qquad dv = 2b'd\delta + a'd\Omega\,a.$$
Let $\omega = w + r_1a = \Omega^{-1}E[z - \beta\mid\text{data}]$ and $T = \omega\omega' + (r_2 - r_1^2)aa'$. The score:
$$dl = r_1(d\delta_0 + m'd\delta) + r_2b'd\delta + \omega'd\beta + \tfrac12\mathrm{tr}[(T - K)d\Omega],$$
and differentiating once more, with the squares in $K$ completed,
$$d^2l = g_{\mu\mu}d\mu^2 + 2g_{\mu v}d\mu\,dv + g_{vv}dv^2 + r_2d\delta'C\,d\delta
 + 2d\delta'A[r_1d\beta + d\Omega(r_1w + r_2a)]$$
$$\qquad - d\beta'K\,d\beta - 2d\beta'K\,d\Omega\,\omega - \mathrm{tr}[d\Omega\,K\,d\Omega(T - \tfrac12K)].$$
Nothing is divided by $s^2$, and nothing supposes that the score is zero. Apart from the first three terms a row enters
through sums over its pattern.

Parameters are in the order of `parameter_vector`.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import block_diag
from jaxtyping import Array, Bool, Float

from provi.core.compilation import sized_jit
from provi.core.normal_cdf import SigmoidMeanRatios, sigmoid_mean_ratios
from provi.models.missing.conditional import (
    Conditional,
    ConditionedPatterns,
    Parameters,
    Rows,
    condition_patterns,
    condition_rows,
    fold_symmetric,
    unfold_symmetric,
)

_NUMBERS_AT_ONCE = 2**22
"""Rows are taken in blocks with at most this many numbers in an array of one number a row and parameter."""


class _PatternTerms(eqx.Module):
    """For each pattern: its conditional law, A and a."""

    conditioned: ConditionedPatterns
    regression: Float[Array, "k p p"]
    slope: Float[Array, "k p"]


class _RowTerms(eqx.Module):
    """For each row: its conditional law, the ratios, w and a."""

    law: Conditional
    ratios: SigmoidMeanRatios
    weighted: Float[Array, "n p"]
    slope: Float[Array, "n p"]


def _pattern_terms(parameters: Parameters, masks: Bool[Array, "k p"]) -> _PatternTerms:
    delta = parameters.coefficients[1:]
    conditioned = condition_patterns(parameters, masks)
    regression = jnp.eye(delta.shape[0], dtype=delta.dtype)[None] - parameters.covariance @ conditioned.inverse
    return _PatternTerms(conditioned, regression, jnp.einsum("kij,i->kj", regression, delta))


def _row_terms(parameters: Parameters, patterns: _PatternTerms, rows: Rows, order: int) -> _RowTerms:
    law = condition_rows(parameters, patterns.conditioned, rows)
    ratios = sigmoid_mean_ratios(law.centre, law.variance, rows.labels, order=order)
    residual = jnp.where(rows.observed, rows.values - parameters.mean[None], 0)
    weighted = jnp.einsum("nij,nj->ni", patterns.conditioned.inverse[rows.pattern], residual)
    return _RowTerms(law, ratios, weighted, patterns.slope[rows.pattern])


def _products(left: Float[Array, "n i"], right: Float[Array, "n j"]) -> Float[Array, "n i j"]:
    """The outer products, row by row."""
    return left[:, :, None] * right[:, None, :]


@sized_jit
def louis_information(parameters: Parameters, rows: Rows) -> Float[Array, "q q"]:
    r"""The observed information $-\partial^2\sum_il_i$ of all parameters, at any parameters: the module's formulas.

    Cost: $O(nq^2)$ for the rows and $O(kp^4)$ for the $k$ patterns, both as matrix products.
    """
    p = parameters.mean.shape[0]
    patterns = _pattern_terms(parameters, rows.patterns)
    inverse, regression, slope = patterns.conditioned.inverse, patterns.regression, patterns.slope
    zero = jnp.zeros_like(slope)
    outer = _products(slope, slope)
    variance_gradient = jnp.concatenate(
        [zero[:, :1], 2 * patterns.conditioned.direction, zero, fold_symmetric(outer)], axis=1
    )

    def block_sums(block: Rows, real: Array) -> tuple:
        return _louis_sums(_row_terms(parameters, patterns, block, 4), variance_gradient, block, real)

    products, sums = _sum_blocks(block_sums, rows, variance_gradient.shape[1])
    counts, first, second, curvature, excess = sums[:, :5].T
    omega, tau, squares = sums[:, 5 : 5 + p], sums[:, 5 + p : 5 + 2 * p], sums[:, 5 + 2 * p :]
    inner = unfold_symmetric(squares, p) + excess[:, None, None] * outer - counts[:, None, None] / 2 * inverse
    quartic = fold_symmetric(jnp.einsum("kbc,kda->abcd", inverse, inner))

    # Half of the symmetric matrix: the blocks on the diagonal are halved, those beside it stand on one side only.
    half = products + variance_gradient.T @ (curvature[:, None] / 2 * variance_gradient)
    delta, beta, sigma = slice(1, p + 1), slice(p + 1, 2 * p + 1), slice(2 * p + 1, None)
    half = half.at[delta, delta].add(jnp.einsum("k,kij->ij", second / 2, patterns.conditioned.covariance))
    half = half.at[delta, beta].add(jnp.einsum("k,kij->ij", first, regression))
    half = half.at[delta, sigma].add(fold_symmetric(jnp.einsum("kij,kl->ijl", regression, tau)))
    half = half.at[beta, beta].add(jnp.einsum("k,kij->ij", -counts / 2, inverse))
    half = half.at[beta, sigma].add(-fold_symmetric(jnp.einsum("kij,kl->ijl", inverse, omega)))
    half = half.at[sigma, sigma].add(fold_symmetric(jnp.moveaxis(quartic, -1, 0)) / -2)
    return -(half + half.T)


def _louis_sums(terms: _RowTerms, variance_gradient: Float[Array, "k q"], rows: Rows, real: Array) -> tuple:
    r"""Half of the terms in $d\mu$, and the sums over the rows of each pattern of
    $1, r_1, r_2, g_{vv}, r_2 - r_1^2, \omega, r_1w + r_2a$ and the lower triangle of $\omega\omega'$.
    """
    weight = real.astype(terms.weighted.dtype)[:, None]
    ratios, weighted, slope = terms.ratios, terms.weighted, terms.slope
    assert ratios.third is not None and ratios.fourth is not None
    first, second = ratios.first[:, None], ratios.second[:, None]
    excess = second - first**2
    mixed = (ratios.third[:, None] - first * second) / 2
    curvature = (ratios.fourth[:, None] - second**2) / 4
    centre_gradient = jnp.concatenate(
        [jnp.ones_like(first), terms.law.filled, slope, fold_symmetric(_products(slope, weighted))],
        axis=1,
    )
    partner = weight * (excess / 2 * centre_gradient + mixed * variance_gradient[rows.pattern])
    omega = weighted + first * slope
    row, column = np.tril_indices(weighted.shape[1])
    each = [jnp.ones_like(first), first, second, curvature, excess, omega, first * weighted + second * slope]
    each = weight * jnp.concatenate([*each, omega[:, row] * omega[:, column]], axis=1)
    sums = jax.ops.segment_sum(each, rows.pattern, num_segments=rows.patterns.shape[0])
    return centre_gradient.T @ partner, sums


def complete_information(
    parameters: Parameters, curvature: Float[Array, "p_plus_1 p_plus_1"], num_rows: int
) -> Float[Array, "q q"]:
    r"""The information that complete rows would have, positive definite always.

    `curvature` is $E\,\sigma'\tilde z\tilde z'$ a row, of $\delta$. $\beta$ has $n\Omega^{-1}$ and $\Omega$ the form
    $\frac n2\mathrm{tr}[\Omega^{-1}d\Omega\,\Omega^{-1}d\Omega]$, as where the rows have the moments $\beta, \Omega$.
    """
    inverse = jnp.linalg.inv(parameters.covariance)
    quartic = fold_symmetric(jnp.einsum("bc,da->abcd", inverse, inverse))
    quartic = fold_symmetric(jnp.moveaxis(quartic, -1, 0)) / 2
    return num_rows * block_diag(curvature, inverse, quartic)


@sized_jit
def empirical_information(
    parameters: Parameters, rows: Rows, loadings: Float[Array, "p r"] | None = None
) -> Float[Array, "q q"]:
    r"""$\sum_i s_is_i'$, $s_i$ the score of row $i$: the information where $q$ is too large for `louis_information`.

    With `loadings` $\Lambda$ the covariance is $\Omega = \Lambda\Lambda' + \mathrm{diag}(\psi)$ and the parameters are
    the coefficients, the mean, $\Lambda$ row by row and $\psi$: if $dl = \mathrm{tr}(G\,d\Omega)$ with symmetric $G$,
    then $dl = 2\,\mathrm{tr}(\Lambda'G\,d\Lambda) + \sum_jG_{jj}d\psi_j$. A rotation of $\Lambda$ changes nothing, so
    that $r(r-1)/2$ directions have no information; `coefficient_covariance` leaves them out.
    """
    p = parameters.mean.shape[0]
    # Many patterns of many columns do not fit into memory at once: then each block finds those of its own rows.
    apart = rows.patterns.size * p > _NUMBERS_AT_ONCE
    common = None if apart else _pattern_terms(parameters, rows.patterns)

    def block_sums(block: Rows, real: Array) -> Array:
        patterns = _pattern_terms(parameters, block.patterns) if common is None else common
        inverse = patterns.conditioned.inverse
        terms = _row_terms(parameters, patterns, block, 2)
        first, second, slope = terms.ratios.first[:, None], terms.ratios.second[:, None], terms.slope
        omega = terms.weighted + first * slope
        bent = (second - first**2) * slope
        if loadings is None:
            gradient = _products(omega, omega) + _products(bent, slope) - inverse[block.pattern]
            spread = [fold_symmetric(gradient) / 2]
        else:
            along = _products(omega, omega @ loadings) + _products(bent, slope @ loadings)
            along = along - (inverse @ loadings)[block.pattern]
            diagonal = omega**2 + bent * slope - jnp.diagonal(inverse, axis1=1, axis2=2)[block.pattern]
            spread = [along.reshape(omega.shape[0], -1), diagonal / 2]
        coefficients = first * terms.law.filled + second * terms.law.direction
        scores = jnp.where(real[:, None], jnp.concatenate([first, coefficients, omega, *spread], axis=1), 0)
        return scores.T @ scores

    width = p * p if loadings is None else loadings.size + p
    return _sum_blocks(block_sums, rows, max(2 * p + 1 + width, p * p), apart)


def _sum_blocks(function: Callable[[Rows, Any], Any], rows: Rows, width: int, apart: bool = False) -> Any:
    """The sum of `function(rows, real)` over blocks of rows; those with `real` false belong to another block.

    `width` is the most numbers a row has in any array; `apart` gives each row of a block a pattern of its own.
    """
    num_rows = rows.labels.shape[0]
    num_blocks = -(-num_rows * width // _NUMBERS_AT_ONCE)
    if num_blocks == 1 and not apart:
        return function(rows, jnp.ones(num_rows, bool))
    size = -(-num_rows // num_blocks)

    def block(k: Any) -> Any:
        # The last block begins early enough to be full: padding would copy the data.
        start = jnp.minimum(k * size, num_rows - size)
        values, labels, pattern = (
            jax.lax.dynamic_slice_in_dim(x, start, size) for x in (rows.values, rows.labels, rows.pattern)
        )
        masks = rows.patterns
        if apart:
            pattern, masks = jnp.arange(size, dtype=pattern.dtype), masks[pattern]
        return function(Rows(values, labels, pattern, masks), start + jnp.arange(size) >= k * size)

    zero = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(block, jnp.zeros((), int)))
    return jax.lax.scan(lambda sums, k: (jax.tree.map(jnp.add, sums, block(k)), None), zero, jnp.arange(num_blocks))[0]
