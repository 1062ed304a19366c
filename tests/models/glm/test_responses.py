"""Regressions with unknown numbers, and of several classes, against integration on a grid around SciPy's maximum."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, special, stats

import provi
from provi.models import GLM, LinearRegression, MultinomialRegression, OrdinalRegression, SurvivalRegression

pytestmark = pytest.mark.usefixtures("quick_compilation")

RNG = np.random.default_rng(11)
N = 40
X = RNG.normal(size=(N, 1)) + 2.0
ETA = 0.3 + 0.8 * (X[:, 0] - 2.0)
WEIGHTS = RNG.integers(1, 3, N).astype(float)
REAL = 10 + 3 * ETA + RNG.normal(size=N)
COUNTS = stats.nbinom(2.0, 2.0 / (2.0 + 3 * np.exp(ETA))).rvs(random_state=RNG).astype(float)
GRADES = np.digitize(ETA + RNG.logistic(size=N), [-0.5, 1.0])
TIMES = (RNG.exponential(size=N) * np.exp(-ETA)) ** (1 / 1.5)
EVENT = TIMES < np.quantile(TIMES, 0.7)
TIMES = np.minimum(TIMES, np.quantile(TIMES, 0.7))
CENTRE = X[:, 0] - np.average(X[:, 0])


def grid_posterior(negative_log_posterior, start, points=41, reach=6.0):
    """Means and deviations of exp(-f) in three (or two) coordinates: a lattice along the axes of the Hessian."""
    best = optimize.minimize(
        negative_log_posterior, start, method="Nelder-Mead", options={"maxiter": 4000, "xatol": 1e-7}
    )
    dim, step = len(start), 1e-3
    units = np.eye(dim) * step
    hessian = np.array(
        [
            [
                sum(s * t * negative_log_posterior(best.x + s * a + t * b) for s in (1, -1) for t in (1, -1))
                for b in units
            ]
            for a in units
        ]
    )
    root = np.linalg.cholesky(np.linalg.inv(hessian / (4 * step**2)))
    axes = np.meshgrid(*[np.linspace(-reach, reach, points)] * dim, indexing="ij")
    places = best.x + np.stack(axes, axis=-1).reshape(-1, dim) @ root.T
    values = np.array([negative_log_posterior(place) for place in places])
    weights = np.exp(values.min() - values)
    weights = weights / weights.sum()
    return places, weights


def moments(values, weights):
    mean = weights @ values
    return mean, np.sqrt(weights @ (values - mean) ** 2)


def check(found, expected, share=0.05):
    """Means within a share of the deviation, deviations within that share of themselves."""
    assert abs(found[0] - expected[0]) < share * expected[1]
    assert found[1] == pytest.approx(expected[1], rel=share)


def half_normal(value, scale):
    return 0.5 * (value / scale) ** 2


def test_unknown_noise_against_the_conjugate_posterior_at_each_scale():
    model = LinearRegression(noise_scale=None, tol=1e-3).fit(X, REAL, WEIGHTS)
    centre, spread = np.average(REAL, weights=WEIGHTS), np.sqrt(np.cov(REAL, aweights=WEIGHTS, ddof=0))
    middle = np.average(X[:, 0], weights=WEIGHTS)
    x_spread = np.sqrt(np.cov(X[:, 0], aweights=WEIGHTS, ddof=0))
    design, prior = np.c_[np.ones(N), X[:, 0] - middle], np.diag([2.5 * spread, 2.5 * spread / x_spread]) ** 2
    grid, logs, means, variances = np.exp(np.linspace(-1.5, 1.5, 600)), [], [], []
    for scale in grid:
        precision = np.linalg.inv(prior) + design.T @ (WEIGHTS[:, None] * design) / scale**2
        mean = np.linalg.solve(precision, design.T @ (WEIGHTS * (REAL - centre)) / scale**2)
        residual = REAL - centre - design @ mean
        log = (
            -0.5 * WEIGHTS @ residual**2 / scale**2
            - WEIGHTS.sum() * np.log(scale)
            - 0.5 * mean @ np.linalg.solve(prior, mean)
        )
        logs.append(log - 0.5 * np.linalg.slogdet(precision)[1] - half_normal(scale, 2.5 * spread) + np.log(scale))
        means.append(mean), variances.append(np.linalg.inv(precision))
    weights = special.softmax(logs)
    means, variances = np.array(means), np.array(variances)
    slope = weights @ means[:, 1]
    deviation = np.sqrt(weights @ (variances[:, 1, 1] + (means[:, 1] - slope) ** 2))
    check((model.coef_[0], model.coef_sd_[0]), (slope, deviation), 0.01)
    sigma = model.numbers_["sigma"]
    check((sigma.mean, sigma.sd), moments(grid, weights), 0.02)
    level = weights @ (centre + means[:, 0] - middle * means[:, 1])
    assert model.intercept_ == pytest.approx(level, abs=0.01 * model.intercept_sd_)
    # The noise of a new row, and its density.
    mean, sd = model.predict([[2.5]], return_std=True)
    row = np.array([1.0, 2.5 - middle])
    spot = centre + means @ row
    spot_variance = np.einsum("kij,i,j->k", variances, row, row) + grid**2
    assert mean[0] == pytest.approx(weights @ spot, abs=1e-3)
    assert sd[0] == pytest.approx(np.sqrt(weights @ (spot_variance + (spot - weights @ spot) ** 2)), rel=0.01)
    density = weights @ stats.norm(spot, np.sqrt(spot_variance)).pdf(11.0)
    assert model.log_predictive_density([[2.5]], [11.0])[0] == pytest.approx(np.log(density), abs=0.01)
    assert "sigma" in str(model.summary()) and model.priors_["sigma"].startswith("HalfNormal")
    with pytest.raises(ValueError, match="no ratio"):
        model.summary(ratios=True)


def test_unknown_dispersion():
    model = GLM("negative-binomial", shape="estimate", tol=1e-3).fit(X, COUNTS, exposure=2.0)
    scale, centre = 2.5 / X.std(), np.log((COUNTS.sum() + 0.5) / (2.0 * N))

    def negative_log_posterior(place):
        level, slope, log_r = place
        r = np.exp(log_r)
        eta = level + slope * CENTRE + np.log(2.0)
        terms = (COUNTS + r) @ np.logaddexp(log_r, eta) - COUNTS @ eta - N * r * log_r
        terms -= (special.gammaln(COUNTS + r) - special.gammaln(r)).sum()
        prior = 0.5 * ((level - centre) / 2.5) ** 2 + 0.5 * (slope / scale) ** 2
        return terms + prior - 2 * log_r + 0.1 * r  # Gamma(2, 0.1), of log r

    places, weights = grid_posterior(negative_log_posterior, np.array([centre, 0.5, 0.7]), 19, 4.5)
    check((model.coef_[0], model.coef_sd_[0]), moments(places[:, 1], weights))
    found = model.numbers_["dispersion"]
    check((found.mean, found.sd), moments(np.exp(places[:, 2]), weights), 0.1)
    rate = 2.0 * np.exp(places[:, 0] + 0.5 * places[:, 1])
    assert model.predict([[0.5 + X.mean()]], exposure=2.0)[0] == pytest.approx(weights @ rate, rel=0.02)
    assert model.certificate_.kl is not None
    table = model.summary(ratios=True).to_dict()
    assert (
        table["coefficient[0]"]["ratio"] == pytest.approx(np.exp(model.coef_[0])) and "ratio" not in table["dispersion"]
    )


def test_ordinal_regression():
    model = OrdinalRegression(tol=1e-3).fit(X, np.array(["a", "b", "c"])[GRADES])
    scale = 2.5 / X.std()

    def negative_log_posterior(place):
        slope, first, log_gap = place
        cuts = np.array([-np.inf, first, first + np.exp(log_gap), np.inf])
        eta = slope * CENTRE
        terms = -np.log(special.expit(cuts[GRADES + 1] - eta) - special.expit(cuts[GRADES] - eta)).sum()
        return terms + 0.5 * (slope / scale) ** 2 + 0.5 * (first / 3.0) ** 2 + 0.5 * log_gap**2

    places, weights = grid_posterior(negative_log_posterior, np.array([0.8, -0.5, 0.4]), 21, 5.0)
    check((model.coef_[0], model.coef_sd_[0]), moments(places[:, 0], weights))
    first = model.numbers_["cutpoint[1]"]
    check((first.mean, first.sd), moments(places[:, 1], weights))
    second = model.numbers_["cutpoint[2]"]
    check((second.mean, second.sd), moments(places[:, 1] + np.exp(places[:, 2]), weights))
    assert model.cutpoints_[0] == pytest.approx(weights @ (places[:, 1] + places[:, 0] * X.mean()), abs=0.05)
    below = special.expit(places[:, 1] - places[:, 0] * (1.0 - X.mean()))
    probability = model.predict_proba([[1.0]])
    assert probability[0, 0] == pytest.approx(weights @ below, abs=0.005) and probability.sum() == pytest.approx(1.0)
    assert set(model.predict(X)) <= {"a", "b", "c"} and "odds ratio" in str(model.summary(ratios=True))


@pytest.mark.parametrize("distribution", ["weibull", "log-normal"])
def test_survival_with_censoring(distribution):
    model = SurvivalRegression(distribution, tol=1e-3).fit(X, TIMES, EVENT)
    logs, weibull = np.log(TIMES), distribution == "weibull"
    centre, unit = (np.log(EVENT.sum() / TIMES.sum()), 1.0) if weibull else (logs.mean(), logs.std())

    def survival(place, centred, times):
        level, slope, log_number = place.T if place.ndim == 2 else place
        eta = level + slope * centred
        if weibull:
            return np.exp(-(times ** np.exp(log_number)) * np.exp(eta))
        return stats.norm.sf((np.log(times) - eta) / np.exp(log_number))

    def negative_log_posterior(place):
        level, slope, log_number = place
        number, eta = np.exp(log_number), level + slope * CENTRE
        if weibull:
            hazard = np.log(number) + (number - 1) * logs + eta
            terms = np.where(EVENT, hazard, 0.0).sum() - (TIMES**number * np.exp(eta)).sum()
            prior = 0.5 * (log_number / 0.5) ** 2
        else:
            z = (logs - eta) / number
            terms = np.where(EVENT, -0.5 * z**2 - log_number, special.log_ndtr(-z)).sum()
            prior = half_normal(number, 2.5 * unit) - log_number
        return (
            prior - terms + 0.5 * ((level - centre) / (2.5 * unit)) ** 2 + 0.5 * (slope * X.std() / (2.5 * unit)) ** 2
        )

    places, weights = grid_posterior(negative_log_posterior, np.array([centre, 0.0, 0.0]), 19, 4.5)
    check((model.coef_[0], model.coef_sd_[0]), moments(places[:, 1], weights))
    found = model.numbers_["shape" if weibull else "sigma"]
    check((found.mean, found.sd), moments(np.exp(places[:, 2]), weights), 0.07)
    level = places[:, 0] - places[:, 1] * X.mean()
    check((model.intercept_, model.intercept_sd_), moments(level, weights))
    expected = weights @ survival(places, 1.5 - X.mean(), 0.4)
    assert model.predict_survival([[1.5]], [0.4])[0, 0] == pytest.approx(expected, abs=0.005)
    assert ("hazard ratio" if weibull else "time ratio") in str(model.summary(ratios=True))


def test_exponential_times_have_nothing_unknown():
    model = SurvivalRegression("exponential").fit(X, TIMES, EVENT)
    assert model.certificate_.status == "proven" and not hasattr(model, "numbers_")
    assert (np.diff(model.predict_survival(X[:3], [0.1, 0.5, 2.0]), axis=1) < 0).all()
    for wrong, message in [((X, -TIMES), "positive times"), ((X, TIMES, 2 * EVENT), "event must hold 1")]:
        with pytest.raises(ValueError, match=message):
            SurvivalRegression().fit(*wrong)
    with pytest.raises(ValueError, match="distribution must be one of weibull"):
        SurvivalRegression("cox").fit(X, TIMES)


@pytest.fixture(scope="module")
def several():
    eta = np.c_[np.zeros(N), CENTRE, -1.5 * CENTRE]
    labels = np.array([RNG.choice(3, p=special.softmax(row)) for row in eta])
    return labels, MultinomialRegression(fit_intercept=False, tol=0.1, random_state=0).fit(
        CENTRE[:, None], labels, WEIGHTS
    )


def test_several_classes(several):
    """The best Gaussian by SciPy, its mean energy by a product of Gauss-Hermite rules."""
    labels, model = several
    scale = 2.5 / np.sqrt(np.average((CENTRE - np.average(CENTRE, weights=WEIGHTS)) ** 2, weights=WEIGHTS))
    nodes, node_weights = np.polynomial.hermite_e.hermegauss(20)
    grid = np.stack(np.meshgrid(nodes, nodes, indexing="ij"), axis=-1).reshape(-1, 2)
    grid_weights = np.outer(node_weights, node_weights).ravel() / (2 * np.pi)

    def negative_elbo(packed):
        factor = np.array([[packed[2], 0.0], [packed[3], packed[4]]])
        places = packed[:2] + grid @ factor.T
        eta = np.concatenate([np.zeros((400, N, 1)), CENTRE[None, :, None] * places[:, None, :]], axis=2)
        terms = -special.log_softmax(eta, axis=2)[:, np.arange(N), labels] @ WEIGHTS
        prior = 0.5 * np.sum((places / scale) ** 2, axis=1) + 2 * np.log(scale)
        return grid_weights @ (terms + prior) - np.log(np.abs(packed[2] * packed[4])) - 1.0

    best = optimize.minimize(negative_elbo, np.array([0.5, -1.0, 0.5, 0.0, 0.5]), method="BFGS", options={"gtol": 1e-4})
    assert -best.fun - 0.1 < model.elbo_ < -best.fun + 0.05
    deviations = np.array([abs(best.x[2]), np.hypot(best.x[3], best.x[4])])
    # A gap of e nats moves a mean by at most sqrt(2 e) deviations, where the data are informative.
    gap = max(-best.fun - model.elbo_, 0.0) + 0.01
    assert (np.abs(model.coef_[:, 0] - best.x[:2]) < np.sqrt(2 * gap) * deviations).all()
    np.testing.assert_allclose(model.coef_sd_[:, 0], deviations, rtol=0.15)
    assert model.certificate_.status in ("proven", "statistical") and model.coef_.shape == (2, 1)
    places = best.x[:2] + grid @ np.array([[best.x[2], 0.0], [best.x[3], best.x[4]]]).T
    expected = grid_weights @ special.softmax(np.c_[np.zeros(400), places * 0.7], axis=1)
    np.testing.assert_allclose(model.predict_proba([[0.7]])[0], expected, atol=0.02)
    assert set(model.predict(X)) <= {0, 1, 2} and "2: coefficient[0]" in str(model.summary(ratios=True))


def test_the_curvature_of_several_classes_is_within_its_bounds(several):
    labels, _ = several
    target = provi.targets.MultinomialLogistic(
        np.c_[np.ones(N), X], labels, {"intercept": 2.0}, names=("intercept", "x"), weights=WEIGHTS
    )
    low, high = target.curvature_bounds()
    largest, points = 0.0, np.random.default_rng(0).normal(size=(20, target.dim)) * np.geomspace(0.01, 3, 20)[:, None]
    for hessian in np.asarray(jax.jit(jax.vmap(jax.hessian(target.potential)))(jnp.asarray(points))):
        assert np.linalg.eigvalsh(hessian - low)[0] > -1e-9 and np.linalg.eigvalsh(high - hessian)[0] > -1e-9
        largest = max(largest, np.linalg.eigvalsh(hessian)[-1])
    assert largest < target.constants.smoothness.value < 3 * largest
    eta = np.c_[np.zeros(N), X @ [[0.5, -1.0]] + [0.1, 0.2]]
    point = np.array([0.1, 0.5, 0.2, -1.0])
    expected = WEIGHTS * special.log_softmax(eta, axis=1)[np.arange(N), labels]
    np.testing.assert_allclose(target.log_likelihood(point)["y"], expected, rtol=1e-10)
    plain = provi.targets.MultinomialLogistic(X, labels, classes=("a", "b", "c"))
    drawn = plain.predict(np.tile([0.5, -1.0], (2000, 1)), seed=0)["y"]
    rates = special.softmax(np.c_[np.zeros(N), X @ [[0.5, -1.0]]], axis=1)
    np.testing.assert_allclose((drawn == 2).mean(axis=0), rates[:, 2], atol=0.05)
    assert plain.parameter_names == ("b: coefficient[0]", "c: coefficient[0]")
    with pytest.raises(ValueError, match="two classes at least"):
        provi.targets.MultinomialLogistic(X, np.zeros(N))
