r"""Deterministic bounds on the optimality gap for linear models: (a), (b) and (d) of docs/theory/certificates.md.

Coordinates: a competitor of $q = (m, C)$ is $(m + Cv, C(I + D))$ with $I + D$ symmetric positive definite (diagonal
for a diagonal scale). The objective has gradient $g$ in $v$ and $S - I$ in $D$ at $q$. All three bounds split into a
part for the mean, from $g$, and a part for the covariance, from $S$; $J(S) = \mathrm{tr}(S - I) - \log\det S$ needs
convexity only.

All come from one pass over the data at q, in float64 (`whitened_pass`), with bounds on its errors. With $z = m + Cu$,
$\tilde x_n = C'x_n$, $\sigma_n = |\tilde x_n|$: $g = C'L_0(m - \mu_0) + \sum_n\alpha_n\tilde x_n$, $S = C'L_0C +
\sum_n\gamma_n\tilde x_n\tilde x_n'$ with $\alpha_n = E\ell_n'$, $\gamma_n = E[\ell_n'(\mu_n + \sigma_nt)t]/\sigma_n$.
An error of $\epsilon$ in $\alpha_n$ moves $g$ by at most $\epsilon\sigma_n$, one in $\gamma_n$ moves $S$ by
$\epsilon\sigma_n^2$.

Rounding moves $\tilde x_n$ by at most $\delta_n = 2d\epsilon\sum_i|x_{ni}|\,|C_i|$ ($C_i$ a row of C) and $\mu_n$ by
$\nu_n = 2d\epsilon|x_n|'|m|$: more than $\epsilon\sigma_n$ where columns cancel. With T the farthest standard deviation
that counts, $d\alpha/d\mu = \gamma$, $|d\alpha/d\sigma| = |E\,t\ell''| \le T\gamma$, $|d\gamma/d\mu| \le
T\gamma/\sigma$ and $|d\gamma/d\sigma| = |E(t^2 - 1)\ell''|/\sigma \le T^2\gamma/\sigma$.
"""

import dataclasses
import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import solve_triangular

from provi.algorithms.natural.natural_gradient import line_arguments
from provi.certificates.bounds import (
    LOCAL,
    GapBound,
    bound_on_region,
    local_weights,
    log_det_gap,
    needed_radius,
    on_grounds_of,
    region_bound,
)
from provi.core.devices import on_host
from provi.core.interpreter import instant_jit
from provi.families.bases import Normal
from provi.families.location_scale import LocationScale, Point, square_root
from provi.targets.likelihoods.moments import LinkMoments, MomentErrors, quadrature_moments
from provi.targets.linear_model import AbstractLinearModel
from provi.targets.priors import whitened_prior
from provi.targets.row_sums import (
    Rows,
    block_size,
    keep,
    magnitudes,
    products,
    sum_over_rows,
    weighted_gram,
    weighted_sums,
)

QUADRATURE_ERROR, LARGEST_SPREAD, LARGEST_TAIL = 1e-9, 10.0, 1e-12
"""Accuracy of the rules for other bases than the normal, the spread up to which it was tested, and the share of the
last nodes up to which the mean of an unbounded link is trusted."""

_FARTHEST = 12.0
"""Standard deviations beyond which a Gaussian has no mass in float64."""

RADII, SHARES = (0.1, 0.3, 1.0), (0.98, 0.9, 0.6)
"""Regions around q whose curvature a long pass bounds by the way, and the shares of the curvature at q that are tried:
at tol = 0.01 the best member is within about 0.3."""


@dataclasses.dataclass(frozen=True)
class WhitenedPass:
    """Gradient and curvature at q in its own coordinates, with error bounds; host arrays in float64.

    - `loc`, `root`: m, C; `prior`: C'L_0C rounded down, so that the true one less this one is positive semi-definite;
      `lower`: the same for C'HC, H the global curvature bound; `likelihood`: S less `prior`.
    - `gradient`: g; `curvature`: S; `gradient_error`, `curvature_error`: on |g| and |S|_F.
    - `diagonal`: the family's.
    - `gram`, `gram_error`: what the terms add to S, and its error. - `deficits`: for each of `RADII` and `SHARES` what
      the terms' curvature on the region lacks of that share of theirs at q (`_deficits`); None if not asked for.
    """

    loc: np.ndarray
    root: np.ndarray
    prior: np.ndarray
    lower: np.ndarray
    likelihood: np.ndarray
    gradient: np.ndarray
    curvature: np.ndarray
    gradient_error: float
    curvature_error: float
    diagonal: bool
    gram: np.ndarray
    gram_error: float
    deficits: np.ndarray | None


