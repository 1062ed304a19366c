r"""Quadratic noise bounds: $E|g|^2 \le a\,|w - w^\star|^2 + b$ for one draw of each gradient estimator.

Assumptions of all: the potential $-\log p$ is $M$-smooth with stationary point $\bar z$; the base $s$ is
elliptic and standardised with kurtosis $\kappa = E u_i^4$; $\bar w = (\bar z, 0)$. The projection on the
matrix space (triangular, symmetric, diagonal) shrinks norms, so the bounds hold in each of them.

**Correction of paper 004 (Theorems 2 to 4).** It takes $E u_i^2|u|^2 = d - 1 + \kappa$ from Domke (2019),
which is for *independent* components. An elliptic base has them independent only if it is Gaussian; the true
value is $\rho = E|u|^4/d = (d+2)\kappa/3$ (`radial_factor`), equal for $\kappa = 3$ and larger for
$\kappa > 3$ (Laplace, Student-t), where the printed bound is violated. Everything here uses $\rho$.
"""

import dataclasses
import math
from typing import Any

import numpy as np

from provi.core.arguments import check_count, check_positive
from provi.theory.inputs import Number, check_at_most, check_nonnegative


@dataclasses.dataclass(frozen=True)
class NoiseBound:
    r"""The statement $E|g|^2 \le \text{slope}\,|w-w^\star|^2 + \text{floor}$ for ONE draw."""

    slope: Number
    floor: Number
    description: str

    def __post_init__(self) -> None:
        check_nonnegative("slope", self.slope)
        check_nonnegative("floor", self.floor)


def radial_factor(dim: int, kurtosis: Number) -> float:
    r"""$\rho = E[u_i^2|u|^2] = E|u|^4/d = (d+2)\kappa/3$ of an elliptic standardised base; $\rho \ge d$.

    On the sphere $E\theta_i^4 = 3/(d(d+2))$, hence $\kappa = 3E|u|^4/(d(d+2))$; $\rho \ge d$ is Jensen's
    inequality, so a kurtosis below $3d/(d+2)$ belongs to no elliptic base and is refused.
    """
    dim, kurtosis = check_count("dim", dim), check_positive("kurtosis", kurtosis)
    smallest = 3 * dim / (dim + 2)
    if kurtosis < smallest * (1 - 1e-12):
        raise ValueError(
            f"kurtosis = {kurtosis} is below 3 dim/(dim + 2) = {smallest:.6g}, the least of an elliptic base "
            f"in dimension {dim}. Pass E u_i^4 of the standardised base (3 for the normal one)."
        )
    return (dim + 2) * kurtosis / 3


def energy_noise(
    *, dim: int, smoothness: Number, reference_distance_squared: Number, kurtosis: Number = 3.0
) -> NoiseBound:
    r"""Noise of the energy estimator $g = (\pi, P(\pi u^\top))$ of $\nabla l$, $\pi = -\nabla\log p(m+Cu)$.

    **Inequality:**
    $E|g|^2 \le M^2\big((1+d)|m-\bar z|^2 + (1+\rho)|C|_F^2\big) \le (1+\rho)M^2|w-\bar w|^2$, so slope
    $2(1+\rho)M^2$ and floor slope $\cdot\,|w^\star-\bar w|^2$; the normal base has $1+\rho = d+3$. The
    first inequality is tight (quadratic potential).
    **Reference:** 003, Theorems 1 and 2; 004, Theorem 2, with $\rho$ for $d-1+\kappa$.

    **Arguments:**

    - `dim`, `smoothness`, `kurtosis`: $d$, $M$, $\kappa$.
    - `reference_distance_squared`: $|m^\star-\bar z|^2+|C^\star|_F^2$, or an upper bound of it
      (`solution_region`).
    """
    smoothness = check_positive("smoothness", smoothness)
    reference = check_nonnegative("reference_distance_squared", reference_distance_squared)
    slope = 2 * (1 + radial_factor(dim, kurtosis)) * smoothness**2
    return NoiseBound(slope, slope * reference, "energy estimator of grad l, one draw")


