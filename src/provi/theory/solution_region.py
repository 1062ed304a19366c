r"""Whether the best approximation in a location-scale family exists, and where it lies, before anything is run.

**Where it lies.**

Problem: $\min f = l + h$ over $w = (m, C)$, $C$ triangular, symmetric or diagonal with positive diagonal or
eigenvalues; the base is standardised; $\bar z$ is the mode of the target and $\bar w = (\bar z, 0)$.
No theorem here needs a log-concave base (paper 004 asks for one in Proposition 2): $l$ is an expectation of
convex functions of $w$ for any base.

**Whether it exists: paper 004, Theorem 1, and more.**

**Problem and assumptions:** $\min f(m, C) = E\phi(m+Cu)-\log\det C$; $\phi$ continuous with $r$-growth,
$\phi(z) \ge c_1|z|^r-c_2$, $c_1 > 0$; the base standardised; $f$ finite somewhere (an $M$-smooth potential
suffices; the paper forgets to ask for it, and it fails for Poisson regression with a Student-t base).
**Statement:** a minimiser exists for $r = 2$, or for any $r > 0$ with a log-concave base (the paper).
**Ours:** log-concavity is not needed. $E|m+Cu|^r$ is homogeneous, lower semicontinuous and positive off the
origin, hence at least $c|w|^r$; with $-\log\det C \ge -d\log(|C|_F/\sqrt d)$ the sublevel sets are compact.
"""

import dataclasses
import math

import numpy as np

from provi.core.arguments import check_count, check_positive
from provi.theory.inputs import Number, check_nonnegative

_SMALLEST_GROWTH = 1e-9


def smallest_scale(smoothness: Number) -> float:
    r"""$1/\sqrt M$: every minimiser has $\sigma_{\min}(C^\star) \ge 1/\sqrt M$.

    Assumes an $M$-smooth potential. **Reference:** Domke (2020), Theorem 7; 003, Section 2.1.
    """
    return 1 / math.sqrt(check_positive("smoothness", smoothness))


def reference_distance_squared_bound(dim: int, strong_convexity: Number) -> float:
    r"""$d/\mu \ge |m^\star-\bar z|^2 + |C^\star|_F^2 = |w^\star-\bar w|^2$.

    Assumes a $\mu$-strongly convex potential. From $\nabla f(w^\star) = 0$:
    $\mu|w^\star-\bar w|^2 \le \langle\nabla l(w^\star), w^\star-\bar w\rangle$, which equals
    $-\langle\nabla h(w^\star), w^\star-\bar w\rangle = d$.
    The part of $C^\star$ is tight for the Gaussian target $N(\bar z, I/\mu)$. **Reference:** Domke (2020),
    Theorem 10; 003, Section 2.1.
    """
    return check_count("dim", dim) / check_positive("strong_convexity", strong_convexity)


def mode_distance_bound(gradient_norm: Number, strong_convexity: Number) -> float:
    r"""$|\nabla\phi(m_0)|/\mu \ge |m_0-\bar z|$ for a $\mu$-strongly convex potential $\phi$."""
    gradient_norm = check_nonnegative("gradient_norm", gradient_norm)
    return gradient_norm / check_positive("strong_convexity", strong_convexity)


def start_distance_squared_bound(start_to_reference: Number, dim: int, strong_convexity: Number) -> float:
    r"""$\big(|w_0-\bar w| + \sqrt{d/\mu}\big)^2 \ge |w_0-w^\star|^2$, the triangle inequality.

    **Arguments:**

    - `start_to_reference`: $|w_0-\bar w|$ or an upper bound of it, for instance
      $\sqrt{(|\nabla\phi(m_0)|/\mu)^2 + |C_0|_F^2}$.
    """
    start = check_nonnegative("start_to_reference", start_to_reference)
    return (start + math.sqrt(reference_distance_squared_bound(dim, strong_convexity))) ** 2