def whitened_pass(target: AbstractLinearModel, family: LocationScale, point: Point) -> WhitenedPass:
    """Evaluate at `point`; a low-rank member counts as one of the family of all covariances."""
    root, loc = square_root(point), np.asarray(point.loc, np.float64)
    double, rule = line_arguments(target, family)
    # Where a pass is long, what (d) needs of it is cheaper than another one.
    regions = target.num_terms > block_size(target) and rule is None and target.self_concordance is not None
    slope, gram, slope_error, weight_error, deficits = _pass(double, loc, root, rule, regions)
    prior = whitened_prior(target.prior, root, loc)
    likelihood = (np.asarray(gram) + np.asarray(gram).T) / 2
    # Every term has at least t0 / t1 of its curvature at q everywhere.
    least, most = target.curvature
    share = least / most if least > 0 and math.isfinite(most) else 0.0
    lower, lower_error = prior.curvature, prior.curvature_error
    if share > 0:
        lower, lower_error = lower + share * likelihood, lower_error + share * float(weight_error)
    curvature, below = prior.curvature + likelihood, rounded_down(prior.curvature, prior.curvature_error)
    return WhitenedPass(
        loc=loc,
        root=root,
        prior=below,
        lower=rounded_down(lower, lower_error),
        likelihood=curvature - below,
        gradient=prior.gradient + np.asarray(slope),
        curvature=curvature,
        gradient_error=float(slope_error) + prior.gradient_error,
        curvature_error=float(weight_error) + prior.curvature_error,
        diagonal=family.scale == "diagonal",
        gram=likelihood,
        gram_error=float(weight_error),
        deficits=np.asarray(deficits) if regions else None,
    )


def rounded_down(matrix: np.ndarray, error: float) -> np.ndarray:
    """A matrix below every one within `error` of `matrix`, by enough that Cholesky factors, eigenvalues and solutions
    computed from it in float64 are those of a matrix that is so, too."""
    rounding = 16 * len(matrix) * np.finfo(float).eps * float(np.trace(np.abs(matrix)))
    return matrix - (error + rounding) * np.eye(len(matrix)) if math.isfinite(error) else matrix


@instant_jit
def _pass(target: AbstractLinearModel, loc: Any, root: Any, rule: Any, regions: bool) -> Any:
    # A sum of N products is off by at most N eps times the sum of their magnitudes.
    rounding = (target.num_terms + 8) * jnp.finfo(root.dtype).eps
    steepness = 0.0 if target.self_concordance is None else target.self_concordance

    def sums(block: Rows, real: Any) -> Any:
        rows = products(block.design, root)
        centre, variance = block.design @ loc, jnp.sum(rows**2, axis=1)
        total = block.total_variance(variance)
        moments, errors = keep(real, moments_and_errors(target, centre, total, block.response, rule))
        gradient, gram = weighted_sums(rows, moments.slope, moments.weight)
        # An offset moves what a row's moments are, not how they enter the gradient.
        spread, weight, slope = jnp.sqrt(variance), jnp.abs(moments.weight), jnp.abs(moments.slope)
        row_error, centre_error = row_rounding(block.design, loc, root)
        centre_error = centre_error + target.likelihood.shift_error(centre, block.response)
        # Where the link's curvature grows with t, the mean of it lies farther out.
        far = _FARTHEST + steepness * spread
        moved = weight * (centre_error + far * row_error)
        slope_error = (errors.slope + rounding * slope + moved) * spread + slope * row_error
        weight_error = (errors.weight + rounding * weight) * variance
        weight_error += weight * (2 * row_error * spread + row_error**2) + far * moved * spread
        deficits = jnp.zeros(())
        if regions:
            lacks = partial(_deficits, target, block, moments.weight, centre, spread, row_error, centre_error)
            deficits = jnp.stack([jnp.where(real[None, :], lacks(radius), 0).sum(axis=1) for radius in RADII])
        return gradient, gram, jnp.sum(slope_error), jnp.sum(weight_error), deficits

    return sum_over_rows(target, sums, dtype=jnp.float64)


