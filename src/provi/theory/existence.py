r"""Whether the best approximation in a location-scale family exists: paper 004, Theorem 1, and more.

**Problem and assumptions:** $\min f(m, C) = E\phi(m+Cu)-\log\det C$; $\phi$ continuous with $r$-growth,
$\phi(z) \ge c_1|z|^r-c_2$, $c_1 > 0$; the base standardised; $f$ finite somewhere (an $M$-smooth potential
suffices; the paper forgets to ask for it, and it fails for Poisson regression with a Student-t base).
**Statement:** a minimiser exists for $r = 2$, or for any $r > 0$ with a log-concave base (the paper).
**Ours:** log-concavity is not needed. $E|m+Cu|^r$ is homogeneous, lower semicontinuous and positive off the
origin, hence at least $c|w|^r$; with $-\log\det C \ge -d\log(|C|_F/\sqrt d)$ the sublevel sets are compact.
"""

import dataclasses

from provi.core.arguments import check_positive
from provi.theory.inputs import Number


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
      density that can be normalised has $r = 1$.
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
