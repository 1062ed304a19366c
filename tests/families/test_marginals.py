"""Rules for one coordinate of a base: exact moments, closed-form densities, adaptive quadrature."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, special, stats

from provi.families.bases import Laplace, Normal, StudentT, Uniform
from provi.families.marginals import marginal_quadrature
from support.statistics import assert_mean

BASES = {
    "normal": Normal(),
    "laplace": Laplace(),
    "uniform": Uniform(),
    "student_t_5": StudentT(5.0),
    "student_t_30": StudentT(30.0),
}
by_base = pytest.mark.parametrize("name", BASES)
by_dim = pytest.mark.parametrize("dim", [1, 2, 3, 10, 200, 1000])


@functools.cache
def rule(name: str, dim: int):
    return marginal_quadrature(BASES[name], dim)


def softplus(x):
    return np.logaddexp(0.0, x)


def density(name: str, dim: int):
    """The density of u_1 in closed form, and the end of its support; Laplace's for dim < 200 only."""
    match name:
        case "normal":
            return stats.norm.pdf, math.inf
        case "laplace":
            order, rate = dim / 2, math.sqrt(dim + 1)
            log_factor = (order + 1) * math.log(rate) - order * math.log(2) - special.gammaln(order + 0.5)

            def laplace(t):
                t = max(abs(t), 1e-200 ** (1 / dim) * 1e-3)
                bessel = math.log(special.kve(order, rate * t)) - rate * t
                return math.exp(log_factor - 0.5 * math.log(math.pi) + order * math.log(t) + bessel)

            return laplace, math.inf
        case "uniform":
            radius = math.sqrt(dim + 2)
            log_factor = -special.betaln(0.5, (dim + 1) / 2) - math.log(radius)
            return lambda t: math.exp(log_factor) * (1 - (t / radius) ** 2) ** ((dim - 1) / 2), radius
        case _:
            df = float(BASES[name].df)
            return stats.t(df, scale=math.sqrt((df - 2) / df)).pdf, math.inf


@by_base
@by_dim
def test_rule_is_a_symmetric_probability(name, dim):
    nodes, weights = rule(name, dim)
    assert nodes.dtype == weights.dtype == np.float64 and nodes.shape == weights.shape
    assert weights.min() > 0 and weights.sum() == pytest.approx(1.0, abs=1e-14)
    np.testing.assert_array_equal(nodes, -nodes[::-1])
    np.testing.assert_array_equal(weights, weights[::-1])


@by_base
@by_dim
def test_moments(name, dim):
    nodes, weights = rule(name, dim)
    assert np.sum(weights * nodes**2) == pytest.approx(1.0, abs=1e-10)
    assert np.sum(weights * nodes**4) == pytest.approx(BASES[name].kurtosis(dim), rel=1e-10)


@by_base
@pytest.mark.parametrize("dim", [1, 2, 3, 10])
@pytest.mark.parametrize(("shift", "slope"), [(0.0, 1.0), (-0.7, 10.0), (12.0, 10.0), (-30.0, 10.0)])
def test_softplus_against_adaptive_quadrature(name, dim, shift, slope):
    """E softplus(shift + slope t); the kink region is given to `quad` as break points."""
    nodes, weights = rule(name, dim)
    pdf, end = density(name, dim)
    kink = -shift / slope
    inner = {0.0, *(p for p in (kink - 2 / slope, kink, kink + 2 / slope, -8.0, 8.0) if abs(p) < end)}
    points = sorted({-end, end} | inner)
    expected = sum(
        integrate.quad(lambda t: softplus(shift + slope * t) * pdf(t), a, b, epsabs=1e-14, epsrel=1e-13, limit=400)[0]
        for a, b in zip(points, points[1:], strict=False)
    )
    assert np.sum(weights * softplus(shift + slope * nodes)) == pytest.approx(expected, rel=2e-12, abs=2e-12)


@by_base
@by_dim
def test_softplus_identity_for_symmetric_laws(name, dim):
    """softplus(x) - softplus(-x) = x, so by symmetry E softplus(e + s t) - E softplus(-e + s t) = e."""
    nodes, weights = rule(name, dim)
    difference = softplus(3.0 + 10.0 * nodes) - softplus(-3.0 + 10.0 * nodes)
    assert np.sum(weights * difference) == pytest.approx(3.0, abs=1e-11)


@pytest.mark.parametrize("name", ["laplace", "uniform"])
@pytest.mark.parametrize("dim", [200, 1000])
def test_high_dimension_by_characteristic_function(name, dim):
    """E cos(x u_1): (1 + x^2/(d+1))^(-(d+1)/2) for Laplace, the series 0F1 for the ball."""
    nodes, weights = rule(name, dim)
    for x in (0.5, 1.0, 3.0):
        if name == "laplace":
            expected = math.exp(-(dim + 1) / 2 * math.log1p(x**2 / (dim + 1)))
        else:
            # SciPy's hyp0f1 is NaN here; the series alternates but its largest term is below 30.
            k = np.arange(1, 60)
            expected = 1 + np.sum(np.cumprod(-(x**2) * (dim + 2) / (4 * k * (dim / 2 + k))))
        assert np.sum(weights * np.cos(x * nodes)) == pytest.approx(expected, abs=1e-12)


@by_base
def test_projections_of_draws(name):
    """E softplus(0.4 + a'u) with |a| = 2 in dimension 3, by draws of the base: z-test at alarm 1e-6."""
    direction = np.array([2.0, -1.0, 2.0]) * 2 / 3
    u = np.asarray(BASES[name].sample(jax.random.key(3), 100_000, 3, jnp.float64))
    nodes, weights = rule(name, 3)
    assert_mean(softplus(0.4 + u @ direction), np.sum(weights * softplus(0.4 + 2.0 * nodes)), alarm=1e-6)


def test_heavy_tails_below_four_degrees_of_freedom():
    """The second moment stays exact when the fourth does not exist."""
    nodes, weights = marginal_quadrature(StudentT(3.0), 2)
    assert np.isfinite(nodes**4).all()
    assert np.sum(weights * nodes**2) == pytest.approx(1.0, abs=1e-10)


@by_base
@by_dim
def test_rules_stay_small(name, dim):
    assert rule(name, dim)[0].size <= (3500 if name == "student_t_5" else 1500)


def test_unknown_base():
    with pytest.raises(TypeError, match="no marginal rule"):
        marginal_quadrature.dispatch(object)(Normal(), 3)