def _deficits(
    target: AbstractLinearModel,
    block: Rows,
    weight: Any,
    centre: Any,
    spread: Any,
    row_error: Any,
    centre_error: Any,
    radius: float,
) -> Any:
    r"""$(c\gamma_n - \kappa_n)_+\sigma_n^2$ of every row and share c, $\kappa_n$ the row's curvature on the region.

    $\sum\kappa_n\tilde x_n\tilde x_n' \ge c\sum\gamma_n\tilde x_n\tilde x_n' -
    \sum(c\gamma_n - \kappa_n)_+\sigma_n^2\,I$: rows that lose more than the others cost what they weigh, and there
    need not be another matrix for every region.
    """
    slack = centre_error + (1 + radius) * row_error
    kappa = row_weights(target, centre, spread, radius, block.variance_offset, slack, block.response)
    longest = (spread + row_error) ** 2
    return jnp.stack([jnp.maximum(share * weight - kappa, 0) * longest for share in SHARES])


def row_rounding(design: Any, loc: Any, root: Any) -> tuple[Any, Any]:
    """Bounds on the rounding of each row x'C, in its norm, and of each x'm."""
    unit, norms = 2 * design.shape[1] * jnp.finfo(root.dtype).eps, jnp.sqrt(jnp.sum(root**2, axis=1))
    sizes = unit * magnitudes(design, jnp.stack([norms, jnp.abs(loc)], axis=1))
    return sizes[:, 0], sizes[:, 1]


def moments_and_errors(
    target: AbstractLinearModel, centre: Any, variance: Any, response: Any, rule: Any
) -> tuple[LinkMoments, MomentErrors]:
    """The moments of every row and bounds on their errors; `rule` is None for the normal base.

    A rule's errors are infinite beyond the spread that it was tested for, in widths of the link's bend, and where an
    unbounded link is not small at the rule's last nodes: there the mean itself may be infinite.
    """
    if rule is None:
        return target.gaussian_moments(centre, variance, response), target.moment_errors(centre, variance, response)
    spread = jnp.sqrt(variance)

    def link(eta):
        return target.link_potential(eta, response)

    moments = quadrature_moments(link, centre, spread, rule)
    nodes, weights = (jnp.asarray(x) for x in rule)
    tail = weights[-1] * nodes[-1] * sum(jnp.abs(link(centre + sign * spread * nodes[-1])) for sign in (-1, 1))
    # The last node of a bounded base is an ordinary one: it has a weight.
    bounded = (weights[-1] > LARGEST_TAIL) | (tail <= LARGEST_TAIL * (1 + jnp.abs(moments.value)))
    width = jnp.minimum(target.likelihood.bend(response)[1], 1)
    trusted = (spread <= LARGEST_SPREAD * width) & bounded
    error = QUADRATURE_ERROR * target.likelihood.largest_weight
    return moments, jax.tree.map(
        lambda moment: jnp.where(trusted, error * (1 + jnp.abs(moment)), jnp.inf),
        MomentErrors(moments.value, moments.slope, moments.weight),
    )


@instant_jit
def curvature_on_region(target: AbstractLinearModel, loc: Any, root: Any, radius: Any) -> Any:
    """`local_curvature` of all rows of `target`, which is in float64, at q = (loc, root), and its rounding."""

    def sums(block: Rows, real: Any) -> Any:
        rows = products(block.design, root)
        spread = jnp.sqrt(jnp.sum(rows**2, axis=1))
        row_error, centre_error = row_rounding(block.design, loc, root)
        centre = block.design @ loc
        slack = centre_error + (1 + radius) * row_error + target.likelihood.shift_error(centre, block.response)
        weight = row_weights(target, centre, spread, radius, block.variance_offset, slack, block.response)
        weight = jnp.where(real, weight, 0)
        return weighted_gram(rows, weight), jnp.sum(weight * (2 * spread + row_error) * row_error)

    return sum_over_rows(target, sums, dtype=jnp.float64)


