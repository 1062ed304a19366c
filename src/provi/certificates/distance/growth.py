r"""How fast a sum of terms must grow around a point: what the data say about the tails.

Let $S(e) = e'\nabla^2f(0)e$, of which $\lambda(e)$ is the prior's and $Q(e) = \sum_n\ell_n''(x_n'e)^2$ the data's,
and let $(\log\ell_n'')'' \ge -\kappa$: 0 for a Poisson term, 1/2 for a logistic one. Then $\ell_n''(\mu_n + sx_n'e)
\ge \ell_n''\exp(s\,(\log\ell_n'')'\,x_n'e - \tfrac12\kappa s^2(x_n'e)^2)$, and by Jensen, with the weights
$\ell_n''(x_n'e)^2/Q$,

$$e'\nabla^2f(se)e \ge \lambda(e) + Q\exp\Bigl(-\frac{s\tau + \tfrac12\kappa s^2\beta}Q\Bigr) \ge \lambda +
D\exp\Bigl(-\frac{s\tau + \tfrac12\kappa s^2\beta}D\Bigr), \qquad D = \underline S - \lambda,$$

with $\tau \ge |\sum_n\ell_n'''(x_n'e)^3|$ and $\beta \ge \sum_n\ell_n''(x_n'e)^4$ for all unit e, $\underline S$ the
least eigenvalue of $\nabla^2f(0)$ and $\lambda$ that of the prior: $Qe^{-c/Q}$ has a slope in Q between 0 and 1, so
that the least values of both parts are the worst. With $|(\log\ell_n'')'| \le M$ the exponent is also at most
$Ms\sum_n\ell_n''|x_n'e|^3/Q \le Ms\sqrt{\beta/D}$. Integrated twice, $f(w) \ge \langle\nabla f(0), w\rangle +
F(|w|)$, so $f^*(u) \le F^*(|u| + |\nabla f(0)|)$.

$\beta$ and $\tau$ are largest values of forms of degree four and three. On the symmetric matrices $Y = ee'$ the
former is a quadratic form B, the latter a bilinear one of e and Y. Since $\langle I, ee'\rangle = 1$, for every t and
c they are at most $t + \lambda_{\max}(B - t\,\mathrm{vec}I\,\mathrm{vec}I')$ and $|c| + \|A - c\,\mathrm{vec}I'\|$:
for a cloud of rows without direction $\beta$ is three times the square of a variance, where the length of a row would
have it d times.
"""

import dataclasses
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from provi.certificates.distance.conjugate import RowProblem

_LARGEST_FORM, _MOST_WORK = 40, 2e9
"""Dimension up to which the form of degree four is formed; operations up to which that of degree three is."""

_LEAST_DATA, _CELLS, _LARGEST_RADIUS = 0.05, 4000, 60.0
_EPS = float(np.finfo(float).eps)


@dataclasses.dataclass(frozen=True)
class RadialGrowth:
    """F, by its second derivative on cells of equal width, each time the least in the cell.

    - `gradient`: |grad f(0)|. - `radii`, `slopes`, `values`: r, F'(r) and F(r) at the ends of the cells.
    """

    gradient: float
    radii: np.ndarray
    slopes: np.ndarray
    values: np.ndarray

    @property
    def reach(self) -> float:
        """The largest |u| for which F* is known."""
        return max(float(self.slopes[-1]) - self.gradient, 0.0)

    def conjugate(self, size: np.ndarray) -> np.ndarray:
        """F*(a) = sup a r - F(r) for 0 <= a <= the last slope, exactly, but for rounding, which is added."""
        a = np.minimum(np.asarray(size, np.float64), self.slopes[-1])
        cell = np.clip(np.searchsorted(self.slopes, a, side="right") - 1, 0, len(self.radii) - 2)
        width, rise = self.radii[cell + 1] - self.radii[cell], self.slopes[cell + 1] - self.slopes[cell]
        bend = rise / width
        step = np.clip((a - self.slopes[cell]) / bend, 0.0, width)
        here = self.values[cell] + self.slopes[cell] * step + 0.5 * bend * step**2
        value = a * (self.radii[cell] + step) - here
        return value + 1e-9 * (1 + np.abs(value) + self.values[cell])


def radial_growth(problem: RowProblem) -> RadialGrowth | None:
    """The growth around w = 0; None where nothing is known of the terms' curvature, or the data say too little."""
    decay = problem.likelihood.curvature_decay
    if decay is None:
        return None
    rows = np.asarray(problem.root if problem.design is None else np.asarray(problem.design) @ problem.root)
    found = _derivatives(problem.likelihood, problem.centre, problem.response)
    slopes, weights, thirds = (np.asarray(x) for x in found)
    # What rounding of rows and centres does to a weight is far less than this, relatively.
    weights = np.maximum(weights, 0.0) * (1 - 1e-7)
    if not all(np.isfinite(x).all() for x in (slopes, weights, thirds)):
        return None
    prior = problem.curvature()
    least = float(np.linalg.eigvalsh(prior)[0])
    total = prior + rows.T @ (weights[:, None] * rows)
    data = float(np.linalg.eigvalsh(total)[0]) - 1e-9 * float(np.trace(total)) - least
    if not (least > 0 and data > _LEAST_DATA):
        return None
    if not _promising(problem, rows, weights, data):
        return None
    fourth, third = _fourth_order(rows, weights * (1 + 3e-7)), _third_order(rows, thirds)
    gradient = rows.T @ slopes + np.asarray(problem.prior_gradient)
    radii = np.linspace(0.0, _LARGEST_RADIUS, _CELLS + 1)
    # The curvature bound falls with the radius: at the right end of a cell it is the least.
    exponent = (radii[1:] * third + 0.5 * decay * radii[1:] ** 2 * fourth) / data
    if problem.likelihood.self_concordance is not None:
        exponent = np.minimum(exponent, problem.likelihood.self_concordance * math.sqrt(fourth / data) * radii[1:])
    bend = least + data * np.exp(-exponent)
    step = radii[1]
    rising = np.concatenate([[0.0], np.cumsum(bend * step)])
    values = np.concatenate([[0.0], np.cumsum(rising[:-1] * step + 0.5 * bend * step**2)])
    return RadialGrowth(float(np.linalg.norm(gradient)) * (1 + 1e-6) + 1e-9, radii, rising, values)