def entropy_noise(
    *, dim: int, smoothness: Number, reference_distance_squared: Number, kurtosis: Number = 3.0
) -> NoiseBound:
    r"""Noise of the entropy estimator $g = (\pi, P(\pi u^\top - C^{-\top}))$ of $\nabla f$, on $W_M$ only.

    $W_M = \{\sigma_{\min}(C) \ge 1/\sqrt M\}$, where $|C^{-1}|_F^2 \le dM$.
    **Inequality:** slope $4(1+\rho)M^2$, floor slope $\cdot\,|w^\star-\bar w|^2 + 2dM$.
    **Reference:** 003, Theorem 3; 004, Theorem 3, with $\rho$ for $d-1+\kappa$. Arguments as in
    `energy_noise`.
    """
    energy = energy_noise(
        dim=dim,
        smoothness=smoothness,
        reference_distance_squared=reference_distance_squared,
        kurtosis=kurtosis,
    )
    floor = 2 * energy.floor + 2 * dim * smoothness
    return NoiseBound(2 * energy.slope, floor, "entropy estimator of grad f on W_M, one draw")


def stl_noise(
    *,
    dim: int,
    smoothness: Number,
    reference_distance_squared: Number | None = None,
    kurtosis: Number = 3.0,
    residual_smoothness: Number | None = None,
    residual_distance_squared: Number | None = None,
) -> NoiseBound:
    r"""Noise of sticking the landing, $g = (v, P(vu^\top))$, $v = \pi - C^{-\top}u$, normal base, on $W_M$.

    The residual $\log p - \log q_{w^\star}$ is $K$-smooth, $K \le 2M$ ($K \le M$ for a convex potential,
    $K = 0$ for a Gaussian target within the family).
    **Inequality:** slope $2(d+3)(2K^2+4M^2)$; floor $4(d+3)K^2|w^\star-\hat w|^2$, $\hat w = (\hat m, 0)$
    with $\hat m$ a stationary point of the residual. Ours: without such a point (one need not exist), the
    same slope with floor $8(d+3)(M^2|w^\star-\bar w|^2 + dM)$. With both distances given, the smaller floor
    is returned.
    **Reference:** 003, Theorem 4.

    **Arguments:** as in `energy_noise`, and

    - `residual_smoothness`: $K$; $2M$ when not given.
    - `residual_distance_squared`: $|w^\star-\hat w|^2$, if known.
    """
    dim, smoothness = check_count("dim", dim), check_positive("smoothness", smoothness)
    if kurtosis != 3:
        raise ValueError(f"kurtosis = {kurtosis}: this bound is for the normal base only (3). Use entropy_noise.")
    residual = 2 * smoothness if residual_smoothness is None else residual_smoothness
    residual = check_nonnegative("residual_smoothness", residual)
    floors = [0.0] if residual == 0 else []
    if residual_distance_squared is not None:
        distance = check_nonnegative("residual_distance_squared", residual_distance_squared)
        floors.append(4 * (dim + 3) * residual**2 * distance)
    if reference_distance_squared is not None:
        reference = check_nonnegative("reference_distance_squared", reference_distance_squared)
        floors.append(8 * (dim + 3) * (smoothness**2 * reference + dim * smoothness))
    if not floors:
        raise ValueError(
            "residual_distance_squared or reference_distance_squared is needed; only residual_smoothness = 0 "
            "needs neither."
        )
    slope = 2 * (dim + 3) * (2 * residual**2 + 4 * smoothness**2)
    return NoiseBound(slope, min(floors), "sticking the landing, grad f on W_M, one draw")


def scale_preconditioner(dim: int, kurtosis: Number) -> float:
    r"""$\lambda_C = 1/(2\rho)$, the factor of the step size of $C$ relative to that of $m$.

    Paper 004 prints $1/(2(d-1+\kappa))$: the same for the normal base, and too large for $\kappa > 3$.
    """
    return 1 / (2 * radial_factor(dim, kurtosis))


