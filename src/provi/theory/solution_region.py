r"""Where the optimum lies, before anything is run.

Problem: $\min f = l + h$ over $w = (m, C)$, $C$ triangular, symmetric or diagonal with positive diagonal or
eigenvalues; the base is standardised; $\bar z$ is the mode of the target and $\bar w = (\bar z, 0)$.
No theorem here needs a log-concave base (paper 004 asks for one in Proposition 2): $l$ is an expectation of
convex functions of $w$ for any base.
"""

import math

from provi.core.arguments import check_count, check_positive
from provi.theory.inputs import Number, check_nonnegative


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