@instant_jit
def local_curvature(
    target: AbstractLinearModel, rows: Any, centre: Any, spread: Any, radius: Any, offset: Any = None
) -> Any:
    r"""$\sum_n\kappa_n\tilde x_n\tilde x_n'$, a lower bound on the curvature in v while |v|, |D|_F <= `radius`."""
    return rows.T @ (row_weights(target, centre, spread, radius, offset, 0.0)[:, None] * rows)


def row_weights(
    target: AbstractLinearModel, centre: Any, spread: Any, radius: Any, offset: Any, slack: Any, response: Any = None
) -> Any:
    """`local_region.local_weights` of rows whose terms are smoothed by a variance `offset`, or not (None)."""

    def moments(deviation: Any) -> tuple:
        return smoothed_moments(target, centre, deviation, offset, response)

    assert target.self_concordance is not None
    return local_weights(target.self_concordance, moments, spread, radius, slack)


def smoothed_moments(
    target: AbstractLinearModel, centre: Any, deviation: Any, offset: Any, response: Any = None
) -> tuple:
    r"""$E[t^j\psi''(\mu + st)]$, j = 0, 1, 2, for $\psi(\eta) = E\ell(\eta + \sqrt\kappa e)$, and their error.

    With $T = (st + \sqrt\kappa e)/\sqrt{s^2 + \kappa}$ and $r = s/\sqrt{s^2 + \kappa}$ the conditional law of t is
    $N(rT, 1 - r^2)$, so they are $m_0$, $rm_1$ and $r^2m_2 + (1 - r^2)m_0$ of the link at the total deviation.
    """
    if offset is None:
        return target.curvature_moments(centre, deviation, response)
    total = jnp.sqrt(deviation**2 + offset)
    zeroth, first, second, error = target.curvature_moments(centre, total, response)
    share = jnp.where(total > 0, deviation / jnp.where(total > 0, total, 1), 1)
    return zeroth, share * first, share**2 * second + (1 - share**2) * zeroth, error


NAMES = ("strong convexity (a)", "linearisation (b)", LOCAL)
_LARGEST_PRIOR_PART = 300
"""Dimension above which the singular values of (b) are not worth their cost: (d) is sharper. Nor are they where rows
are many, beside which the prior is small."""


def linear_model_bounds(target: AbstractLinearModel, family: LocationScale, point: Point) -> tuple[GapBound, ...]:
    """The three bounds at `point`, in one pass over the data for (a) and (b) and one for each radius of (d).

    **Arguments:**

    - `target`: the model. - `family`, `point`: the member q; any base and any scale.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # far from the optimum: infinite
        at = whitened_pass(target, family, point)
        numbers = (at.gradient, at.curvature, at.gradient_error, at.curvature_error)
        if not all(np.isfinite(x).all() for x in numbers):
            reason = "the mean of a data term under q is infinite, or beyond the quadrature; or the prior is singular"
            return tuple(GapBound(name, math.inf, "proven", detail=reason) for name in NAMES)
        bounds = strong_convexity_bound(at), linearisation_bound(at), local_bound(target, family, at)
    return on_grounds_of(target.likelihood, bounds, isinstance(family.base, Normal))


def refuted_link(target: AbstractLinearModel, point: Point) -> Any:
    """A counterexample to what the user declared of the likelihood, within reach of q; None for the package's own."""
    if target.likelihood.grounds[0] == "proven":
        return None
    from provi.certificates.linear.refutation import link_counterexample  # a default fit has no need of it

    design, response = (on_host(x, target.num_terms) for x in (target.design, target.response))
    variance = np.sum((design.astype(np.float64) @ square_root(point)) ** 2, axis=1)
    if target.variance_offset is not None:
        variance = variance + on_host(target.variance_offset, target.num_terms)
    return link_counterexample(target.likelihood, design @ np.asarray(point.loc, np.float64), variance, response)