def preconditioned_entropy_noise(
    *, dim: int, smoothness: Number, reference_distance_squared: Number, kurtosis: Number = 3.0
) -> NoiseBound:
    r"""Noise of the entropy estimator on $W_M$ in the norms of $\Lambda$, the block `scale_preconditioner`.

    $\Lambda = (1, \lambda_C)$ on $(m, C)$.
    **Inequality:** $E|g|_\Lambda^2 \le a\,|w-w^\star|_{\Lambda^{-1}}^2 + b$ with $a = 4M^2$ and
    $b = a|w^\star-\bar w|^2 + M$ (the last distance is Euclidean). Arguments as in `energy_noise`.
    **Reference:** 004, proof of Theorem 4, second case, with $\rho$ for $d-1+\kappa$.
    """
    radial_factor(dim, kurtosis)
    smoothness = check_positive("smoothness", smoothness)
    reference = check_nonnegative("reference_distance_squared", reference_distance_squared)
    slope = 4 * smoothness**2
    floor = slope * reference + smoothness
    return NoiseBound(slope, floor, "entropy estimator of grad f on W_M, preconditioned norms, one draw")


def minibatch_noise(noise: NoiseBound, num_draws: int, mean_slope: Number, mean_floor: Number) -> NoiseBound:
    r"""Noise of the mean of $N$ independent draws: $E|g_N|^2 = E|g|^2/N + (1-1/N)|\nabla|^2$.

    **Inequality:** slope $a/N + (1-1/N)\,$`mean_slope`, floor $b/N + (1-1/N)\,$`mean_floor`, where
    $|\nabla(w)|^2 \le$ `mean_slope` $|w-w^\star|^2$ + `mean_floor`. For $\nabla l$: $2M^2$ and
    $2M^2|w^\star-\bar w|^2$. For $\nabla f$ on $W_M$: $4M^2$ and 0. Zeros give a bound of the *variance* of
    $g_N$, which is all that Theorem 8 (`prox_sgd`) needs.
    **Reference:** 004, Lemma 1.
    """
    num_draws = check_count("num_draws", num_draws)
    mean_slope = check_nonnegative("mean_slope", mean_slope)
    mean_floor = check_nonnegative("mean_floor", mean_floor)
    rest = 1 - 1 / num_draws
    slope = noise.slope / num_draws + rest * mean_slope
    floor = noise.floor / num_draws + rest * mean_floor
    return NoiseBound(float(slope), float(floor), f"{noise.description}; mean of {num_draws} draws")


def _blocks(name: str, values: Any, shape: tuple[int, ...]) -> np.ndarray:
    array = np.asarray(values, np.float64)
    if array.shape != shape or not (np.isfinite(array).all() and (array >= 0).all()):
        raise ValueError(
            f"{name} must hold finite numbers of at least 0 and have the shape {shape}, not {array.shape}."
        )
    return array


def block_noise(slopes: Any, floors: Any, factors: Any) -> NoiseBound:
    r"""Noise in the norms of $\Lambda = (\lambda_1I, \dots, \lambda_mI)$ from that of each block: 004, Proposition 3.

    **Assumption:** block $i$ of one draw has $E|g_i|^2 \le \sum_ja_{ij}|w_j-w_j^\star|^2+b_i$, $0 < \lambda_i \le 1$.
    **Inequality:** $E|g|_\Lambda^2 \le a|w-w^\star|_{\Lambda^{-1}}^2+b$ with
    $a = \max_j\lambda_j\sum_i\lambda_ia_{ij}$ and $b = \sum_i\lambda_ib_i$.
    **Proof** (the paper has none): with $\delta_j = |w_j-w_j^\star|$,
    $\sum_i\lambda_iE|g_i|^2 \le \sum_j\big(\lambda_j\sum_i\lambda_ia_{ij}\big)\delta_j^2/\lambda_j+\sum_i\lambda_ib_i$.
    Tight: equality where only the block of the maximum is off.

    **Arguments:**

    - `slopes`: $a_{ij}$, (m, m), the row is the block of the gradient. - `floors`: $b_i$, (m,).
    - `factors`: $\lambda_i$, (m,), in (0, 1].
    """
    factors = np.asarray(factors, np.float64)
    if factors.ndim != 1 or not ((factors > 0) & (factors <= 1)).all():
        raise ValueError(f"factors must be one number in (0, 1] a block, not {factors}.")
    count = factors.size
    slopes, floors = _blocks("slopes", slopes, (count, count)), _blocks("floors", floors, (count,))
    return NoiseBound(
        float(np.max(factors * (factors @ slopes))), float(factors @ floors), f"{count} blocks in the norms of Lambda"
    )


