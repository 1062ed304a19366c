r"""The surrogates of logistic regression with missing covariates: per row, four statistics and two closed minimisers.

The surrogate of row i built at $\bar\theta$ is minus the expected complete log-likelihood, with the softplus of
the label's part replaced by a quadratic in $\delta$ that touches it at $\bar\delta$:

$$\tfrac12\log|\Omega| + \tfrac12E(z - \beta)'\Omega^{-1}(z - \beta) + \tfrac12\delta'A_i\delta - h_i'\delta,\qquad
A_i = E[w(\eta)\tilde z\tilde z'],\quad h_i = A_i\bar\delta - E[(\sigma(\eta) - y_{01})\tilde z],$$

$\tilde z = (1, z)$, expectations over the missing entries given all that was observed, at $\bar\theta$. Curvatures $w$:

- `"boehning"`: 1/4, the largest the softplus has; a majoriser.
- `"jaakkola"`: $\tanh(\eta/2)/(2\eta)$ (Jaakkola and Jordan; also the mean of a Polya-Gamma variable); a majoriser.
- `"newton"`: $\sigma(\eta)(1 - \sigma(\eta))$: no majoriser (H1 of paper 001 fails), the same gradient, faster.

All depend on the draws through means over them of $u, u^2, w, wu, wu^2, \sigma, \sigma u$, where $\eta = \mu + su$ and
$z = m + du + $ noise of covariance $C - dd'$, $d = C\delta/s$: the other directions are integrated out.

What is kept of the draws of a row's linear predictor is a `Summary`; the noise that can be taken off it for nothing,
`control_variates`.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_factor, cho_solve
from jaxtyping import Array, Float

from provi.algorithms.incremental.surrogates import AbstractSurrogate
from provi.core.arguments import device_array
from provi.core.normal_cdf import sigmoid_mean_ratios
from provi.models.missing.chains import exact_draws, metropolis_draws, start_chains
from provi.models.missing.conditional import Parameters, Rows, condition_patterns, condition_rows

CURVATURES = ("boehning", "jaakkola", "newton")
SAMPLERS = ("metropolis", "exact")


class Summary(eqx.Module):
    r"""For each row the means over the draws of $u, u^2, w, wu, wu^2, \sigma(\eta)$ and $\sigma(\eta)u$."""

    first: Float[Array, " b"]
    second: Float[Array, " b"]
    weight: Float[Array, " b"]
    weight_first: Float[Array, " b"]
    weight_second: Float[Array, " b"]
    sigmoid: Float[Array, " b"]
    sigmoid_first: Float[Array, " b"]


class Prepared(eqx.Module):
    r"""For each row $m$, $C$, $d = C\delta/s$ (zero where $s = 0$), $\mu$, $s$ and the label."""

    filled: Float[Array, "b p"]
    covariance: Float[Array, "b p p"]
    direction: Float[Array, "b p"]
    centre: Float[Array, " b"]
    deviation: Float[Array, " b"]
    label: Float[Array, " b"]


def control_variates(prepared: Prepared, summary: Summary, constant: float = 1.0) -> Summary:
    r"""The summary less its own noise, where that is known: zero-variance control variates (Mira and others, 2013).

    Under the density proportional to $\phi(u)\sigma(y(\mu + su))$, by Stein's identity, both of

    $$c_1 = s(y_{01} - \sigma(\eta)) - u,\qquad c_2 = 1 + uc_1$$

    have mean zero. With $\sigma(\eta) \approx \sigma_0 + \sigma_1u + \sigma_2u^2$, $a = s(y_{01} - \sigma_0)$,
    $\lambda = 1 + s\sigma_1$, $\kappa = s\sigma_2$ and $p = 1/(\lambda + a\kappa/\lambda)$ (which is positive, at
    most $2/\lambda$) the linear and quadratic parts cancel in $u + \Delta_1$, $u^2 + \Delta_2$, in
    $\sigma + \sigma_1\Delta_1 + \sigma_2\Delta_2$ and $\sigma u + \sigma_0\Delta_1 + \sigma_1\Delta_2$, where
    $\Delta_1 = p(c_1 - \kappa c_2/\lambda)$ and $\Delta_2 = p(c_2 + ac_1/\lambda)$. Exact means stay as they are,
    whatever the expansion; the expansion here is that of $\sigma$ smoothed by the Gaussian, as one logistic curve.

    `constant=0` gives the linear part, for errors of summaries.
    """
    s, positive = prepared.deviation, (prepared.label + 1) / 2
    shrink = jax.lax.rsqrt(1 + np.pi / 8 * s**2)
    zeroth, slope = _sigmoid_and_weight(shrink * prepared.centre, "newton")
    first = s * shrink * slope
    second = 0.5 * (s * shrink) ** 2 * slope * (1 - 2 * zeroth)
    a, stiffness, bend = s * (positive - zeroth), 1 + s * first, s * second
    one = s * (constant * positive - summary.sigmoid) - summary.first
    two = constant + s * (positive * summary.first - summary.sigmoid_first) - summary.second
    scale = 1 / (stiffness + a * bend / stiffness)
    of_first = scale * (one - bend / stiffness * two)
    of_second = scale * (two + a / stiffness * one)
    return Summary(
        summary.first + of_first,
        summary.second + of_second,
        summary.weight,
        summary.weight_first,
        summary.weight_second,
        summary.sigmoid + first * of_first + second * of_second,
        summary.sigmoid_first + zeroth * of_first + first * of_second,
    )


def _coefficient_scores(prepared: Prepared, summary: Summary) -> Float[Array, "b q"]:
    r"""Per row $E[(y_{01} - \sigma(\eta))\tilde z]$: by Fisher's identity its score in the coefficients."""
    positive = (prepared.label + 1) / 2
    along = positive - summary.sigmoid
    across = positive * summary.first - summary.sigmoid_first
    rest = along[:, None] * prepared.filled + across[:, None] * prepared.direction
    return jnp.concatenate([along[:, None], rest], axis=1)


