"""Noise bounds against exact second moments: every moment is a closed form or a radial quadrature, no
sampling.
"""

import itertools

import numpy as np
import pytest
from scipy import integrate

from provi.theory import noise
from support.statistics import assert_mean

# (log radial weight of |u| in dimension d, kurtosis): spec 01, table of bases.
BASES = {
    "normal": (lambda r, d: (d - 1) * np.log(r) - r**2 / 2, lambda d: 3.0),
    "laplace": (lambda r, d: (d - 1) * np.log(r) - np.sqrt(d + 1) * r, lambda d: 3 * (d + 3) / (d + 1)),
    "student9": (
        lambda r, d: (d - 1) * np.log(r) - (9 + d) / 2 * np.log1p(r**2 / 7),
        lambda d: 3 * 7 / 5,
    ),
    "uniform": (
        lambda r, d: np.where(r <= np.sqrt(d + 2), (d - 1) * np.log(r), -np.inf),
        lambda d: 3 * (d + 2) / (d + 4),
    ),
}


def _radial_moment(name: str, d: int, power: int) -> float:
    log_weight, end = BASES[name][0], np.sqrt(d + 2) if name == "uniform" else np.inf
    shift = log_weight(np.sqrt(d), d)

    def integral(k):
        return integrate.quad(lambda r: r**k * np.exp(log_weight(r, d) - shift), 0, end, limit=400)[0]

    return integral(power) / integral(0)


@pytest.mark.parametrize("d", [1, 2, 5, 20])
@pytest.mark.parametrize("name", BASES)
def test_radial_factor_is_the_fourth_moment_over_the_dimension(name, d):
    kurtosis = BASES[name][1](d)
    assert _radial_moment(name, d, 2) == pytest.approx(d, rel=1e-6)
    assert noise.radial_factor(d, kurtosis) == pytest.approx(_radial_moment(name, d, 4) / d, rel=1e-6)


def _exact_energy_moment(d, rho, smoothness, offset, scale):
    """E|g|^2 of a target N(0, I/M) at m = offset, C = scale I (symmetric): pi = M(m + scale u).

    |g_C|^2 = |sym(pi u')|^2 = (|pi|^2|u|^2 + (pi'u)^2)/2; odd moments vanish.
    """
    first = offset @ offset + scale**2 * d
    outer = (offset @ offset * d + scale**2 * d * rho) / 2 + (offset @ offset + scale**2 * d * rho) / 2
    return smoothness**2 * (first + outer)


@pytest.mark.parametrize("d", [1, 3, 10])
@pytest.mark.parametrize("name", BASES)
def test_energy_noise_holds_and_is_reached(name, d):
    """The mode is 0, so w-bar = 0; w* = w makes the bound slope/2 * |w|^2 after undoing Young's factor."""
    smoothness, kurtosis = 1.7, BASES[name][1](d)
    rho = _radial_moment(name, d, 4) / d
    for offset_size, scale in [(0.0, 0.9), (1.3, 0.4), (2.0, 1e-6)]:
        offset = np.full(d, offset_size) / np.sqrt(d)
        size = offset @ offset + d * scale**2
        found = noise.energy_noise(dim=d, smoothness=smoothness, reference_distance_squared=size, kurtosis=kurtosis)
        exact = _exact_energy_moment(d, rho, smoothness, offset, scale)
        assert exact <= found.slope / 2 * size * (1 + 1e-9)
        assert found.floor == pytest.approx(found.slope * size)
    reached = _exact_energy_moment(d, rho, smoothness, np.zeros(d), 1.0)
    assert reached == pytest.approx((1 + rho) * smoothness**2 * d, rel=1e-9)


@pytest.mark.parametrize("name", ["laplace", "student9"])
def test_the_printed_factor_is_violated_by_heavy_bases(name):
    """Paper 004, Theorem 2 claims E|g_C|^2 <= M^2 (d - 1 + kappa)|C|^2 at m = z-bar; at C = I it is M^2 d
    rho.
    """
    d = 10
    kurtosis = BASES[name][1](d)
    exact = _radial_moment(name, d, 4)
    assert exact > 1.05 * (d - 1 + kurtosis) * d
    assert exact <= (noise.radial_factor(d, kurtosis)) * d * (1 + 1e-9)


