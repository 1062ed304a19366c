"""Bases of the user's own: constants against closed forms and SciPy's quadrature, draws against the distribution."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

from provi.families import Laplace, LocationScale, LogConcaveRadial, Normal, Radial, StudentT, radial_base

KNOWN = {
    "normal": (lambda r: -0.5 * r**2, lambda dim: Normal(), True),
    # Not standardised: it is stretched.
    "laplace": (lambda r: -3.0 * r, lambda dim: Laplace(), True),
    "student": (lambda r: -(9.0 + 3) / 2 * jnp.log1p(r**2), lambda dim: StudentT(9.0), False),
}


@pytest.mark.parametrize("name", KNOWN)
def test_known_bases_come_out(name):
    profile, exact, log_concave = KNOWN[name]
    base, known = radial_base(profile, 3, log_concave=log_concave), exact(3)
    assert isinstance(base, LogConcaveRadial if log_concave else Radial)
    assert base.log_concave == known.log_concave
    assert base.moments.error < 1e-8
    assert base.moments.sampling_error < 1e-6
    assert base.moments.standardised == (name == "normal")
    assert base.kurtosis(3) == pytest.approx(known.kurtosis(3), rel=1e-8)
    assert base.entropy(3) == pytest.approx(float(known.entropy(3)), rel=1e-8)
    u = jnp.asarray([0.3, -1.0, 2.0])
    assert float(base.log_density(u)) == pytest.approx(float(known.log_density(u)), rel=1e-8)
    score = jax.grad(base.log_density)(u)
    np.testing.assert_allclose(score, -base.radial_weight(jnp.sum(u**2), 3) * u, rtol=1e-10)
    np.testing.assert_allclose(score, jax.grad(known.log_density)(u), rtol=1e-8)


@pytest.mark.parametrize("dim", [1, 2, 60])
def test_another_base_against_scipy(dim):
    """phi = exp(-r^4 - r): normaliser, Proposition 1 and kurtosis by adaptive quadrature."""
    base = radial_base(lambda r: -(r**4) - r, dim, log_concave=True)

    def moment(power):
        return integrate.quad(lambda r: r**power * np.exp(-(r**4) - r), 0, 6, epsabs=0, epsrel=1e-11, limit=400)[0]

    low, second, fourth = (moment(dim - 1 + k) for k in (0, 2, 4))
    assert base.moments.stretch == pytest.approx(np.sqrt(dim * low / second), rel=1e-9)
    assert base.kurtosis(dim) == pytest.approx(3 * dim / (dim + 2) * fourth * low / second**2, rel=1e-9)
    # The stretched density integrates to one, and has Proposition 1's moment.
    area = 2 * np.pi ** (dim / 2) / np.exp(float(jax.scipy.special.gammaln(dim / 2)))
    one = jax.jit(lambda r: base.log_density(jnp.zeros(dim).at[0].set(r)))

    def mass(power):
        inside = lambda r: area * r ** (dim - 1 + power) * np.exp(float(one(r)))  # noqa: E731
        return integrate.quad(inside, 0, 6 * base.moments.stretch, epsabs=0, epsrel=1e-10, limit=400)[0]

    assert mass(0) == pytest.approx(1, rel=1e-8)
    assert mass(2) == pytest.approx(dim, rel=1e-8)


def test_draws_have_the_law():
    """Kolmogorov-Smirnov on 4000 radii of the normal base, alarm rate 1e-6; and a family takes the base."""
    base = radial_base(lambda r: -0.5 * r**2, 3)
    draws = np.asarray(base.sample(jax.random.key(0), 4000, 3, jnp.float64))
    assert stats.kstest((draws**2).sum(axis=1), stats.chi2(3).cdf).pvalue > 1e-6
    assert stats.kstest(draws[:, 0], stats.norm.cdf).pvalue > 1e-6
    family = LocationScale(3, base, "diagonal")
    point = family.point(jnp.zeros(3), 2.0, jnp.float64)
    exact = LocationScale(3, Normal(), "diagonal")
    z = jnp.asarray([0.2, 1.0, -1.0])
    assert float(family.log_prob(point, z)) == pytest.approx(float(exact.log_prob(point, z)), rel=1e-8)


def test_single_precision_stays():
    base = radial_base(lambda r: -0.5 * r**2, 3)
    u = base.sample(jax.random.key(0), 5, 3, jnp.float32)
    found = (u, base.log_density(u[0]), base.radial_weight(jnp.sum(u**2, axis=1), 3))
    assert {x.dtype for x in found} == {np.dtype(np.float32)}


def test_refuses():
    with pytest.raises(ValueError, match="no finite second moment"):
        radial_base(lambda r: -2 * jnp.log1p(r**2), 3)
    with pytest.raises(ValueError, match="must be smooth"):
        radial_base(lambda r: jnp.where(r < 1.0, 0.0, -jnp.inf), 3)
    with pytest.raises(ValueError, match="declared log-concave"):
        radial_base(lambda r: -6 * jnp.log1p(r**2), 3, log_concave=True)
    with pytest.raises(ValueError, match="declared log-concave"):
        radial_base(lambda r: r - 0.5 * r**2, 3, log_concave=True)
    base = radial_base(lambda r: -4 * jnp.log1p(r**2 / 3), 3)  # as a Student-t of 5 degrees: finite, nearly not
    assert base.kurtosis(3) == pytest.approx(9.0, rel=1e-6)
    with pytest.raises(ValueError, match="made for dimension 3"):
        base.kurtosis(4)
    heavy = radial_base(lambda r: -3.25 * jnp.log1p(r**2), 3)
    assert not heavy.has_fourth_moment(3)
