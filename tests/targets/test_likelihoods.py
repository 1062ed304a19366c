"""Densities, curvatures, predictions and response checks of every likelihood, against SciPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from provi.targets import likelihoods
from provi.targets.likelihoods.bernoulli import softplus, softplus_moments
from support.likelihoods import (
    COUNTS,
    GRADES,
    LABELS,
    MEMBERS,
    NODES,
    PANEL_WEIGHTS,
    RESPONSES,
    SIZE,
    TIMES,
    bend,
    everything,
    gaussian_mean,
    grid,
    log_density,
)
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
    """Sums over 0, 1, 2, ..., or the integral over y = eta + tan(angle); events up to a time, and none up to it."""
    eta = 0.4
    if name in LABELS:
        y, weights = np.array([0.0, 1.0]), np.ones(2)
    elif name in GRADES:
        y, weights = np.arange(len(GRADES[name]) + 1.0), np.ones(len(GRADES[name]) + 1)
    elif name in TIMES:
        edges = np.linspace(-40, np.log(1.3), 41)
        half = np.diff(edges)[:, None] / 2
        time = np.exp(edges[:-1, None] + half * (1 + NODES))
        y, weights = np.r_[time.ravel(), -1.3], np.r_[(half * PANEL_WEIGHTS * time).ravel(), 1.0]
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
        if np.isfinite(given[1]) and name != "probit share":
            assert found.max() >= 0.999 * given[1]
    if np.isfinite(low) and name != "probit share":
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
    if name not in ("t", "cauchy", "user", "probit share"):
        # A least or most inside is attained between two of the points: two cut points have two peaks.
        assert ((least >= found.min(0) * (1 - 3e-12) - 1e-13) | (found.argmin(0) % 200 != 0)).all()
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


@pytest.mark.parametrize("name", [*LABELS, *COUNTS, *GRADES])
def test_predictions_sum_to_one(name):
    """Over all responses: zeros and ones, grades, or counts, which are below 20 for a small rate."""
    y = np.arange(SIZE if name in COUNTS else len(GRADES.get(name, [0])) + 1)
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
    deviation[-1] = 2.5 if name in (*COUNTS, *TIMES) else 30.0
    arrays = jnp.asarray(mean), jnp.asarray(deviation**2)
    if name == "user":
        with pytest.raises(ValueError, match="UserLikelihood has no mean_response"):
            likelihood.mean_response(*arrays)
        return
    found = np.asarray(likelihood.mean_response(*arrays))
    if name == "cauchy":
        assert np.isnan(found).all()
        return
    inverse = {
        "logit": special.expit,
        "share": special.expit,
        "probit": special.ndtr,
        "probit share": special.ndtr,
        "gaussian": np.array,
        "t": np.array,
        "weibull": lambda eta: stats.weibull_min.mean(1.5, scale=np.exp(-eta / 1.5)),
        "log-normal": lambda eta: stats.lognorm.mean(0.8, scale=np.exp(eta)),
    }.get(name, np.exp)
    if name in GRADES:

        def inverse(eta):
            return sum(stats.logistic.sf(cut, eta) for cut in GRADES[name])

    true = [inverse(mean[0])] + [
        gaussian_mean(inverse, m, s, 0.0, 1.0) for m, s in zip(mean[1:], deviation[1:], strict=True)
    ]
    # 5e-9 for each sigmoid that is a mixture of probits.
    sigmoids = {"logit": 1, "share": 1, **{grades: len(cuts) for grades, cuts in GRADES.items()}}
    np.testing.assert_allclose(found, true, rtol=1e-10, atol=5e-9 * sigmoids.get(name, 2e-4))


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
        ("ordinal", [0, 4, 1], r"from 0 to 3; y\[1\] is 4"),
        ("ordinal", [0, 0.5, 1], "y must hold grades"),
        ("wide ordinal", [1, 2, 3], "begin at 1 need y - 1"),
        ("weibull", [1.0, 0.0, -2.0], r"y\[1\] is 0. .* np.where\(event, t, -t\)"),
        ("log-normal", [0.0, 1.0, -2.0], "times other than 0"),
        ("share", [0.5, 7.0, 1.0], "Divide counts of successes by trials"),
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
        (lambda: likelihoods.OrdinalLogit([0.0, 0.0]), "cutpoints"),
        (lambda: likelihoods.OrdinalLogit(1.0), "cutpoints"),
        (lambda: likelihoods.Weibull(0.0), "shape"),
        (lambda: likelihoods.LogNormalSurvival(-1.0), "scale"),
    ):
        with pytest.raises(ValueError, match=f"^{argument} must"):
            make()


LABELLED = np.r_[np.linspace(-60.0, 60.0, 601), 1e5, -1e5]


@pytest.mark.parametrize("label", [0.0, 1.0])
def test_shares_change_nothing_for_labels(label):
    """Bit for bit what one softplus and its moments are."""
    likelihood, eta = likelihoods.BernoulliLogit(), jnp.asarray(LABELLED)
    y, sign, variance = jnp.full_like(eta, label), 1 - 2 * label, jnp.asarray(np.linspace(0, 30, len(LABELLED)))
    np.testing.assert_array_equal(likelihood.potential(eta, y), softplus(sign * eta))
    slope = jax.grad(lambda x: jnp.sum(likelihood.potential(x, y)))(eta)
    np.testing.assert_array_equal(slope, jax.grad(lambda x: jnp.sum(softplus(sign * x)))(eta))
    found, alone = likelihood.moments(eta, variance, y), softplus_moments(sign * eta, variance)
    np.testing.assert_array_equal(found.value, alone.value)
    np.testing.assert_array_equal(found.slope, sign * alone.slope)
    np.testing.assert_array_equal(found.weight, alone.weight)


def test_a_weighted_share_is_binomial():
    """n (softplus(eta) - (k/n) eta) - log C(n, k), also where one outcome is nearly certain."""
    eta, trials, successes = np.linspace(-40, 40, 81), 7.0, 6.0
    found = trials * likelihoods.BernoulliLogit().potential(jnp.asarray(eta), jnp.full(81, successes / trials))
    true = successes * special.log_expit(eta) + (trials - successes) * special.log_expit(-eta)
    np.testing.assert_allclose(found, -true, rtol=1e-14)


def test_two_grades_are_a_label():
    """With an offset: everything that the two likelihoods say."""
    ordinal, logit, cut = likelihoods.OrdinalLogit([0.7]), likelihoods.BernoulliLogit(), 0.7
    eta, variance = jnp.asarray(LABELLED), jnp.asarray(np.linspace(0, 30, len(LABELLED)))
    for label in (0.0, 1.0):
        y = jnp.full_like(eta, label)
        np.testing.assert_array_equal(ordinal.potential(eta, y), logit.potential(eta - cut, y))
        for one, other in zip(
            jax.tree.leaves(ordinal.moments(eta, variance, y)),
            jax.tree.leaves(logit.moments(eta - cut, variance, y)),
            strict=True,
        ):
            np.testing.assert_array_equal(one, other)
        assert ordinal.curvature_given(np.array([label])) == logit.curvature
        for bound in ("least_curvature", "most_curvature"):
            one, other = (getattr(x, bound)(eta - c, eta - c + 2, y) for x, c in ((ordinal, 0.0), (logit, cut)))
            np.testing.assert_allclose(one, other, rtol=3e-12)
        found = predictive(ordinal, eta, variance, y)
        np.testing.assert_allclose(found, predictive(logit, eta - cut, variance, y), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(
        ordinal.mean_response(eta, variance), logit.mean_response(eta - cut, variance), rtol=1e-14
    )


@quick_jit
def predictive(likelihood, mean, variance, y):
    return likelihood.log_predictive(mean, variance, y)


@pytest.mark.parametrize("gap", [1e-13, 1e-4, 2.5, 2 * np.arccosh(2.0), 2.7, 30.0, 2000.0])
def test_curvature_of_any_gap(gap):
    """The largest t'' is attained, and none is larger; the likelihood of a gap of 1e-13 keeps its digits."""
    likelihood = likelihoods.OrdinalLogit([1.0, 1.0 + gap])
    gap = float(likelihood.cutpoints[1] - likelihood.cutpoints[0])
    near = np.r_[np.linspace(-3, 3, 6001), np.linspace(-3, 3, 6001) + gap, np.linspace(0, gap, 6001)] + 1.0
    eta, y = jnp.asarray(near), jnp.ones(len(near))
    found = np.asarray(second_derivative(likelihood, eta, y))
    largest = likelihood.curvature_given(np.ones(1))[1]
    assert largest * (1 - 1e-6) <= found.max() <= largest
    bound = interval_curvature(likelihood, jnp.full(1, -np.inf), jnp.full(1, np.inf), jnp.ones(1))[1][0]
    assert largest * (1 - 1e-14) <= bound <= largest * (1 + 1e-11)
    if gap < 1e-3:
        # p = sigma'(eta - centre) gap (1 + O(gap^2)).
        true = -stats.logistic.logpdf(near, 1.0 + gap / 2) - np.log(gap)
        np.testing.assert_allclose(potential(likelihood, eta, y), true, rtol=1e-9)


@pytest.mark.parametrize("name", ["ordinal", "wide ordinal", "weibull", "log-normal"])
def test_derivatives_in_the_numbers_of_the_likelihood(name):
    """Cut points, shape and scale are learned by the gradient of the means: against central differences."""
    likelihood = MEMBERS[name]
    (leaf,), structure = jax.tree.flatten(likelihood)
    mean, _, y = (jnp.asarray(x) for x in grid(name, 3.0))

    @jax.jit
    def total(numbers):
        member = jax.tree.unflatten(structure, [numbers.reshape(leaf.shape)])
        return jnp.sum(member.moments(mean, jnp.full_like(mean, 0.6), y).value + member.potential(mean, y))

    numbers = leaf.reshape(-1)
    gradient = np.asarray(jax.grad(total)(numbers))
    for entry, change in zip(gradient, 1e-5 * np.eye(len(numbers)), strict=True):
        step = jnp.asarray(change)
        assert entry == pytest.approx(float(total(numbers + step) - total(numbers - step)) / 2e-5, rel=1e-6, abs=1e-6)


def test_user_functions_are_checked():
    summed = likelihoods.UserLikelihood(lambda y, eta: jnp.sum(-((y - eta) ** 2)))
    with pytest.raises(ValueError, match=r"log_prob returns shape \(\) .* entry by entry"):
        summed.read_response([0.0, 1.0], 2)
    positive = likelihoods.UserLikelihood(lambda y, eta: jnp.log(y) + eta - y * jnp.exp(eta))
    with pytest.raises(ValueError, match=r"log_prob\(y = 0.0, eta = -2\) is -inf; y\[1\]"):
        positive.read_response([1.0, 0.0], 2)
    assert not positive.log_concave and positive.curvature == (-np.inf, np.inf)