@pytest.mark.parametrize("d", [1, 2, 7])
@pytest.mark.parametrize("name", BASES)
def test_entropy_noise_plain_and_preconditioned(name, d):
    """Target N(0, I/M), so w* = (0, I/sqrt M); C = scale I with scale >= 1/sqrt M, m = offset; symmetric
    C.
    """
    smoothness, kurtosis = 2.3, BASES[name][1](d)
    rho = _radial_moment(name, d, 4) / d
    constants = dict(dim=d, smoothness=smoothness, reference_distance_squared=d / smoothness, kurtosis=kurtosis)
    plain, scaled = noise.entropy_noise(**constants), noise.preconditioned_entropy_noise(**constants)
    weight = noise.scale_preconditioner(d, kurtosis)
    for offset, scale in [(0.0, 1.0), (0.0, 5.0), (3.0, 1.0), (1.0, 2.0)]:
        scale /= np.sqrt(smoothness)
        location = smoothness**2 * (offset**2 + scale**2 * d)
        square = _exact_energy_moment(d, rho, smoothness, np.full(d, offset / np.sqrt(d)), scale) - location
        # E<sym(pi u'), C^-1> = M scale d / scale; |C^-1|^2 = d/scale^2.
        matrix = square - 2 * smoothness * d + d / scale**2
        away = d * (scale - 1 / np.sqrt(smoothness)) ** 2
        assert location + matrix <= plain.slope * (offset**2 + away) + plain.floor
        assert location + weight * matrix <= scaled.slope * (offset**2 + away / weight) + scaled.floor


def _stl_second_moment(mean, scale, precision, mode, draws):
    """E|g|^2 of sticking the landing for the target N(mode, precision^-1), over given draws, full
    matrices.
    """
    z = mean + draws @ scale.T
    v = (z - mode) @ precision - draws @ np.linalg.inv(scale)
    return (v**2).sum(1) * (1 + (draws**2).sum(1))


@pytest.mark.parametrize("seed", range(4))
def test_stl_noise_on_gaussian_targets(seed):
    """K = 0: w* is the target itself. v = A (m - m*) + B u exactly, so E|g|^2 <= E|v|^2 (1 + |u|^2) is
    closed form.
    """
    rng = np.random.default_rng(seed)
    d = 3
    root = rng.normal(size=(d, d))
    precision = root @ root.T + 0.1 * np.eye(d)
    smoothness = np.linalg.eigvalsh(precision)[-1]
    values, vectors = np.linalg.eigh(precision)
    optimum = vectors @ np.diag(values**-0.5) @ vectors.T
    offset = rng.normal(size=d)
    jitter = rng.normal(size=(d, d))
    scale = optimum + 0.3 * jitter @ jitter.T
    linear, matrix = precision @ offset, precision @ scale - np.linalg.inv(scale).T
    exact = (d + 1) * linear @ linear + (d + 3) * (matrix**2).sum()
    found = noise.stl_noise(dim=d, smoothness=smoothness, residual_smoothness=0.0)
    distance = offset @ offset + ((scale - optimum) ** 2).sum()
    assert found.slope == pytest.approx(8 * (d + 3) * smoothness**2)
    assert found.floor == 0
    assert exact <= found.slope * distance
    draws = rng.normal(size=(200_000, d))
    samples = _stl_second_moment(offset, scale, precision, np.zeros(d), draws)
    assert_mean(samples, exact)


def test_stl_floor_without_a_stationary_point_of_the_residual():
    """Diagonal family, correlated Gaussian target: C* = diag(precision_ii^-1/2), the residual is not
    constant.
    """
    precision = np.array([[2.0, 1.2], [1.2, 1.5]])
    smoothness, d = np.linalg.eigvalsh(precision)[-1], 2
    optimum = np.diag(np.diag(precision) ** -0.5)
    reference = (optimum**2).sum()
    found = noise.stl_noise(dim=d, smoothness=smoothness, reference_distance_squared=reference)
    assert found.slope == pytest.approx(24 * (d + 3) * smoothness**2)
    assert found.floor == pytest.approx(8 * (d + 3) * (smoothness**2 * reference + d * smoothness))
    for offset, factor in [(0.0, 1.0), (1.0, 1.0), (0.5, 3.0)]:
        scale = optimum * factor
        linear = precision @ np.array([offset, 0.0])
        matrix = precision @ scale - np.linalg.inv(scale).T
        exact = (d + 1) * linear @ linear + (d + 3) * (matrix**2).sum()
        distance = offset**2 + ((scale - optimum) ** 2).sum()
        assert exact <= found.slope * distance + found.floor
    residual = precision - np.diag(np.diag(precision))
    sharper = noise.stl_noise(
        dim=d,
        smoothness=smoothness,
        reference_distance_squared=reference,
        residual_smoothness=np.abs(np.linalg.eigvalsh(residual)).max(),
        residual_distance_squared=reference,
    )
    assert sharper.floor < found.floor
    assert sharper.slope < found.slope
    at_optimum = (d + 3) * ((precision @ optimum - np.linalg.inv(optimum)) ** 2).sum()
    assert 0 < at_optimum <= sharper.floor