def strong_convexity_bound(at: WhitenedPass) -> GapBound:
    r"""(a): $\tfrac12|\nabla f|^2_{H^{-1}}$ over (v, D), with $\tilde H = C'HC$ the curvature of the prior.

    $E|v + Du|^2_{\tilde H} = |v|^2_{\tilde H} + \langle D, \tilde HD\rangle$: on symmetric D, in the eigenbasis of
    $\tilde H$, $\sum_{ij}D_{ij}^2(h_i + h_j)/2$; on diagonal D, $\sum_iD_{ii}^2\tilde H_{ii}$.
    """
    values, vectors = np.linalg.eigh(at.lower)
    if not values[0] > 0:
        return GapBound(NAMES[0], math.inf, "proven", detail="no positive curvature bound")
    residual = at.curvature - np.eye(len(values))
    if at.diagonal:
        weights = np.diagonal(at.lower)
        norm = math.sqrt(np.sum(np.diagonal(residual) ** 2 / weights)) + at.curvature_error / math.sqrt(weights.min())
    else:
        rotated = vectors.T @ residual @ vectors
        metric = 2 / (values[:, None] + values[None, :])
        norm = math.sqrt(np.sum(rotated**2 * metric)) + at.curvature_error / math.sqrt(values[0])
    covariance = 0.5 * np.square(norm)
    return GapBound(NAMES[0], float(mean_part(at, at.lower, float(values[0])) + covariance), "proven")


def linearisation_bound(at: WhitenedPass) -> GapBound:
    """(b): the linearisation gap with the Gaussian prior in h, or with nothing but -log det in it: the smaller."""
    covariance = log_det_part(at)
    if len(at.gradient) <= _LARGEST_PRIOR_PART and at.deficits is None:
        covariance = min(covariance, prior_part(at))
    smallest = float(np.linalg.eigvalsh(at.lower)[0])
    return GapBound(NAMES[1], float(mean_part(at, at.lower, smallest) + covariance), "proven")


def local_bound(target: AbstractLinearModel, family: LocationScale, at: WhitenedPass) -> GapBound:
    """(d): `local_region`, with H_R the curvature of the prior and of the terms on the region."""
    if target.self_concordance is None or family.base.name != "normal":
        reason = "the link is not self-concordant" if target.self_concordance is None else "for a normal base only"
        return GapBound(NAMES[2], math.inf, "proven", detail=reason)
    residual = at.curvature - np.eye(len(at.gradient))
    residual = np.diagonal(residual) if at.diagonal else residual
    size = float(np.linalg.norm(residual)) + at.curvature_error
    found = local_bound_by_the_way(at, size)
    if found is not None:
        return found
    double = line_arguments(target, family)[0]

    def at_radius(radius: float) -> tuple[float, float]:
        gained, error = (np.asarray(x) for x in curvature_on_region(double, at.loc, at.root, np.asarray(radius)))
        # A Gram matrix of N products: its rounding, as in `whitened_pass`.
        slack = target.num_terms * np.finfo(float).eps * float(np.trace(gained)) + float(error)
        # The prior's curvature, not `lower`: that of the terms is already in what was gained.
        curvature = at.prior + rounded_down((gained + gained.T) / 2, slack)
        smallest = float(np.linalg.eigvalsh(curvature)[0])
        return smallest, mean_part(at, curvature, smallest)

    norm = float(np.linalg.norm(at.gradient)) + at.gradient_error
    return region_bound(log_det_part(at), size, norm, at_radius)


def local_bound_by_the_way(at: WhitenedPass, size: float) -> GapBound | None:
    """(d) from what the pass at q says of the regions of `RADII`; None where that is not enough."""
    covariance = log_det_part(at)
    if at.deficits is None or not math.isfinite(covariance):
        return None
    for radius, deficits in zip(RADII, at.deficits, strict=True):
        for share, deficit in zip(SHARES, deficits, strict=True):
            lacking = share * at.gram_error + 1.000001 * float(deficit)  # a sum of up to 10^9 numbers, rounded
            curvature = at.prior + rounded_down(share * at.gram, lacking)
            smallest = float(np.linalg.eigvalsh(curvature)[0])
            mean = mean_part(at, curvature, smallest)
            if smallest > 0 and needed_radius(radius, size, smallest, mean) < radius:
                return bound_on_region(radius, mean + covariance)
    return None


