"""Leave-one-out against the closed form of linear regression, ArviZ, and approximations that are wrong on purpose."""

import warnings

import arviz_stats
import numpy as np
import pytest
from arviz_base import from_dict
from scipy import stats

import provi
from provi.diagnostics import leave_one_out
from provi.diagnostics.pareto import usable_k
from provi.families import Gaussian
from provi.result import Posterior
from provi.result.fit import cross_validate

RNG = np.random.default_rng(3)
X = RNG.normal(size=(30, 3))
Y = X @ [1.0, -1.0, 0.5] + RNG.normal(size=30)
NAMES = tuple(f"y[{n}]" for n in range(30))
DRAWS = 20_000


@pytest.fixture(scope="module")
def target():
    return provi.targets.LinearRegression(X, Y)


@pytest.fixture(scope="module")
def exact():
    """log p(y_n | y_-n) by leaving out each datum: N(x'm, x'Vx + 1)."""
    values = []
    for n in range(30):
        rest = provi.targets.LinearRegression(np.delete(X, n, 0), np.delete(Y, n))
        mean, covariance = rest.exact_posterior()
        values.append(stats.norm(X[n] @ mean, np.sqrt(X[n] @ covariance @ X[n] + 1)).logpdf(Y[n]))
    return np.array(values)


def approximation(target, shift=0.0, widen=1.0):
    mean, covariance = target.exact_posterior()
    family = Gaussian(3)
    point = family.point_from_covariance(mean + shift * np.sqrt(np.diag(covariance)), widen * covariance)
    return Posterior(family, point, target.parameter_names, target)


@pytest.fixture(scope="module", params=[(0.0, 1.0), (0.7, 1.5)], ids=["exact q", "wrong q"])
def found(request, target):
    posterior = approximation(target, *request.param)
    return posterior, cross_validate(target, posterior, DRAWS, 0)


def test_against_the_closed_form(found, exact):
    """Monte-Carlo sds over 8 seeds: at most 0.017 a term, 0.047 of the sum; five of them are one alarm in 10^6."""
    _, loo = found
    np.testing.assert_allclose(loo.pointwise, exact, rtol=0, atol=0.085)
    assert loo.elpd == pytest.approx(exact.sum(), abs=0.24)
    assert loo.standard_error == pytest.approx(np.sqrt(30) * exact.std(), rel=0.02)
    assert loo.names == NAMES and not loo.bad and "can be trusted" in loo.advice


def test_effective_number_of_parameters(found, target, exact):
    """p_loo against its closed form, whatever q; its Monte-Carlo sd is at most 0.051, and 0.26 is five of them."""
    mean, covariance = target.exact_posterior()
    spread = np.sqrt(np.einsum("ni,ij,nj->n", X, covariance, X) + 1)
    assert found[1].p_loo == pytest.approx(stats.norm(X @ mean, spread).logpdf(Y).sum() - exact.sum(), abs=0.26)


def test_against_arviz(found, target):
    """The same weights, draw for draw, as `loo_approximate_posterior` makes them."""
    posterior, loo = found
    z = posterior.sample(DRAWS, 0)
    residual = Y[None, :] - z @ X.T
    log_p = stats.norm.logpdf(z).sum(axis=1) + stats.norm.logpdf(residual).sum(axis=1)
    data = from_dict({"posterior": {"z": z[None]}, "log_likelihood": {"y": target.log_likelihood(z)["y"][None]}})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = arviz_stats.loo_approximate_posterior(data, log_p, posterior.log_prob(z), pointwise=True)
    assert loo.elpd == pytest.approx(float(theirs.elpd), abs=1e-6)
    assert loo.standard_error == pytest.approx(float(theirs.se), rel=1e-6)
    np.testing.assert_allclose(loo.pareto_k, np.asarray(theirs.pareto_k), atol=1e-6)


def test_the_correction_matters_where_q_is_wrong(target, exact):
    """Without it the sum is off by 3 nats here, 65 of its Monte-Carlo sds."""
    posterior = approximation(target, 0.7, 1.5)
    z = posterior.sample(DRAWS, 0)
    plain = leave_one_out(target.log_likelihood(z)["y"], np.zeros(DRAWS), NAMES)
    assert abs(plain.elpd - exact.sum()) > 1.0
    assert abs(cross_validate(target, posterior, DRAWS, 0).elpd - exact.sum()) < 0.24


def test_a_narrow_q_is_noticed(target):
    loo = cross_validate(target, approximation(target, widen=0.2), 4000, 0)
    assert len(loo.bad) > 10 and (loo.pareto_k > usable_k(4000)).sum() == len(loo.bad)
    assert "fit.diagnose()" in loo.advice and "num_draws=40000" in loo.advice and loo.bad[0] in str(loo)


def test_an_outlier_is_named():
    """An observation that the others contradict, in a model with few data for each coefficient."""
    y = Y.copy()
    y[7] += 25
    target = provi.targets.LinearRegression(X, y, prior_scale=10.0)
    loo = cross_validate(target, approximation(target), 4000, 0)
    assert loo.bad[0] == "y[7]" and len(loo.bad) <= 5
    assert "fit again without" in loo.advice and "y[7]" in loo.advice


def test_large_k_hats_of_weights_that_hardly_vary_are_no_alarm():
    """Weights 1 + 0.003 x with x Pareto of index 1.2, k = 0.83: no variance, and a hundredth of the mass."""
    column = -np.log1p(0.003 * np.random.default_rng(0).pareto(1.2, 4000))
    loo = leave_one_out(column[:, None], np.zeros(4000), ["y[0]"])
    assert loo.pareto_k[0] > usable_k(4000) and loo.total_variation[0] < 0.1
    assert not loo.bad and "does no harm" in loo.advice
    expected = 0.5 * np.abs(np.exp(-column) / np.exp(-column).mean() - 1).mean()
    assert loo.total_variation[0] == pytest.approx(expected, rel=1e-12)


def test_bad_values_and_shapes():
    values = np.zeros((100, 3))
    with pytest.raises(ValueError, match="must be"):
        leave_one_out(values, np.zeros(99), "abc")
    with pytest.raises(ValueError, match="at least 25"):
        leave_one_out(values[:10], np.zeros(10), "abc")
    broken = values.copy()
    broken[3, 1] = np.nan
    with pytest.raises(ValueError, match="the first b"):
        leave_one_out(broken, np.zeros(100), "abc")
    with pytest.raises(ValueError, match="not finite"):
        leave_one_out(values, np.full(100, np.nan), "abc")


def test_equal_weights_and_draws_without_density():
    """Constant likelihoods give their own logarithm; a datum that is impossible at some draws is not to be trusted."""
    values = np.full((100, 2), -1.5)
    values[:3, 1] = -np.inf
    ratios = np.where(np.arange(100) < 3, -np.inf, 0.0)
    loo = leave_one_out(values, ratios, "ab")
    np.testing.assert_allclose(loo.pointwise, -1.5, atol=1e-12)
    assert loo.p_loo == pytest.approx(0.0, abs=1e-12)
    assert "b" in loo.bad and loo.pareto_k[1] == np.inf
    plain = leave_one_out(values[:, :1], np.zeros(100), "a")
    assert plain.pareto_k[0] == -np.inf and not plain.bad