def test_minibatch_noise_is_the_variance_decomposition():
    single = noise.NoiseBound(10.0, 3.0, "test")
    found = noise.minibatch_noise(single, 4, 2.0, 1.0)
    assert (found.slope, found.floor) == pytest.approx((10 / 4 + 0.75 * 2, 3 / 4 + 0.75))
    assert noise.minibatch_noise(single, 1, 99.0, 99.0).slope == 10.0
    variance = noise.minibatch_noise(single, 5, 0.0, 0.0)
    assert (variance.slope, variance.floor) == pytest.approx((2.0, 0.6))


def test_normal_base_gives_the_printed_constants():
    constants = dict(dim=7, smoothness=2.0, reference_distance_squared=0.5)
    assert noise.energy_noise(**constants).slope == pytest.approx(2 * 10 * 4)
    assert noise.entropy_noise(**constants).slope == pytest.approx(4 * 10 * 4)
    assert noise.entropy_noise(**constants).floor == pytest.approx(4 * 10 * 4 * 0.5 + 2 * 7 * 2)
    assert noise.preconditioned_entropy_noise(**constants).floor == pytest.approx(16 * 0.5 + 2)
    assert noise.scale_preconditioner(7, 3.0) == pytest.approx(1 / (2 * 9))


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: noise.energy_noise(dim=0, smoothness=1.0, reference_distance_squared=1.0), "dim"),
        (lambda: noise.energy_noise(dim=2, smoothness=-1.0, reference_distance_squared=1.0), "smoothness"),
        (lambda: noise.entropy_noise(dim=2, smoothness=1.0, reference_distance_squared=-1.0), "reference"),
        (lambda: noise.scale_preconditioner(10, 1.0), "kurtosis"),
        (lambda: noise.stl_noise(dim=2, smoothness=1.0, kurtosis=4.0), "normal base"),
        (lambda: noise.stl_noise(dim=2, smoothness=1.0), "residual_distance_squared"),
        (lambda: noise.NoiseBound(-1.0, 0.0, ""), "slope"),
        (lambda: noise.minibatch_noise(noise.NoiseBound(1.0, 0.0, ""), 0, 0.0, 0.0), "num_draws"),
    ],
)
def test_refuses(call, name):
    with pytest.raises(ValueError, match=name):
        call()


def test_the_least_kurtosis_of_an_elliptic_base():
    """That of the uniform law on a sphere: E u_i^4 = 3d/(d+2) where |u|^2 = d."""
    assert noise.radial_factor(4, 2.0) == 4.0
    with pytest.raises(ValueError, match="is below"):
        noise.radial_factor(4, 1.95)


# Two dimensions, normal base: Gauss-Hermite nodes (24 x 24), exact for polynomials and to 1e-10 for the logistic.
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(24)
_U = np.stack(np.meshgrid(_NODES, _NODES, indexing="ij"), axis=-1).reshape(-1, 2)
_MASS = np.outer(_WEIGHTS, _WEIGHTS).reshape(-1) / _WEIGHTS.sum() ** 2
_ROWS = np.array([[1.0, 0.3], [-0.4, 1.2], [0.5, 0.5], [2.0, -0.7]])
_SIGNS = np.array([1.0, -1.0, -1.0, 1.0])


def _terms(kind, z):
    """Gradients of the four terms at each z, (points, terms, 2): logistic or quadratic, largest curvature 1/4."""
    eta = z @ _ROWS.T
    slope = -_SIGNS / (1 + np.exp(_SIGNS * eta)) if kind == "logistic" else (eta - _SIGNS) / 4
    return slope[..., None] * _ROWS


def _subsampled_moments(kind, mean, root, batch, draws):
    """E|g|^2 and |E g|^2 of the energy estimator, unit prior, over all batches and all nodes; symmetric C."""
    z = mean + _U @ root
    prior, terms = z, _terms(kind, z)
    square = np.zeros(())
    batches = list(itertools.product(range(4), repeat=batch))
    for indices in batches:
        gradient = prior + 4 / batch * terms[:, list(indices)].sum(axis=1)
        outer = gradient[:, :, None] * _U[:, None, :]
        outer = (outer + outer.transpose(0, 2, 1)) / 2
        single = (gradient**2).sum(axis=1) + (outer**2).sum(axis=(1, 2))
        centre = (np.tensordot(_MASS, gradient, 1) ** 2).sum() + (np.tensordot(_MASS, outer, 1) ** 2).sum()
        square = square + (_MASS @ single / draws + (1 - 1 / draws) * centre) / len(batches)
    return float(square)


