"""Predictions for new rows against closed forms, quadrature and textbook formulae of their own."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, special, stats

import provi
from provi.families import Gaussian, Laplace, LocationScale, StudentT
from provi.result import Posterior, Prediction
from provi.result.nested import NestedRows
from provi.targets import likelihoods
from support.statistics import assert_mean

RNG = np.random.default_rng(11)
X, NEW = RNG.normal(size=(30, 3)), RNG.normal(size=(7, 3))
MEAN = np.array([0.4, -0.3, 0.8, 0.1])
ROOT = np.tril(RNG.normal(size=(4, 4))) * 0.3 + 0.4 * np.eye(4)
KERNEL = provi.kernels.SquaredExponential(1.2, 1.5)


@pytest.fixture(scope="module")
def any_fit():
    return provi.fit(provi.targets.LinearRegression(X[:, :1], X[:, 1]))


@pytest.fixture(scope="module")
def made(any_fit):
    """A fit that has found this member of this family, without a run."""

    def make(target, family, point):
        posterior = Posterior(family, point, target.parameter_names, target)
        return dataclasses.replace(any_fit, target=target, posterior=posterior)

    return make


@pytest.fixture(scope="module")
def linear(made):
    """A regression with an intercept, its posterior N(MEAN, ROOT ROOT')."""

    def make(likelihood, y, base=None, **options):
        target = provi.targets.GeneralisedLinearModel(X, y, likelihood, intercept=True, **options)
        family = LocationScale(4, base, "triangular")
        return made(target, family, family.point(MEAN, ROOT))

    return make


ROWS = np.concatenate([np.ones((7, 1)), NEW], axis=1)
ETA, SD = ROWS @ MEAN, np.linalg.norm(ROWS @ ROOT, axis=1)
COUNTS, LABELS, REAL = np.arange(30) % 4, np.arange(30) % 2, X[:, 0]

MODELS = {
    "logit": (likelihoods.BernoulliLogit(), LABELS, special.expit),
    "probit": (likelihoods.BernoulliProbit(), LABELS, special.ndtr),
    "poisson": (likelihoods.Poisson(), COUNTS, np.exp),
    "negative binomial": (likelihoods.NegativeBinomial(2.0), COUNTS, np.exp),
    "gaussian": (likelihoods.GaussianNoise(0.6), REAL, lambda eta: eta),
    # Decreasing in eta, and not among those that the module knows.
    "weibull": (
        likelihoods.Weibull(1.7),
        np.abs(REAL) + 0.1,
        lambda eta: np.exp(-eta / 1.7) * special.gamma(1 + 1 / 1.7),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_expected_responses_by_quadrature(linear, name):
    likelihood, y, mean_at = MODELS[name]
    found = linear(likelihood, y).predict(NEW, interval=0.8)
    np.testing.assert_allclose(found.linear.mean, ETA, rtol=1e-12)
    np.testing.assert_allclose(found.linear.sd, SD, rtol=1e-12)

    def moment(power, m, s):
        def integrand(u):
            return mean_at(m + s * u) ** power * stats.norm.pdf(u)

        return integrate.quad(integrand, -12, 12, epsabs=1e-13, epsrel=1e-12, limit=200)[0]

    first = np.array([moment(1, m, s) for m, s in zip(ETA, SD, strict=True)])
    second = np.array([moment(2, m, s) for m, s in zip(ETA, SD, strict=True)])
    np.testing.assert_allclose(found.mean, first, rtol=1e-9)
    np.testing.assert_allclose(found.sd, np.sqrt(second - first**2), rtol=1e-6)
    ends = mean_at(np.array([ETA + stats.norm.ppf(p) * SD for p in (0.1, 0.9)]))
    np.testing.assert_allclose(found.lower, ends.min(axis=0), rtol=1e-9)
    np.testing.assert_allclose(found.upper, ends.max(axis=0), rtol=1e-9)


def test_wide_posteriors_keep_their_probabilities(made):
    """Deviations of 30, where a sigmoid is a step to the nodes."""
    target = provi.targets.LogisticRegression(X[:, :1], LABELS)
    family = Gaussian(1)
    found = made(target, family, family.point(np.array([5.0]), 30.0)).predict(np.array([[1.0], [-0.5]]))
    np.testing.assert_allclose(found.mean, special.ndtr(np.array([5, -2.5]) / np.array([30, 15])), atol=2e-3)


def test_latent_and_new_responses(linear):
    gaussian = linear(*MODELS["gaussian"][:2])
    latent, new = gaussian.predict(NEW, 0.8, kind="latent"), gaussian.predict(NEW, 0.8, kind="response")
    width, total = stats.norm.ppf(0.9), np.hypot(SD, 0.6)
    np.testing.assert_allclose(latent.upper, ETA + width * SD, rtol=1e-12)
    np.testing.assert_allclose([new.sd, new.lower, new.upper], [total, ETA - width * total, ETA + width * total])
    labels = linear(*MODELS["logit"][:2]).predict(NEW, 0.5, kind="response")
    p = labels.mean
    np.testing.assert_array_equal(labels.lower, stats.bernoulli.ppf(0.25, p))
    np.testing.assert_array_equal(labels.upper, stats.bernoulli.ppf(0.75, p))
    np.testing.assert_allclose(labels.sd, np.sqrt(p * (1 - p)))


def test_new_counts_hold_what_they_promise(linear):
    """Against the distribution function of the mixture, with 4.5 standard errors of 4000 draws on either side."""
    found = linear(*MODELS["poisson"][:2]).predict(NEW, 0.8, kind="response", seed=1)
    u = np.linspace(-10, 10, 2001)
    weights = stats.norm.pdf(u) / stats.norm.pdf(u).sum()
    margin = 4.5 * np.sqrt(0.9 * 0.1 / 4000)
    for row in range(7):
        rates = np.exp(ETA[row] + SD[row] * u)
        assert weights @ stats.poisson.cdf(found.upper[row], rates) >= 0.9 - margin
        assert weights @ stats.poisson.cdf(found.upper[row] - 1, rates) <= 0.9 + margin
        assert weights @ stats.poisson.cdf(found.lower[row], rates) >= 0.1 - margin
    np.testing.assert_allclose(found.mean, np.exp(ETA + SD**2 / 2), rtol=1e-12)


@pytest.mark.parametrize("base", [StudentT(5.0), Laplace()], ids=["student", "laplace"])
def test_other_families(linear, base):
    """Intervals exactly by the law of a coordinate; the mean against 200,000 draws, false alarms of 1e-6."""
    fit = linear(likelihoods.BernoulliLogit(), LABELS, base)
    found = fit.predict(NEW, 0.8)
    eta = fit.posterior.sample(200_000, 3) @ ROWS.T
    assert_mean((eta < special.logit(found.upper)).astype(float), np.full(7, 0.9))
    assert_mean((eta < special.logit(found.lower)).astype(float), np.full(7, 0.1))
    np.testing.assert_allclose(found.mean, special.expit(eta).mean(axis=0), atol=4e-3)


def test_the_dual_form_predicts_as_the_coefficients_do(made):
    """More columns than rows: V = Sigma_0 - T'T, against the dense covariance."""
    wide, new = RNG.normal(size=(6, 9)), RNG.normal(size=(4, 9))
    target = provi.targets.LogisticRegression(wide, LABELS[:6], prior_scale=np.linspace(0.5, 2, 9))
    family = provi.families.dual_gaussian(target)
    with jax.enable_x64(True):
        point = provi.families.DualPoint(*(jnp.asarray(v) for v in (RNG.normal(size=6), RNG.random(6))))
    fit = made(target, family, point)
    found = fit.predict(new)
    np.testing.assert_allclose(found.linear.mean, new @ fit.posterior.mean)
    np.testing.assert_allclose(found.linear.sd**2, np.einsum("ni,ij,nj->n", new, fit.posterior.covariance, new))


@pytest.fixture(scope="module")
def process():
    target = provi.targets.GaussianProcess(X, REAL, KERNEL, likelihoods.GaussianNoise(0.3), mean=0.5)
    return target, provi.fit(target, tol=1e-6)


def textbook(new):
    """Mean and covariance of a Gaussian process given noisy data, by inverting K + s^2 I."""

    def k(a, b):
        return 1.5**2 * np.exp(-0.5 * np.sum((a[:, None] - b[None]) ** 2, axis=2) / 1.2**2)

    inverse = np.linalg.inv(k(X, X) + (1e-6 + 0.09) * np.eye(30))
    return 0.5 + k(new, X) @ inverse @ (REAL - 0.5), k(new, new) - k(new, X) @ inverse @ k(X, new)


def test_gaussian_processes_by_the_textbook(process, made):
    target, fit = process
    mean, covariance = textbook(NEW)
    dense_family = Gaussian(30)
    at_data, spread = textbook(X)
    point = dense_family.point_from_covariance(at_data, spread + 1e-9 * np.eye(30))
    for found in (fit.predict(NEW), made(target, dense_family, point).predict(NEW)):
        np.testing.assert_allclose(found.mean, mean, atol=2e-4)
        np.testing.assert_allclose(found.sd, np.sqrt(np.diag(covariance)), rtol=2e-3)
    drawn = fit.posterior_predictive(NEW, num_draws=20_000, seed=4)["y"]
    assert_mean(drawn, fit.predict(NEW).mean)
    assert_mean((drawn[:, 0] - mean[0]) * (drawn[:, 1] - mean[1]), covariance[0, 1])
    total = fit.predict(NEW, kind="response")
    np.testing.assert_allclose(total.sd**2, np.diag(covariance) + 0.09, rtol=2e-3)


def test_sparse_processes(made):
    target = provi.targets.SparseGaussianProcess(X, LABELS, X[:5], KERNEL)
    family = Gaussian(5)
    fit = made(target, family, family.point(MEAN[[0, 1, 2, 3, 0]], 0.5))
    mean, variance = target.predict_latent(fit.posterior.mean, 0.5 * np.eye(5), NEW)
    found = fit.predict(NEW)
    np.testing.assert_allclose([found.linear.mean, found.linear.sd**2], [mean, variance])
    assert_mean(fit.posterior_predictive(NEW, num_draws=20_000)["y"], found.mean)


@pytest.mark.parametrize("matrix", [False, True])
def test_groups_known_and_new(made, matrix):
    groups = np.array(["u", "v", "w"])[np.arange(30) % 3]
    within = np.array([[0.5, -0.3], [-0.3, 0.9]]) if matrix else 0.49 * np.eye(2)
    given = {"group_covariance": within} if matrix else {"group_scale": 0.7}
    target = provi.targets.HierarchicalLogisticRegression(X[:, :2], LABELS, groups, 1.0, **given)
    family = Gaussian(8)
    rng = np.random.default_rng(3)
    root = np.tril(rng.normal(size=(8, 8)), -1) * 0.2 + 0.3 * np.eye(8)
    mean = np.concatenate([[0.05, -0.05], rng.normal(size=6)])
    fit = made(target, family, family.point(mean, root))
    new, labels = NEW[:3, :2], ["w", "new", "new"]
    found = fit.predict(new, groups=labels)
    design = np.zeros((3, 8))
    design[0, 6:8], design[1:, :2] = new[0], new[1:]
    variance = np.sum((design @ root) ** 2, axis=1) + [0, *np.sum(new[1:] @ within * new[1:], axis=1)]
    np.testing.assert_allclose([found.linear.mean, found.linear.sd], [design @ mean, np.sqrt(variance)])
    drawn = fit.posterior_predictive(new, groups=labels, num_draws=20_000)["y"]
    assert_mean(drawn, found.mean)
    # Two rows of one new group share its effect.
    same = fit.posterior_predictive(np.repeat(new[1:2] * 50, 2, axis=0), groups=["n", "n"], num_draws=500)["y"]
    apart = fit.posterior_predictive(np.repeat(new[1:2] * 50, 2, axis=0), groups=["n", "m"], num_draws=500)["y"]
    assert np.mean(same[:, 0] == same[:, 1]) > 0.95 and np.mean(apart[:, 0] == apart[:, 1]) < 0.85
    with pytest.raises(ValueError, match="groups= is needed"):
        fit.predict(new)
    with pytest.raises(ValueError, match="groups has length 2, but X_new has 3 rows"):
        fit.predict(new, groups=["u", "v"])


def test_unknown_noise():
    """Fixed effects only: by draws, against the moments of the marginals."""
    design = np.concatenate([np.ones((30, 1)), X[:, :1]], axis=1)
    target = provi.targets.LatentGaussian(REAL + 0.3 * X[:, 1], "gaussian", fixed=design, fixed_names=["one", "x"])
    fit = provi.fit(target, tol=0.05)
    new = design[:3]
    found, response = fit.predict(new), fit.predict(new, kind="response")
    expected = new @ [fit.posterior.fixed[name].mean for name in ("one", "x")]
    np.testing.assert_allclose(found.mean, expected, atol=0.02)
    sigma = fit.posterior.hyperparameters["sigma"]
    noise = sigma.mean**2 + sigma.sd**2
    np.testing.assert_allclose(response.sd**2, found.sd**2 + noise, rtol=0.15)
    assert fit.posterior_predictive(new, num_draws=10)["y"].shape == (10, 3)


def test_responses_at_new_rows(linear):
    """Joint: rows that are alike have predictors that are one; without arguments, or with numbers, as before."""
    fit = linear(*MODELS["gaussian"][:2])
    drawn = fit.posterior_predictive(NEW, num_draws=20_000, seed=2)["y"]
    covariance = ROWS @ ROOT @ ROOT.T @ ROWS.T
    assert_mean(drawn, ETA)
    assert_mean((drawn[:, 0] - ETA[0]) * (drawn[:, 1] - ETA[1]), covariance[0, 1])
    assert_mean((drawn - ETA) ** 2, np.diag(covariance) + 0.36)
    assert fit.posterior_predictive(7)["y"].shape == fit.posterior_predictive(num_draws=7)["y"].shape == (7, 30)
    np.testing.assert_array_equal(
        fit.posterior_predictive(5, 1)["y"], fit.posterior_predictive(num_draws=5, seed=1)["y"]
    )
    with pytest.raises(ValueError, match="one table of new rows, X_new, not 2 arguments"):
        fit.posterior_predictive(NEW, None)


def test_columns_are_matched_by_name(made):
    pd = pytest.importorskip("pandas")
    frame, new = pd.DataFrame(X, columns=list("abc")), pd.DataFrame(NEW, columns=list("abc"))
    family = Gaussian(4)
    target = provi.targets.LogisticRegression(frame, LABELS, intercept=True)
    fit = made(target, family, family.point(MEAN, ROOT))
    wanted = fit.predict(NEW).mean
    moved = new[["c", "a", "b"]].assign(note="text that nobody reads")
    np.testing.assert_allclose(fit.predict(moved).mean, wanted)
    np.testing.assert_allclose(fit.predict(ROWS).mean, wanted)  # with the column of ones
    process = provi.targets.GaussianProcess(frame, LABELS, KERNEL)
    dual = provi.families.dual_gaussian(process)
    other = made(process, dual, dual.prior_point())
    np.testing.assert_allclose(other.predict(moved).sd, other.predict(NEW).sd)
    for wrong, message in {
        "X_new has no column 'b'; the fit has the columns 'a', 'b', 'c'": new.drop(columns="b"),
        r"X_new has shape \(7, 2\), but X has 3 columns \('a', 'b', 'c'\), and the intercept is added": NEW[:, :2],
        r"X_new must have 2 axes.*X_new\[None, :\]": NEW[0],
        "the first in row 2 of column 'b'": new.assign(b=[0, 0, np.nan, 0, 0, 0, 0]),
        r"X_new has 1 entries that are NaN or infinite": np.where(np.arange(21).reshape(7, 3) == 5, np.inf, NEW),
    }.items():
        with pytest.raises(ValueError, match=wrong):
            fit.predict(message)


def test_offsets(linear):
    fit = linear(*MODELS["poisson"][:2])
    plain = fit.predict(NEW)
    for given in ({"exposure": np.full(7, 3.0)}, {"offset": np.log(3.0)}, {"offset": np.full(7, np.log(3.0))}):
        np.testing.assert_allclose(fit.predict(NEW, **given).mean, 3 * plain.mean)
    for given, message in (
        ({"exposure": np.zeros(7)}, "exposure must be positive"),
        ({"offset": np.zeros(3)}, "offset has length 3"),
        ({"groups": [1] * 7}, "GeneralisedLinearModel has none"),
    ):
        with pytest.raises(ValueError, match=message):
            fit.predict(NEW, **given)


def test_what_cannot_be_predicted_says_why(linear, made, any_fit):
    user = likelihoods.UserLikelihood(lambda y, eta: -0.5 * (y - eta) ** 2, log_concave=True)
    fit = linear(user, REAL)
    np.testing.assert_allclose(fit.predict(NEW, kind="latent").mean, ETA)
    with pytest.raises(ValueError, match="no mean_response"):
        fit.predict(NEW)
    with pytest.raises(ValueError, match="UserLikelihood does not say how a response is drawn"):
        fit.posterior_predictive(NEW)
    family = Gaussian(2)
    density = provi.targets.LogDensity(lambda z: -0.5 * (z @ z), 2, strong_convexity=1.0)
    plain = made(density, family, family.point(np.zeros(2)))
    for call in (plain.predict, plain.posterior_predictive):
        with pytest.raises(ValueError, match=r"LogDensity does not say what its rows are.*fit.posterior.draws"):
            call(NEW)
    with pytest.raises(ValueError, match="predict needs the target"):
        bare = dataclasses.replace(any_fit, target=None)
        dataclasses.replace(bare, posterior=dataclasses.replace(bare.posterior, target=None)).predict(NEW)
    for options, message in (({"kind": "odd"}, "kind must be one of 'mean'"), ({"interval": 1.0}, "interval must lie")):
        with pytest.raises(ValueError, match=message):
            fit.predict(NEW, **options)


def test_a_prediction_prints_itself(linear):
    found = linear(*MODELS["logit"][:2]).predict(np.repeat(NEW, 4, axis=0), 0.9)
    lines = str(found).splitlines()
    assert lines[0] == "Expected response, with the central 90% interval" and lines[-1].startswith("... 8 more rows")
    assert lines[2].split() == ["row", "mean", "sd", "lower", "upper"] and float(lines[3].split()[1]) == pytest.approx(
        found.mean[0], rel=1e-4
    )
    assert len(found) == 28 and found.to_dict()["upper"] == found.upper.tolist() and isinstance(found, Prediction)
    assert list(found.to_dict()) == ["mean", "sd", "lower", "upper", "linear_mean", "linear_sd"]


def test_several_classes(made, linear):
    """Probabilities from draws, against the same of draws here: a softmax, and differences of sigmoids."""
    target = provi.targets.MultinomialLogistic(X, np.arange(30) % 3, intercept=True, classes=["u", "v", "w"])
    family = Gaussian(8, "diagonal")
    mean = np.linspace(-1, 1, 8)
    fit = made(target, family, family.point(mean, 0.3))
    found = fit.predict(NEW, 0.8, num_draws=20_000)
    z = fit.posterior.sample(20_000, 9).reshape(-1, 2, 4)
    eta = np.concatenate([np.zeros((20_000, 7, 1)), np.einsum("nkd,rd->nrk", z, ROWS)], axis=2)
    shares = np.exp(eta) / np.exp(eta).sum(axis=2, keepdims=True)
    np.testing.assert_allclose(found.mean, shares.mean(axis=0), atol=0.01)
    np.testing.assert_allclose(found.upper, np.quantile(shares, 0.9, axis=0), atol=0.02)
    np.testing.assert_allclose(found.mean.sum(axis=1), 1)
    assert found.labels == ("u", "v", "w") and str(found).splitlines()[2].split() == ["row", "u", "v", "w"]
    drawn = fit.posterior_predictive(NEW, num_draws=20_000)["y"]
    for k in range(3):
        assert_mean((drawn == k).astype(float) - found.mean[:, k], np.zeros(7))
    with pytest.raises(ValueError, match="kind='response' has no interval for several classes"):
        fit.predict(NEW, kind="response")
    cuts = np.array([-0.5, 1.0])
    graded = linear(likelihoods.OrdinalLogit(cuts), np.arange(30) % 3)
    shares = graded.predict(NEW, num_draws=20_000).mean
    below = np.array([integrate.quad(lambda u, m=m, s=s: special.expit(-0.5 - m - s * u) * stats.norm.pdf(u), -9, 9)[0]
                      for m, s in zip(ETA, SD, strict=True)])  # fmt: skip
    np.testing.assert_allclose(shares[:, 0], below, atol=0.01)
    np.testing.assert_allclose(shares.sum(axis=1), 1)


def test_offsets_of_a_fit_are_asked_for(made):
    """A regression with exposures and weights predicts by its plain likelihood, at the new rows' own exposures."""
    target = provi.targets.PoissonRegression(X, COUNTS, exposure=np.linspace(1, 2, 30), weights=np.ones(30))
    family = Gaussian(3)
    fit = made(target, family, family.point(MEAN[:3], 0.2))
    with pytest.raises(ValueError, match="fitted with an offset: give offset= or exposure="):
        fit.predict(NEW)
    eta, variance = NEW @ MEAN[:3], 0.04 * np.sum(NEW**2, axis=1)
    np.testing.assert_allclose(fit.predict(NEW, exposure=5.0).mean, 5 * np.exp(eta + variance / 2))
    assert fit.posterior_predictive(NEW, exposure=5.0, num_draws=3)["y"].shape == (3, 7)


def test_grades_between_unknown_cut_points():
    """At given draws of cut points and coefficients: shares are differences of sigmoids, draw by draw."""
    target = provi.targets.LatentGaussian(np.arange(30) % 3, "ordinal", fixed=X, fixed_names=["a", "b", "c"])
    z = 0.3 * RNG.normal(size=(50, target.dim))
    posterior = SimpleNamespace(sample=lambda num, seed: z)
    found = NestedRows(posterior, target, NEW, np.full(7, 0.4)).grades().predict("mean", 0.9, 50, 0)
    values = target.constrain(z)
    eta = 0.4 + np.stack([values[name] for name in "abc"], axis=1) @ NEW.T
    above = [special.expit(eta - values[f"cutpoint[{k}]"][:, None]) for k in (1, 2)]
    expected = np.stack([1 - above[0], above[0] - above[1], above[1]], axis=2)
    np.testing.assert_allclose(found[0], expected.mean(axis=0))
    np.testing.assert_allclose(found[2], np.quantile(expected, 0.05, axis=0))