def linear_growth(gradients: np.ndarray) -> float:
    r"""A $c > 0$ with $\phi(z) \ge c|z|-c_2$ for a convex $\phi$ with these gradients $g_i$; 0 if they show none.

    A convex potential lies above its tangents, and so grows with $c = \min_{|v|=1}\max_i\langle g_i, v\rangle$. With
    weights $w_i \ge t > 0$, $\sum_iw_i = 1$ and $r = \sum_iw_ig_i$ (from a linear program; $r$ is its rounding): where
    $\max_i\langle g_i, v\rangle \le \delta$, each $\langle g_i, v\rangle \ge -(|r|+\delta)/t$, hence
    $\sigma_{\min}(G)/\sqrt n \le \max_i|\langle g_i, v\rangle| \le (|r|+\delta)/t$ and
    $$c \ge t\,\sigma_{\min}(G)/\sqrt n-|r|.$$
    Slopes are divided by their largest one before; a $c$ below $10^{-9}$ of that is rounding, and counts as none.

    **Arguments:**

    - `gradients`: (n, d), of the potential at any n points.
    """
    from scipy.optimize import linprog

    slopes = np.asarray(gradients, np.float64)
    size = np.abs(slopes).max(initial=0.0)
    count, dim = slopes.shape
    if not (np.isfinite(size) and size > 0 and count > dim):
        return 0.0
    slopes = slopes / size
    # max t, so that w_i >= t: with w = t + s, s >= 0, the unknowns are (s, t).
    balance = np.vstack([np.column_stack([slopes.T, slopes.sum(axis=0)]), np.append(np.ones(count), count)])
    found = linprog(np.append(np.zeros(count), -1.0), A_eq=balance, b_eq=np.append(np.zeros(dim), 1.0))
    if found.x is None:
        return 0.0
    weights = np.maximum(found.x[:-1], 0.0) + max(found.x[-1], 0.0)
    if not weights.min(initial=1.0) > 0:
        return 0.0
    weights = weights / weights.sum()
    smallest = float(np.linalg.svd(slopes, compute_uv=False)[-1])
    least = float(weights.min()) * smallest / math.sqrt(count) - float(np.linalg.norm(weights @ slopes))
    return float(size * least) if least > _SMALLEST_GROWTH else 0.0


@dataclasses.dataclass(frozen=True)
class Verdict:
    """`holds` is true where existence is proven; false means unknown, and `reason` says what is missing."""

    holds: bool
    reason: str


def minimiser_exists(
    growth_exponent: Number | None, base_log_concave: bool, strong_convexity: Number | None
) -> Verdict:
    r"""Whether $f$ has a minimiser, from what is known of the potential and the base.

    **Arguments:**

    - `growth_exponent`: an $r > 0$ with $\phi(z) \ge c_1|z|^r-c_2$, or None if none is known. A log-concave
      density has $r = 1$ if it can be normalised, which must be shown (`linear_growth`): softplus(z) cannot.
    - `base_log_concave`: decides only which proof is quoted.
    - `strong_convexity`: $\mu$, or None; $\mu > 0$ implies $r = 2$.
    """
    if strong_convexity is not None and strong_convexity > 0:
        return Verdict(True, "A strongly convex potential has quadratic growth (Labarriere et al. 2026, Theorem 1).")
    if growth_exponent is None:
        return Verdict(
            False,
            "Unknown: no growth of the potential is known. Declare growth_exponent or strong_convexity.",
        )
    exponent = check_positive("growth_exponent", growth_exponent)
    if exponent >= 2:
        return Verdict(True, "The potential has quadratic growth (Labarriere et al. 2026, Theorem 1).")
    if base_log_concave:
        return Verdict(
            True, f"Growth of order {exponent:g} and a log-concave base (Labarriere et al. 2026, Theorem 1)."
        )
    return Verdict(
        True,
        f"Growth of order {exponent:g} and a standardised base (compactness, docs/theory/location-scale.md).",
    )
