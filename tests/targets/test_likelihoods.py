"""Densities, curvatures, predictions and response checks of every likelihood, against SciPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from provi.targets import likelihoods
from support.likelihoods import COUNTS, MEMBERS, RESPONSES, SIZE, bend, everything, gaussian_mean, grid, log_density
from support.members import quick_jit

members = pytest.mark.parametrize("name", MEMBERS)


@quick_jit
def potential(likelihood, eta, y):
    return likelihood.potential(eta, y)


@quick_jit
def second_derivative(likelihood, eta, y):
    slope = jax.grad(lambda e: jnp.sum(likelihood.potential(e, y)))
    return jax.jvp(slope, (eta,), (jnp.ones_like(eta),))[1]


@members
def test_potential_against_scipy(name):
    rng = np.random.default_rng(1)
    eta, y = rng.uniform(-6, 6, SIZE), rng.choice(RESPONSES[name], SIZE)
    found = potential(MEMBERS[name], jnp.asarray(eta), jnp.asarray(y))
    true = log_density(name, eta, y)
    if "binomial" in name:
        r = float(MEMBERS[name].dispersion)
        true = stats.nbinom.logpmf(y, r, r / (r + np.exp(eta)))
    np.testing.assert_allclose(found, -true, rtol=1e-12, atol=1e-13)


@members
def test_normalised_over_the_responses(name):
    """Sums over 0, 1, 2, ..., or the integral over y = eta + tan(angle)."""
    eta = 0.4
    if name in ("logit", "probit"):
        y, weights = np.array([0.0, 1.0]), np.ones(2)
    elif name in COUNTS:
        y, weights = np.arange(4000.0), np.ones(4000)
    else:
        # Periodic and smooth in the angle: the midpoint rule converges exponentially.
        angle = (np.arange(4000) + 0.5) * np.pi / 4000 - np.pi / 2
        y, weights = eta + np.tan(angle), np.pi / 4000 / np.cos(angle) ** 2
    found = potential(MEMBERS[name], jnp.full(len(y), eta), jnp.asarray(y))
    assert weights @ np.exp(-np.asarray(found)) == pytest.approx(1, abs=1e-11)


@members
def test_curvature_range_and_log_concavity(name):
    """On a grid; finite ends are attained to one part in a thousand."""
    likelihood, eta = MEMBERS[name], jnp.linspace(-60.0, 60.0, 24001)
    low, high = likelihood.curvature
    ends = []
    for y in RESPONSES[name]:
        found = np.asarray(second_derivative(likelihood, eta, jnp.full_like(eta, y)))
        given = likelihood.curvature_given(np.array([y]))
        assert low <= given[0] and given[1] <= high
        assert found.min() >= given[0] - 1e-9 and found.max() <= given[1] * (1 + 1e-9)
        ends += [found.min(), found.max()]
        if np.isfinite(given[1]):
            assert found.max() >= 0.999 * given[1]
    if np.isfinite(low):
        assert min(ends) <= low + 1e-3 * abs(low) + 1e-8
    assert likelihood.log_concave == (low >= 0) == (min(ends) >= -1e-9)


@quick_jit
def interval_curvature(likelihood, low, high, y):
    return likelihood.least_curvature(low, high, y), likelihood.most_curvature(low, high, y)


@members
def test_curvature_on_an_interval(name):
    """Between the bounds at 201 points of each interval; unless a bound is one of all eta, it is attained."""
    likelihood, rng, size = MEMBERS[name], np.random.default_rng(3), 200
    low = rng.uniform(-1, 1, size) * np.exp(rng.uniform(-2, 5, size))
    high = low + np.exp(rng.uniform(-12, 3, size))
    y = np.repeat(RESPONSES[name], size // 2)
    least, most = (np.asarray(x) for x in interval_curvature(likelihood, *(jnp.asarray(x) for x in (low, high, y))))
    eta = low + np.linspace(0, 1, 201)[:, None] * (high - low)
    found = np.asarray(second_derivative(likelihood, jnp.asarray(eta.ravel()), jnp.asarray(np.tile(y, 201))))
    found = found.reshape(201, size)
    # Automatic differentiation has its own rounding where t'' is tiny.
    slack = 1e-11 * np.abs(found) + 1e-13
    assert (least <= found + slack).all() and (found - slack <= most).all()
    if name not in ("t", "cauchy", "user"):
        assert (least >= found.min(0) * (1 - 3e-12) - 1e-13).all()
        inside = (most <= found.max(0) * (1 + 3e-12) + 1e-13) | (found.argmax(0) % 200 != 0)
        assert inside.all()
    ends = interval_curvature(likelihood, jnp.full(2, -np.inf), jnp.full(2, np.inf), jnp.asarray(y[[0, -1]]))
    for row, response in enumerate(y[[0, -1]]):
        lowest, highest = likelihood.curvature_given(np.array([response]))
        assert lowest * (1 + 1e-11 * np.sign(-lowest)) <= ends[0][row] <= lowest + 1e-300
        assert highest <= ends[1][row] * (1 + 1e-15) and ends[1][row] <= highest * (1 + 1e-11)


@members
def test_log_predictive_against_quadrature(name):
    mean, deviation, y = grid(name)
    *_, found = everything(MEMBERS[name], *(jnp.asarray(x) for x in (mean, deviation**2, y)))
    for row, (m, s, response) in enumerate(zip(mean, deviation, y, strict=True)):
        around, width = bend(name, response)
        around, width = (np.log(response + 0.5), 0.3) if name in COUNTS else (around, width)
        true = gaussian_mean(lambda eta, r=response: np.exp(log_density(name, eta, r)), m, s, around, width)
        assert float(found[row]) == pytest.approx(np.log(true), rel=1e-11, abs=1e-11)


def predict(name, mean, variance, y):
    """The log predictive of a few, filled up to the size that is compiled already."""
    arrays = (jnp.asarray(np.resize(x, SIZE).astype(float)) for x in (mean, variance, y))
    return np.asarray(everything(MEMBERS[name], *arrays)[2])


@pytest.mark.parametrize("name", ["logit", "probit", *COUNTS])
def test_predictions_sum_to_one(name):
    """Over all responses: zeros and ones, or counts, which are below 20 for a small rate."""
    y = np.arange(SIZE) if name in COUNTS else np.arange(2)
    assert np.exp(predict(name, -3.0, 0.09, y))[: len(y)].sum() == pytest.approx(1, abs=1e-10)


def test_tiny_predictive_probabilities():
    """Closed forms where the probability is far below the smallest double, or the peak far from the mean."""
    # E sigmoid(eta) = E exp(eta) up to exp(2 mean + 2 variance).
    mean, variance = np.array([-40.0, -2000.0]), np.array([1.0, 4.0])
    np.testing.assert_allclose(predict("logit", mean, variance, 1.0)[:2], mean + variance / 2, rtol=1e-12)
    # E exp(y eta - e^eta)/y!: the peak is y standard deviations from the mean.
    true = -200 * 100 + 100**2 / 2 - special.gammaln(101)
    assert predict("poisson", -200.0, 1.0, 100.0)[0] == pytest.approx(true, rel=1e-12)
    # A Student-t seen 30 standard deviations off: the tail of the t, not that of the normal.
    true = gaussian_mean(lambda eta: np.exp(log_density("t", eta, 3.0)), 0.0, 0.1, 3.0, 0.5)
    assert predict("t", 0.0, 0.01, 3.0)[0] == pytest.approx(np.log(true), rel=1e-12)


@members
def test_mean_response(name):
    """Against the mean of the inverse link."""
    likelihood = MEMBERS[name]
    mean, deviation = np.linspace(-3, 3, 5), np.array([0.0, 0.3, 1.0, 2.0, 30.0])
    deviation[-1] = 2.5 if name in COUNTS else 30.0
    arrays = jnp.asarray(mean), jnp.asarray(deviation**2)
    if name == "user":
        with pytest.raises(ValueError, match="UserLikelihood has no mean_response"):
            likelihood.mean_response(*arrays)
        return
    found = np.asarray(likelihood.mean_response(*arrays))
    if name == "cauchy":
        assert np.isnan(found).all()
        return
    inverse = {"logit": special.expit, "probit": special.ndtr, "gaussian": np.array, "t": np.array}.get(name, np.exp)
    true = [inverse(mean[0])] + [
        gaussian_mean(inverse, m, s, 0.0, 1.0) for m, s in zip(mean[1:], deviation[1:], strict=True)
    ]
    np.testing.assert_allclose(found, true, rtol=1e-10, atol=5e-9 if name == "logit" else 1e-12)


@pytest.mark.parametrize(
    ("name", "y", "message"),
    [
        ("logit", [0, 2, 1], "y must hold 0 and 1"),
        ("probit", [-1, 1, 1], r"\(y \+ 1\) / 2"),
        ("poisson", [0, 1.5, 1], "y must hold counts"),
        ("binomial", [0, -1, 1], "y must hold counts"),
        ("gaussian", [0, np.nan, 1], "y has 1 entries that are NaN"),
        ("t", [0, 1], "y has length 2"),
        ("user", [[0, 1, 2]], "y must have 1 axes"),
    ],
)
def test_bad_responses(name, y, message):
    with pytest.raises(ValueError, match=message):
        MEMBERS[name].read_response(y, 3)


def test_bad_arguments():
    for make, argument in (
        (lambda: likelihoods.GaussianNoise(0.0), "scale"),
        (lambda: likelihoods.StudentT(-1.0), "df"),
        (lambda: likelihoods.StudentT(3.0, np.inf), "scale"),
        (lambda: likelihoods.NegativeBinomial(np.nan), "dispersion"),
        (lambda: likelihoods.UserLikelihood(lambda y, eta: eta, width=0), "width"),
        (lambda: likelihoods.UserLikelihood(3), "log_prob"),
    ):
        with pytest.raises(ValueError, match=f"^{argument} must"):
            make()


def test_user_functions_are_checked():
    summed = likelihoods.UserLikelihood(lambda y, eta: jnp.sum(-((y - eta) ** 2)))
    with pytest.raises(ValueError, match=r"log_prob returns shape \(\) .* entry by entry"):
        summed.read_response([0.0, 1.0], 2)
    positive = likelihoods.UserLikelihood(lambda y, eta: jnp.log(y) + eta - y * jnp.exp(eta))
    with pytest.raises(ValueError, match=r"log_prob\(y = 0.0, eta = -2\) is -inf; y\[1\]"):
        positive.read_response([1.0, 0.0], 2)
    assert not positive.log_concave and positive.curvature == (-np.inf, np.inf)