def _sigmoid_and_weight(eta: Float[Array, "..."], curvature: str) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """sigma(eta) and the curvature w(eta), from one exponential."""
    small = jnp.exp(-jnp.abs(eta))
    larger = 1 / (1 + small)
    sigmoid = jnp.where(eta >= 0, larger, small * larger)
    if curvature == "boehning":
        return sigmoid, jnp.full_like(eta, 0.25)
    if curvature == "newton":
        return sigmoid, small * larger**2
    near_zero = jnp.abs(eta) < 1e-3  # there the next term of the series is below 1e-14
    size = jnp.where(near_zero, 1, jnp.abs(eta))
    return sigmoid, jnp.where(near_zero, 0.25 - eta**2 / 48, (1 - small) * larger / (2 * size))


class Statistics(eqx.Module):
    r"""Per row, or their mean: $E z$, $E zz'$, $A$ and $h$."""

    first: Float[Array, "*b p"]
    second: Float[Array, "*b p p"]
    curvature: Float[Array, "*b q q"]
    slope: Float[Array, "*b q"]


class MissingSurrogate(AbstractSurrogate):
    """The n surrogates of the docstring above, over the table `data`.

    `penalty` (p + 1) adds half its sum with the squared coefficients to minus the log-likelihood. `block` draws are
    made at a call of `draw`, in one compiled step. `covariance_step` turns the mean second moment about the mean into
    Omega; None takes it as it is, which is the maximum. `controls` takes `control_variates` off the draws' means.
    """

    num_terms: int = eqx.field(static=True)
    data: Rows
    penalty: Float[Array, " q"]
    curvature: str = eqx.field(static=True)
    sampler: str = eqx.field(static=True)
    block: int = eqx.field(static=True)
    covariance_step: Callable | None
    controls: bool = eqx.field(static=True)

    def __init__(
        self,
        data: Rows,
        penalty: Float[Array, " q"],
        curvature: str = "newton",
        sampler: str = "metropolis",
        block: int = 1,
        covariance_step: Callable | None = None,
        controls: bool = True,
    ) -> None:
        self.num_terms = data.values.shape[0]
        self.data, self.penalty, self.curvature, self.sampler = data, penalty, curvature, sampler
        self.block, self.covariance_step, self.controls = block, covariance_step, controls

    def prepare(self, parameters: Parameters, rows: Any) -> Prepared:
        """The conditional laws; one factorisation a pattern, or one a row where there are fewer of those."""
        if rows.shape[0] < self.data.patterns.shape[0]:
            chosen = self.data.take(rows)
        else:
            data = self.data
            chosen = Rows(data.values[rows], data.labels[rows], data.pattern[rows], data.patterns)
        conditioned = condition_patterns(parameters, chosen.patterns)
        law = condition_rows(parameters, conditioned, chosen)
        deviation = jnp.sqrt(law.variance)
        direction = jnp.where(deviation > 0, law.direction.T / jnp.where(deviation > 0, deviation, 1)[None], 0).T
        covariance = conditioned.covariance[chosen.pattern]
        return Prepared(law.filled, covariance, direction, law.centre, deviation, chosen.labels)

    def start_chains(self, key: Any, parameters: Parameters, rows: Any, prepared: Prepared) -> Any:
        """Markov chains, one a row; None for the exact sampler."""
        return start_chains(key, prepared.centre) if self.sampler == "metropolis" else None

    def draw(self, key: Any, parameters: Parameters, rows: Any, prepared: Prepared, chains: Any) -> tuple[Summary, Any]:
        """The mean summary of `block` draws a row."""
        law = (prepared.centre, prepared.deviation, prepared.label)
        if self.sampler == "metropolis":
            chains, residual = metropolis_draws(key, chains, *law, self.block)
        else:
            residual = exact_draws(key, *law, self.block)
        weights = jnp.full(residual.shape, 1 / self.block, residual.dtype)
        return self._summarise(prepared, residual, weights), chains

    def expect(self, parameters: Parameters, rows: Any, prepared: Prepared) -> Summary:
        r"""The exact summary, for MISO, from $r_k = \partial_\mu^kP/P$, $P = E\sigma(y\eta)$, by Stein's lemma:

        $Eu = sr_1$, $Eu^2 = 1 + s^2r_2$, $E\sigma = y_{01} - r_1$, $E\sigma u = y_{01}sr_1 - sr_2$; with
        $\sigma\sigma' = (\sigma' - \sigma'')/2$ Newton's weights have $Ew = (yr_1 - r_2)/2$,
        $Ewu = s(yr_2 - r_3)/2$, $Ewu^2 = Ew + s^2(yr_3 - r_4)/2$. Jaakkola's have no closed form: trapezoid rule.
        """
        s, y = prepared.deviation, prepared.label
        if self.curvature == "jaakkola":
            return self._trapezoid(prepared)
        ratios = sigmoid_mean_ratios(prepared.centre, s**2, y, order=4 if self.curvature == "newton" else 2)
        first, second, positive = s * ratios.first, 1 + s**2 * ratios.second, (y + 1) / 2
        if self.curvature == "boehning":
            weights = (jnp.full_like(s, 0.25), first / 4, second / 4)
        else:
            assert ratios.third is not None and ratios.fourth is not None
            weight = (y * ratios.first - ratios.second) / 2
            weight_first = s * (y * ratios.second - ratios.third) / 2
            weights = (weight, weight_first, weight + s**2 * (y * ratios.third - ratios.fourth) / 2)
        return Summary(first, second, *weights, positive - ratios.first, positive * first - s * ratios.second)

    def build(self, parameters: Parameters, rows: Any, prepared: Prepared, summary: Summary) -> Statistics:
        """The rows' statistics: linear in the summary, except that h needs the coefficients at which it was taken."""
        summary = control_variates(prepared, summary) if self.controls else summary
        m, d, C = prepared.filled, prepared.direction, prepared.covariance
        residual_covariance = C - d[:, :, None] * d[:, None, :]
        first = m + summary.first[:, None] * d
        one = jnp.ones_like(summary.first)
        second = residual_covariance + _square(m, d, one, summary.first, summary.second)
        m, d = (jnp.concatenate([jnp.full((len(x), 1), c, x.dtype), x], 1) for x, c in ((m, 1), (d, 0)))
        curvature = _square(m, d, summary.weight, summary.weight_first, summary.weight_second)
        curvature = curvature.at[:, 1:, 1:].add(summary.weight[:, None, None] * residual_covariance)
        slope = curvature @ parameters.coefficients + _coefficient_scores(prepared, summary)
        return Statistics(first, second, curvature, slope)

    def minimise(self, mean: Statistics, parameters: Parameters, constraint: Any = None) -> Parameters:
        """The closed minimiser in the three blocks; `constraint` is applied to the coefficients if given."""
        del parameters
        penalty = jnp.diag(self.penalty) / self.num_terms
        coefficients = cho_solve(cho_factor(mean.curvature + penalty, lower=True), mean.slope)
        covariance = mean.second - mean.first[:, None] * mean.first[None]
        covariance = (covariance + covariance.T) / 2
        if self.covariance_step is not None:
            covariance = self.covariance_step(covariance)
        coefficients = coefficients if constraint is None else constraint.project(coefficients)
        return Parameters(coefficients, mean.first, covariance)

    def _summarise(self, prepared: Prepared, residual: Any, weights: Any) -> Summary:
        """Weighted sums over the leading axis of `residual`, shape (m, b)."""
        sigmoid, w = _sigmoid_and_weight(prepared.centre[None] + prepared.deviation[None] * residual, self.curvature)
        functions = (residual, residual**2, w, w * residual, w * residual**2, sigmoid, sigmoid * residual)
        return Summary(*(jnp.sum(weights * function, axis=0) for function in functions))

    def _trapezoid(self, prepared: Prepared) -> Summary:
        # The label moves the mean of u by at most s; an analytic integrand, so the error falls exponentially in 1/step.
        s, y = prepared.deviation[None], prepared.label[None]
        nodes = device_array(np.linspace(-1, 1, 401)[:, None], s.dtype) * (9 + s)
        log_weight = -0.5 * nodes**2 + jax.nn.log_sigmoid(y * (prepared.centre[None] + s * nodes))
        return self._summarise(prepared, nodes, jax.nn.softmax(log_weight, axis=0))


def _square(m: Any, d: Any, zeroth: Any, first: Any, second: Any) -> Any:
    """E[w (m + d u)(m + d u)'] from E w, E wu and E wu^2."""
    left = zeroth[:, None] * m + first[:, None] * d
    right = first[:, None] * m + second[:, None] * d
    return left[:, :, None] * m[:, None, :] + right[:, :, None] * d[:, None, :]
