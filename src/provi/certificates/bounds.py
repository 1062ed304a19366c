r"""One bound on the optimality gap: its value and grounds, the function J that all share, how it is printed.

Bound (d) of docs/theory/certificates.md: a region that provably holds the best member, and the curvature on it.

On $R = \{|v| \le \rho, |D|_F \le \rho\}$ the curvature in v is at least $H_R$, that of $-\log\det$ at least $c = (1 +
\rho)^{-2}$. With $Q^2 = |g|^2_{H_R^{-1}} + |S - I|_F^2/c$, every point that is as good as q has $|v|_{H_R} \le
|g|_{H_R^{-1}} + Q$ and $|D|_F \le |S - I|_F/c + Q/\sqrt c$. If both put it inside R, the best member is inside, and the
gap is at most $\tfrac12|g|^2_{H_R^{-1}} + J(S)$.
"""

import dataclasses
import math
from collections.abc import Callable
from decimal import ROUND_CEILING, Context, Decimal
from typing import Any

import jax.numpy as jnp
import numpy as np


@dataclasses.dataclass(frozen=True)
class GapBound:
    """An upper bound on f(w) - f*, in nats.

    - `name`: which of the bounds of docs/theory/certificates.md; `value`: infinite where it does not apply.
    - `status`: 'proven' (from proven or declared properties of the target) or 'conditional'.
    - `confidence`: None for a deterministic bound, otherwise the probability with which it holds at least.
    - `num_samples`: gradients of the log density that it used; `detail`: what it assumes or why it is infinite.
    """

    name: str
    value: float
    status: str
    confidence: float | None = None
    num_samples: int = 0
    detail: str = ""


def log_det_gap(eigenvalues: np.ndarray) -> float:
    r"""J(S) = tr(S - I) - log det S = sup over B > 0 of log det B - <S, B - I>, from the eigenvalues of S.

    Infinite unless S is positive definite.
    """
    if not (eigenvalues > 0).all():
        return math.inf
    excess = eigenvalues - 1.0
    # log1p keeps the digits of J ~ |S - I|^2 / 2 near its zero; the difference is never negative but by rounding.
    return float(np.sum(np.maximum(excess - np.log1p(excess), 0.0)))


def log_det_gap_from_norm(norm: float) -> float:
    r"""The largest J(I + G) over all symmetric G with |G|_F <= norm: -norm - log(1 - norm), infinite from 1 on.

    x - log(1 + x) grows faster to the left of zero, and convexity puts all of the norm into one eigenvalue.
    """
    return -norm - math.log1p(-norm) if norm < 1 else math.inf


LOCAL = "local curvature (d)"
_FIRST_RADIUS, _LARGEST_RADIUS, _MOST_RADII, _LARGEST_UNIT = 3.0, 30.0, 4, 1e50
"""Radii to try, in multiples of the whitened gradient norm; each costs a pass, or a factorisation or two."""


def region_bound(
    covariance: float, size: float, gradient_norm: float, at_radius: Callable[[float], tuple[float, float]]
) -> GapBound:
    """The bound from the first radius that is large enough.

    **Arguments:**

    - `covariance`: J(S). - `size`: |S - I|_F. - `gradient_norm`: |g|. All with their errors added.
    - `at_radius`: the least eigenvalue of H_R (zero or less: none), and |g|^2 / 2 in its inverse.
    """
    unit = math.hypot(gradient_norm, size)
    if not math.isfinite(covariance):
        return GapBound(LOCAL, math.inf, "proven", detail="too far from the optimum: S is not positive definite")
    radius = _FIRST_RADIUS * unit
    # |D| <= radius needs size (1 + radius)^2 < radius, so that no region can hold a size of 1/4.
    for _ in range(_MOST_RADII if size < 0.25 and unit < _LARGEST_UNIT else 0):
        smallest, mean = at_radius(radius)
        if not smallest > 0:
            break
        steepness = (1 + radius) ** -2.0
        total = math.sqrt(2 * mean + size**2 / steepness)
        needed = (math.sqrt(2 * mean) + total) / math.sqrt(smallest)
        needed = max(needed, size / steepness + total / math.sqrt(steepness))
        if needed < radius:
            detail = f"on a region of radius {radius:.2g} around q"
            return GapBound(LOCAL, float(mean + covariance), "proven", detail=detail)
        if needed > _LARGEST_RADIUS * unit:
            break
        radius = 1.2 * needed  # a wider region has less curvature, so it needs a little more than was asked for
    return GapBound(LOCAL, math.inf, "proven", detail="too far from the optimum: no region holds the best member")


def local_weights(
    self_concordance: float, moments: Callable[[Any], tuple], spread: Any, radius: Any, slack: Any
) -> Any:
    r"""$\kappa_n$: lower bounds on the curvature of each term in its mean while |v|, |D|_F <= `radius`; traced.

    With $q_n = M(\sigma_n\rho + \text{slack}_n)$, M the self-concordance of the link and `slack` the errors of its mean
    and deviation, $\kappa_n = e^{-3q_n/2}(1 + q_n)^{-1/2}\,\kappa(\mu_n, \sigma_n(1 + q_n)^{-1/2})$, where
    $\kappa(\mu, \sigma) = m_0 - m_1^2/m_2$, and `moments`(sigma) are $m_j = E[t^j\ell''(\mu + \sigma t)]$, j = 0, 1, 2,
    and a bound on their errors.
    """
    change = self_concordance * (spread * radius + slack)
    zeroth, first, second, error = moments(spread / jnp.sqrt(1 + change))
    # The smallest value of (m0 - e) + 2 b m1 + b^2 (m2 - e) over b: right for all moments within the error.
    safe = jnp.where(second > error, second - error, 1)
    kappa = jnp.where(second > error, zeroth - error - first**2 / safe, 0)
    return jnp.exp(-1.5 * change) / jnp.sqrt(1 + change) * jnp.maximum(kappa, 0)


def at_most(value: float, digits: int = 3) -> str:
    """An upper bound with `digits` significant digits, rounded up: read back, the text is never below the bound."""
    text = f"{value:.{digits}g}"
    if not math.isfinite(value) or float(text) >= value:
        return text
    # Decimal(value) is the float exactly, so this rounding is the only one.
    return f"{float(Context(digits, ROUND_CEILING).create_decimal(Decimal(value))):.{digits}g}"
