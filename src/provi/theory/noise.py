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

from provi.core.arguments import check_count, check_positive
from provi.theory.inputs import Number, check_nonnegative


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