def _promising(problem: RowProblem, rows: np.ndarray, weights: np.ndarray, data: float) -> bool:
    """Whether F* could reach an ordinary |u| if the rows were a cloud without direction: else spare the forms."""
    dim, lengths = rows.shape[1], np.sum(rows**2, axis=1)
    fourth = 3 / (dim + 2) * float(np.sum(weights * lengths**2)) / dim
    slowest = 0.5 * (problem.likelihood.curvature_decay or 0.0)
    return data * math.sqrt(math.pi * data / max(4 * slowest * fourth, 1e-300)) > math.sqrt(dim)


def _pairs(dim: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Coordinates of symmetric matrices in which their inner product is the usual one; and the identity's."""
    upper, lower = np.triu_indices(dim)
    return upper, lower, np.where(upper == lower, 1.0, math.sqrt(2.0)), np.where(upper == lower, 1.0, 0.0)


def _fourth_order(rows: np.ndarray, weights: np.ndarray) -> float:
    """An upper bound of sum_n weights_n (x_n'e)^4 over unit vectors e."""
    dim, lengths = rows.shape[1], np.sum(rows**2, axis=1)
    plain = float(np.linalg.eigvalsh(rows.T @ ((weights * lengths)[:, None] * rows))[-1])
    if dim > _LARGEST_FORM or dim == 1:
        return plain * (1 + 1e-9)
    upper, lower, scale, identity = _pairs(dim)
    form, step = np.zeros((len(upper), len(upper))), max(2**22 // len(upper), 1)
    for start in range(0, len(rows), step):
        part = rows[start : start + step]
        products = part[:, upper] * part[:, lower] * scale[None, :]
        form += products.T @ (weights[start : start + step, None] * products)
    centre = float(identity @ form @ identity) / dim**2
    rounding = 16 * len(rows) * _EPS * float(np.trace(form))
    best = min(
        shift + float(np.linalg.eigvalsh(form - shift * np.outer(identity, identity))[-1])
        for shift in centre * np.asarray([0.5, 0.75, 0.9, 1.0])
    )
    return min(plain, best + rounding) * (1 + 1e-9)


def _third_order(rows: np.ndarray, thirds: np.ndarray) -> float:
    """An upper bound of |sum_n thirds_n (x_n'e)^3| over unit vectors e."""
    count, dim = rows.shape
    lengths = np.sum(rows**2, axis=1)
    # |sum t (x'e)^3| <= the largest eigenvalue of sum |t| |x| x x'.
    plain = float(np.linalg.eigvalsh(rows.T @ ((np.abs(thirds) * np.sqrt(lengths))[:, None] * rows))[-1])
    if count * dim**3 > _MOST_WORK or dim == 1:
        return plain * (1 + 1e-9)
    upper, lower, scale, identity = _pairs(dim)
    form, step = np.zeros((dim, len(upper))), max(2**22 // len(upper), 1)
    for start in range(0, count, step):
        part = rows[start : start + step]
        products = part[:, upper] * part[:, lower] * scale[None, :]
        form += (part * thirds[start : start + step, None]).T @ products
    centre = form @ identity / dim
    best = min(
        t * float(np.linalg.norm(centre)) + _spectral_norm(form - t * np.outer(centre, identity))
        for t in (0.0, 0.5, 1.0)
    )
    rounding = 16 * count * _EPS * float(np.sum(np.abs(thirds) * lengths**1.5))
    return min(plain, best + rounding) * (1 + 1e-9)


def _spectral_norm(matrix: np.ndarray) -> float:
    """Of a wide matrix, by its small Gram matrix, rounded up."""
    largest = float(np.linalg.eigvalsh(matrix @ matrix.T)[-1])
    return math.sqrt(max(largest, 0.0) + 16 * matrix.shape[1] * _EPS * float(np.sum(matrix**2)))


@eqx.filter_jit
def _derivatives(likelihood: Any, eta: Any, response: Any) -> tuple[Any, Any, Any]:
    """First, second and third derivatives of the terms."""

    def slope(x: Any) -> Any:
        values, pull = jax.vjp(lambda t: likelihood.potential(t, jnp.asarray(response)), x)
        return pull(jnp.ones_like(values))[0]

    def along(function: Any) -> Any:
        return lambda x: jax.jvp(function, (x,), (jnp.ones_like(x),))[1]

    eta = jnp.asarray(eta)
    return slope(eta), along(slope)(eta), along(along(slope))(eta)