def entropy_block_noise(
    *, dim: int, smoothness: Number, reference_distance_squared: Number, kurtosis: Number = 3.0
) -> tuple[np.ndarray, np.ndarray]:
    r"""`slopes` and `floors` of `block_noise` for the entropy estimator on $W_M$, blocks $(m, C)$.

    $E|g_m|^2 \le M^2(|m-\bar z|^2+|C|^2)$ and $E|g_C|^2 \le 2M^2(d|m-\bar z|^2+\rho|C|^2)+2dM$, then Young's inequality
    for each block: slopes $M^2\big(\begin{smallmatrix}2&2\\4d&4\rho\end{smallmatrix}\big)$, floors
    $2M^2R$ and $4\rho M^2R+2dM$, $R = |w^\star-\bar w|^2$. With $\Lambda = I$ the slope is $2(1+2\rho)M^2$, with
    `scale_preconditioner` $2(1+d/\rho)M^2$: below those of `entropy_noise` and `preconditioned_entropy_noise`.
    """
    rho, squared = radial_factor(dim, kurtosis), check_positive("smoothness", smoothness) ** 2
    reference = check_nonnegative("reference_distance_squared", reference_distance_squared)
    slopes = squared * np.array([[2.0, 2.0], [4.0 * dim, 4 * rho]])
    return slopes, np.array([2 * squared * reference, 4 * rho * squared * reference + 2 * dim * smoothness])


def bounded_variance(
    *,
    dim: int,
    smoothness: Number,
    radius: Number,
    kurtosis: Number = 3.0,
    centre_gradient_norm: Number = 0.0,
    scale_factor: Number = 1.0,
) -> float:
    r"""$\sup E|g-\nabla f|_\Lambda^2$ of one draw over $|m-c|^2+|C|_F^2/\lambda_C \le R^2$: convexity is not used.

    $\Lambda = (1, \lambda_C)$, $\lambda_C \le 1$; the energy and the entropy estimator have the same variance, as
    $C^{-\top}$ is not random. With $G = |\nabla\phi(c)|$: $|\pi| \le G+M|z-c|$, so that Minkowski's inequality gives
    $\sqrt{E|\pi|^2} \le G+MR$ and
    $\sqrt{E|\pi|^2|u|^2} \le G\sqrt d+M\sqrt{d|m-c|^2+\rho|C|^2} \le G\sqrt d+M\sqrt\rho R$. Hence
    $(G+MR)^2+\lambda_C(G\sqrt d+M\sqrt\rho R)^2$. No stationary point is needed: $c$ may be any point. Reached for
    $G = 0$, $m = c$ and a quadratic potential up to $|\nabla l|^2$, a part of $1/(1+\rho)$. **Use:** $\bar b$ of 004,
    Theorem 8, on a bounded set; for convex $f$ the uniform noise of 003's discussion, as `NoiseBound(0, ...)` in
    `mpsgd.constrained` and `mpsgd.bound`.
    """
    rho, smoothness = radial_factor(dim, kurtosis), check_positive("smoothness", smoothness)
    radius, slope = check_positive("radius", radius), check_nonnegative("centre_gradient_norm", centre_gradient_norm)
    remedy = "Put what is larger into the step size: |C|^2 <= |C|^2 / scale_factor is used."
    factor = check_at_most("scale_factor", check_positive("scale_factor", scale_factor), 1.0, "1", remedy)
    location = (slope + smoothness * radius) ** 2
    scale = (slope * math.sqrt(dim) + smoothness * math.sqrt(rho) * radius) ** 2
    return float(location + factor * scale)