def mean_part(at: WhitenedPass, curvature: np.ndarray, smallest: float) -> float:
    """|g|^2 / 2 in the inverse of `curvature`, whose least eigenvalue is `smallest`, with the error of g added."""
    if not smallest > 0:
        return math.inf
    try:
        factor = np.linalg.cholesky(curvature)
    except np.linalg.LinAlgError:
        return math.inf
    white = solve_triangular(factor, at.gradient, lower=True)
    return float(0.5 * np.square(np.linalg.norm(white) + at.gradient_error / math.sqrt(smallest)))


def log_det_part(at: WhitenedPass) -> float:
    r"""J of every matrix within e of S, by Taylor: $J(S) + e|I - S^{-1}|_F + e^2/(2(\lambda_{\min} - e)^2)$."""
    values = np.diagonal(at.curvature) if at.diagonal else np.linalg.eigvalsh(at.curvature)
    rounding = 16 * len(values) * np.finfo(float).eps * float(np.abs(values).max())
    error = at.curvature_error + rounding
    if not values.min() > 2 * error:
        return math.inf
    slope = float(np.linalg.norm(1 - 1 / values))
    return log_det_gap(values) + error * slope + 0.5 * (error / (values.min() - error)) ** 2


def prior_part(at: WhitenedPass) -> float:
    r"""(b) for the scale: sup over C' of <A, C - C'> + h(C) - h(C'), h(C) = |F^{-1}C|_F^2/2 - log det C.

    C'R is the same member for every rotation R, so each competitor is taken at the R with the largest <A, C'R>, a
    nuclear norm. The prior is N(mu, FF'). With the singular values s of F'A, A the gradient of the likelihood part, the
    best C' has the singular values $y = (-s + \sqrt{s^2 + 4})/2$ in prior units; an error E in A adds at most
    $|C - C'||E| + |E|^2/2$, h being 1-strongly convex there. The prior may be any that is below the true one: what is
    left of it is convex and counts as likelihood. So it is rounded down, and S alone has an error.
    """
    error, dim, eps = at.curvature_error, len(at.gradient), np.finfo(float).eps
    if at.diagonal:
        precision, slope = np.diagonal(at.prior), np.diagonal(at.likelihood)
        if not precision.min() > 0:
            return math.inf
        # In units of q each entry is 1 and the competitor b solves p b^2 + a b = 1.
        best = 2 / (slope + np.sqrt(slope**2 + 4 * precision))
        value = np.sum(slope * (1 - best) + 0.5 * precision * (1 - best**2) + np.log(best))
        size = np.sum((np.abs(slope) + precision) * (1 + best**2) + np.abs(np.log(best)))
        error += 16 * eps * float(np.linalg.norm(np.abs(slope) + precision))
        total = value + error * np.linalg.norm(1 - best) + 0.5 * np.square(error) / precision.min()
        return float(total + 16 * dim * eps * size)
    # Prior units: F^-1 C is any square root of C' L_0 C transposed; take its Cholesky factor K', K K' = prior.
    try:
        lower = np.linalg.cholesky(at.prior)
    except np.linalg.LinAlgError:
        return math.inf
    own = lower.T
    gradient = solve_triangular(lower, at.likelihood, lower=True)
    left, singular, right = np.linalg.svd(gradient)
    best = 2 / (singular + np.sqrt(singular**2 + 4))
    other = (left * best) @ right
    value = np.sum(gradient * own) - np.sum(singular * best)
    value += 0.5 * np.sum(own**2) - 0.5 * np.sum(best**2)
    value += np.sum(np.log(best)) - np.sum(np.log(np.diagonal(lower)))
    size = np.sum(np.abs(gradient * own)) + np.sum(own**2) + dim + np.sum(np.abs(np.log(np.diagonal(lower))))
    # Solving and the singular values are backward stable: an error of the size of |K||gradient| in A.
    error += 16 * dim * eps * float(np.linalg.norm(own) * np.linalg.norm(gradient))
    error /= math.sqrt(max(float(np.linalg.eigvalsh(at.prior)[0]), 1e-300))
    total = max(value, 0.0) + error * np.linalg.norm(own - other) + 0.5 * np.square(error)
    return float(total + 16 * dim * eps * size)