@pytest.mark.parametrize("kind", ["logistic", "quadratic"])
def test_subsampled_noise_over_all_batches(kind):
    """Every bound of E|g|^2 holds, whatever point is taken for w*; and it is within a factor 20 somewhere."""
    hessian = np.eye(2) + _ROWS.T @ _ROWS / 4
    smoothness = float(np.linalg.eigvalsh(hessian)[-1])
    mode = np.zeros(2)
    for _ in range(200):
        mode = mode - (mode + _terms(kind, mode[None])[0].sum(axis=0)) / smoothness
    at_mode = _terms(kind, mode[None])[0]
    slope = float(np.linalg.eigvalsh((_ROWS * (_ROWS**2).sum(axis=1, keepdims=True)).T @ _ROWS)[-1]) / 16
    floor = float(((at_mode - at_mode.mean(axis=0)) ** 2).sum())
    ratios = []
    for batch, draws, offset, size in itertools.product((1, 2), (1, 5), (0.0, 2.0, 20.0), (0.3, 3.0)):
        mean, root = mode + offset * np.array([0.6, -0.8]), size * np.array([[1.0, 0.2], [0.2, 0.7]])
        reference = 1.5
        one = noise.energy_noise(dim=2, smoothness=smoothness, reference_distance_squared=reference)
        terms = noise.TermConstants(4, slope, floor, reference)
        means = {"mean_slope": 2 * smoothness**2, "mean_floor": 2 * smoothness**2 * reference}
        bound = noise.subsampled_noise(one, terms, batch=batch, dim=2, num_draws=draws, **means)
        # w* at distance sqrt(reference) from (mode, 0), on the line to w: the worst place for the bound.
        away = np.sqrt(((mean - mode) ** 2).sum() + (root**2).sum())
        distance = (away - np.sqrt(reference)) ** 2
        exact = _subsampled_moments(kind, mean, root, batch, draws)
        assert exact <= bound.slope * distance + bound.floor
        ratios.append((bound.slope * distance + bound.floor) / exact)
    assert min(ratios) < 20


def test_a_batch_of_like_rows_costs_little():
    """The slope of n equal rows is M^2/n, of n orthogonal ones M^2: 1 and n in units of the full batch."""
    for rows, ratio in ((np.ones((5, 2)), 1.0), (np.eye(5), 5.0)):
        smoothness = np.linalg.eigvalsh(rows.T @ rows)[-1] / 4
        slope = np.linalg.eigvalsh((rows * (rows**2).sum(axis=1, keepdims=True)).T @ rows)[-1] / 16
        assert 5 * slope / smoothness**2 == pytest.approx(ratio)


def test_bounded_variance_holds_and_is_nearly_reached():
    """Quadratic potential, exact moments: sup over the ball; at m = c it is reached but for |grad l|^2."""
    for d, kurtosis in ((2, 3.0), (50, 3.0), (3, 4.2)):
        rho, smoothness, radius = noise.radial_factor(d, kurtosis), 1.3, 2.0
        bound = noise.bounded_variance(dim=d, smoothness=smoothness, radius=radius, kurtosis=kurtosis)
        for share in (0.0, 0.3, 1.0):
            offset = np.full(d, radius * np.sqrt(share / d))
            scale = radius * np.sqrt((1 - share) / d)
            energy = _exact_energy_moment(d, rho, smoothness, offset, scale)
            mean = smoothness**2 * (offset @ offset + d * scale**2)
            assert energy - mean <= bound * (1 + 1e-12)
        assert bound == pytest.approx((1 + rho) * smoothness**2 * radius**2)
    # A slope at the centre: phi = M|z|^2/2 seen from c = 1, where the gradient is M.
    off = noise.bounded_variance(dim=1, smoothness=1.3, radius=2.0, centre_gradient_norm=1.3)
    location = 1.3**2 * (3.0**2 + 0.0)  # m = c + 2 = 3, C = 0
    assert location <= off
    weighted = noise.bounded_variance(dim=2, smoothness=1.0, radius=1.0, scale_factor=0.1)
    assert weighted == pytest.approx(1 + 0.1 * 4)
    with pytest.raises(ValueError, match="scale_factor"):  # there |C|^2 alone may be larger than the radius
        noise.bounded_variance(dim=2, smoothness=1.0, radius=1.0, scale_factor=2.0)