@dataclasses.dataclass(frozen=True)
class TermConstants:
    r"""How much the gradients of the $n$ data terms differ from one another, seen from a point $z_0$.

    - `num_terms`: $n$; `slope`: $\Lambda$ with $\sum_i|\nabla\phi_i(z)-\nabla\phi_i(z_0)|^2 \le \Lambda|z-z_0|^2$;
    - `floor`: $V_0 = \sum_i|\nabla\phi_i(z_0)-\frac1n\sum_j\nabla\phi_j(z_0)|^2$;
    - `reference_distance_squared`: $|w^\star-w_0|^2$, $w_0 = (z_0, 0)$, or an upper bound of it.

    For terms $t(x_i'z)$ with $t'' \le t_1$: $\Lambda = t_1^2\lambda_{\max}(\sum_i|x_i|^2x_ix_i')$. It is between
    $M^2/n$ (all rows the same) and $M^2$ (rows orthogonal, of one length): the less the data are alike, the dearer a
    batch.
    """

    num_terms: int
    slope: float
    floor: float
    reference_distance_squared: float


def subsampled_noise(
    noise: NoiseBound,
    terms: TermConstants,
    *,
    batch: int,
    dim: int,
    num_draws: int = 1,
    kurtosis: Number = 3.0,
    mean_slope: Number = 0.0,
    mean_floor: Number = 0.0,
) -> NoiseBound:
    r"""Noise of $N$ draws and one batch of $B$ data terms that they share: ours, after the discussion of 003.

    The terms of a batch are drawn with replacement.

    The step sees $\hat\phi = \phi_0+\frac nB\sum_{j\le B}\phi_{i_j}$; $e = \nabla\hat\phi-\nabla\phi$. Given $z$,
    $E|e|^2 = \frac nB\sum_i|\nabla\phi_i-\text{mean}|^2 \le \frac{2n}B(V_0+\Lambda|z-z_0|^2)$, as a deviation from
    the mean obeys the triangle inequality. Hence, with $q = n/B$ and $w_0 = (z_0, 0)$,

    - one draw: $E|(e, Peu^\top)|^2 \le E|e|^2(1+|u|^2) \le 2q\big((1+d)V_0+(1+\rho)\Lambda|w-w_0|^2\big)$, added to
      `noise` (the mean of $e$ given $u$ is 0, so that there is no cross term);
    - the mean over $u$: $1, u_1, \dots, u_d$ are orthonormal, so that by Bessel's inequality
      $|E_ue|^2+|E_ueu^\top|^2 \le E_u|e|^2$: $2q(V_0+\Lambda|w-w_0|^2)$, **without the dimension**. More draws divide
      the first by $N$ and leave the second, since all draws of a step see the same batch:
      $E|g_{N,B}|^2 = E|g|^2/N+(1-1/N)E_B|E_ug|^2$.

    With $|w-w_0|^2 \le 2|w-w^\star|^2+2|w^\star-w_0|^2$. The paper says "a factor between 1 and the number of data,
    depending on how correlated they are", without constants; here $1+2q\Lambda/M^2$ beside $V_0$.
    The entropy's term $2dM$ does not grow.

    **Arguments:**

    - `noise`: of one draw with all data. - `terms`, `batch`: $B$. - `dim`, `kurtosis`, `num_draws`: $d$, $\kappa$, $N$.
    - `mean_slope`, `mean_floor`: as in `minibatch_noise`; zeros for a bound of the variance.
    """
    rho, q = radial_factor(dim, kurtosis), terms.num_terms / check_count("batch", batch)
    slope = 4 * q * check_nonnegative("slope", terms.slope)
    floor = 2 * q * check_nonnegative("floor", terms.floor)
    reference = check_nonnegative("reference_distance_squared", terms.reference_distance_squared)
    single = NoiseBound(
        noise.slope + (1 + rho) * slope,
        noise.floor + (1 + dim) * floor + (1 + rho) * slope * reference,
        f"{noise.description}; batches of {batch} of {terms.num_terms} terms",
    )
    return minibatch_noise(single, num_draws, mean_slope + slope, mean_floor + floor + slope * reference)
