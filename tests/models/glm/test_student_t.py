"""Student-t regression against a lattice over its four parameters, beside Gaussian noise, and as an estimator."""

import dataclasses
import json
import pickle

import numpy as np
import pytest
from scipy import optimize, special, stats
from sklearn.exceptions import ConvergenceWarning
from typer.testing import CliRunner

import provi
from provi.cli import app
from provi.models import LinearRegression, StudentTRegression
from provi.runtime.record import Outcome

pytestmark = pytest.mark.usefixtures("quick_compilation")

RNG = np.random.default_rng(4)
N = 40
X = RNG.normal(size=(N, 1)) + 2.0
CENTRE = X[:, 0] - X.mean()
Y = 10 + 2 * CENTRE + RNG.standard_t(3, N)


@pytest.fixture(scope="module")
def model():
    return StudentTRegression(random_state=0).fit(X, Y)


@pytest.fixture(scope="module")
def lattice():
    """Points (level at the mean, slope, log sigma, log nu), their posterior probabilities, and the log evidence.

    21 points an axis, along the axes of the Hessian at the mode, out to five deviations: the trapezoidal rule.
    """
    unit = Y.std()

    def log_joint(z):
        level, slope, log_sigma, log_nu = z[..., 0], z[..., 1], z[..., 2], z[..., 3]
        total = stats.norm(Y.mean(), 2.5 * unit).logpdf(level) + stats.norm(0, 2.5 * unit / X.std()).logpdf(slope)
        total += stats.halfnorm(scale=2.5 * unit).logpdf(np.exp(log_sigma)) + log_sigma
        total += stats.gamma(2, scale=10).logpdf(np.exp(log_nu)) + log_nu
        nu = np.exp(log_nu)
        terms = N * (special.gammaln((nu + 1) / 2) - special.gammaln(nu / 2) - 0.5 * np.log(np.pi * nu) - log_sigma)
        for x, y in zip(CENTRE, Y, strict=True):
            terms = terms - (nu + 1) / 2 * np.log1p(((y - level - slope * x) / np.exp(log_sigma)) ** 2 / nu)
        return total + terms

    start = np.array([Y.mean(), 2.0, 0.0, 1.5])
    best = optimize.minimize(lambda z: -log_joint(z), start, method="Nelder-Mead", options={"maxiter": 4000}).x
    step = 1e-3 * np.eye(4)
    second = [
        [sum(s * t * log_joint(best + s * a + t * b) for s in (1, -1) for t in (1, -1)) / 4e-6 for b in step]
        for a in step
    ]
    root = np.linalg.cholesky(np.linalg.inv(-np.array(second)))
    axis = np.linspace(-5.0, 5.0, 21)
    places = best + np.stack(np.meshgrid(*[axis] * 4, indexing="ij"), axis=-1).reshape(-1, 4) @ root.T
    values = log_joint(places)
    cell = np.log(axis[1] - axis[0]) * 4 + np.log(np.diagonal(root)).sum()
    return places, special.softmax(values), special.logsumexp(values) + cell


def moments(values, weights):
    mean = weights @ values
    return mean, np.sqrt(weights @ (values - mean) ** 2)


def test_the_posterior_is_near_that_of_a_lattice(model, lattice):
    """As near as a Gaussian comes: log nu is skewed, and the ELBO below the log evidence by less than 0.2 nats."""
    places, weights, evidence = lattice
    mean, sd = moments(places[:, 1], weights)
    assert abs(model.coef_[0] - mean) < 0.05 * sd and model.coef_sd_[0] == pytest.approx(sd, rel=0.06)
    mean, sd = moments(places[:, 0] - X.mean() * places[:, 1], weights)
    assert abs(model.intercept_ - mean) < 0.05 * sd and model.intercept_sd_ == pytest.approx(sd, rel=0.06)
    for place, name in ((2, "sigma"), (3, "nu")):
        found, expected = np.log(model.numbers_[name].quantile(0.5)), moments(places[:, place], weights)
        assert abs(found - expected[0]) < 0.1 * expected[1]
    mean, sd = moments(np.exp(places[:, 2]), weights)
    assert model.numbers_["sigma"].mean == pytest.approx(mean, abs=0.1 * sd)
    error = 6 * model.fit_.elbo.standard_error
    assert evidence - 0.2 - error < model.elbo_ < evidence + error


def test_predictions_are_near_those_of_a_lattice(model, lattice):
    places, weights, _ = lattice
    new, at = np.array([[0.5]]), places[:, 0] + places[:, 1] * (0.5 - X.mean())
    law = stats.t(np.exp(places[:, 3]), at, np.exp(places[:, 2]))
    mean, sd = moments(at, weights)
    found = model.fit_.predict(new)
    assert abs(found.mean[0] - mean) < 0.05 * sd and found.sd[0] == pytest.approx(sd, rel=0.06)
    assert model.predict(new)[0] == pytest.approx(found.mean[0]) and found.mean[0] == pytest.approx(
        model.fit_.predict(new, kind="latent").mean[0]
    )
    density = weights @ law.pdf(9.0)
    assert model.log_predictive_density(new, [9.0])[0] == pytest.approx(np.log(density), abs=0.02)
    drawn = model.fit_.predict(new, 0.8, kind="response", num_draws=40_000)
    # The shares of 40,000 draws are known to 0.002; the rest is how near q is.
    assert weights @ law.cdf(drawn.lower[0]) == pytest.approx(0.1, abs=0.012)
    assert weights @ law.cdf(drawn.upper[0]) == pytest.approx(0.9, abs=0.012)
    assert np.isnan(drawn.sd[0])  # there is no variance where nu <= 2
    many = model.fit_.posterior_predictive(np.repeat(new, 2, axis=0), num_draws=4000)["y"]
    assert many.shape == (4000, 2)
    assert (many[:, 0] < drawn.upper[0]).mean() == pytest.approx(0.9, abs=0.03)
    with pytest.raises(ValueError, match="no variance where nu <= 2"):
        model.predict(new, return_std=True)


def test_nothing_is_proven_and_the_reason_is_said(model):
    assert model.certificate_.status == "none" and model.certificate_.gap is None
    assert model.certificate_.kl is None and model.fit_.outcome is Outcome.STATIONARY
    assert "not log-concave" in str(model.certificate_)
    assert model.fit_.diagnose().pareto_k < 0.7


def test_an_outlier_moves_it_less_than_gaussian_noise(model):
    """A response 30 deviations off at one end, where it has leverage."""
    spoiled = Y.copy()
    spoiled[np.argmax(X[:, 0])] -= 30 * Y.std()
    robust = StudentTRegression(random_state=0).fit(X, spoiled)
    plain, pulled = (LinearRegression(noise_scale=None).fit(X, y) for y in (Y, spoiled))
    moved = abs(robust.coef_[0] - model.coef_[0])
    assert moved < model.coef_sd_[0] and moved < 0.05 * abs(pulled.coef_[0] - plain.coef_[0])
    assert robust.numbers_["nu"].mean < model.numbers_["nu"].mean
    assert robust.log_predictive_density(X, Y).sum() > pulled.log_predictive_density(X, Y).sum() + N


def test_what_a_fit_can_do_works_for_it(model, tmp_path):
    found = model.fit_
    assert found.check().ok and found.check().influence.rows == ()
    loo = found.loo()
    # Leave-one-out loses about as many nats as there are parameters, against the density of the same data.
    assert 0 < model.log_predictive_density(X, Y).sum() - loo.elpd < 8 and not loo.bad
    assert "Student-t regression, 2 coefficients" in str(found.describe())
    assert found.posterior_predictive(num_draws=3)["y"].shape == (3, N)
    rows = found.posterior.summary().to_dict()
    assert list(rows) == ["intercept", "coefficient[0]", "nu", "sigma"]
    assert rows["nu"]["mean"] == pytest.approx(model.numbers_["nu"].mean, rel=0.05)
    found.save(tmp_path / "fit.safetensors")
    again = provi.load(tmp_path / "fit.safetensors")
    np.testing.assert_array_equal(again.predict(X).upper, found.predict(X).upper)
    with pytest.raises(ValueError, match="X_new has shape"):
        found.predict(np.zeros((2, 3)))


def test_summary_priors_and_pickles(model):
    table = model.summary(0.9)
    assert table.names == ("intercept", "coefficient[0]", "sigma", "nu")
    posterior = model.fit_.posterior
    ends = np.exp(posterior.mean[-1] + stats.norm.ppf([0.05, 0.95]) * posterior.standard_deviation[-1])
    np.testing.assert_allclose(table.interval[3], ends, rtol=1e-4)
    assert table.mean[3] == pytest.approx(np.exp(posterior.mean[-1] + posterior.standard_deviation[-1] ** 2 / 2))
    assert model.priors_["nu"] == "Gamma(2, 0.1)" and model.priors_["sigma"] == f"HalfNormal({2.5 * Y.std():.4g})"
    with pytest.raises(ValueError, match="no ratio"):
        model.summary(ratios=True)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    np.testing.assert_array_equal(again.log_predictive_density(X, Y), model.log_predictive_density(X, Y))


def test_rows_and_priors_reach_the_target(monkeypatch, model):
    """Offsets, weights and priors by name, without the run; one that did not converge is warned of."""
    seen = []

    def stopped(target, **options):
        seen.append(target)
        return dataclasses.replace(model.fit_, target=target, outcome=Outcome.COMPLETED)

    monkeypatch.setattr("provi.models.glm.estimator.fit", stopped)
    weights, priors = np.arange(1.0, N + 1), {"nu": "gamma(3, 0.5)", "sigma": "exponential(2)", "intercept": 7.0}
    with pytest.warns(ConvergenceWarning, match="did not reach tol"):
        StudentTRegression(priors=priors).fit(X, Y, weights, offset=0.5)
    target = seen[0]
    np.testing.assert_array_equal(target.weights, weights)
    np.testing.assert_array_equal(target.offset, np.full(N, 0.5))
    assert float(target.nu_prior.shape) == 3.0 and float(target.sigma_prior.rate) == 2.0
    centred = np.array([1.0, np.average(X[:, 0], weights=weights)])
    # The prior of the intercept is that at the weighted mean of the column.
    assert np.sum((centred @ target.prior.covariance_factor()) ** 2) == pytest.approx(7.0**2)


@pytest.mark.parametrize(
    ("priors", "words"),
    [
        ({"nu": "normal(0, 1)"}, "nu_prior must be a prior of a positive number"),
        ({"nu": "gamma(2)"}, "gamma takes 2"),
        ({"mu": "normal(0, 1)"}, "priors names 'mu'"),
    ],
)
def test_wrong_priors_are_named(priors, words):
    with pytest.raises(ValueError, match=words):
        StudentTRegression(priors=priors).fit(X, Y)


def test_data_without_noise_are_refused():
    with pytest.raises(ValueError, match="without any residual"):
        StudentTRegression().fit(X, 3 * X[:, 0] - 1)


def test_the_command_line_fits_and_predicts_the_same(model, tmp_path):
    """Here, as the programs are compiled for these shapes. Exit code 0: it converged, and nothing speaks against it."""
    table, saved = tmp_path / "table.csv", tmp_path / "fit.safetensors"
    np.savetxt(table, np.c_[X, Y], delimiter=",", header="x,y", comments="")

    def run(*words):
        result = CliRunner().invoke(app, [str(word) for word in words])
        assert result.exit_code == 0, result.stderr
        return json.loads(result.stdout)

    document = run("fit", table, "-t", "y", "-m", "student-t", "--json", "--save", saved)
    assert document["verdict"] == "converged" and "there is no certificate" in document["sentence"]
    assert document["gap"] is None and document["status"] == "none" and document["k_hat"] < 0.7
    assert document["priors"]["nu"] == "Gamma(2, 0.1)" and document["check"]["ok"]
    original = {row["name"]: row for row in document["original_units"]["parameters"]}
    encoded = {row["name"]: row for row in document["parameters"]}
    assert list(original) == ["intercept", "x", "sigma", "nu"]
    assert original["x"]["mean"] == pytest.approx(encoded["x"]["mean"] / X.std())
    for name in ("sigma", "nu"):  # exact moments, and those of 10,000 draws: five standard errors of the mean
        assert abs(original[name]["mean"] - encoded[name]["mean"]) < 0.05 * encoded[name]["sd"]
    # Another seed and other units: both end where q has stopped moving, which is no proof.
    assert original["x"]["mean"] == pytest.approx(model.coef_[0], abs=0.03 * model.coef_sd_[0])
    assert original["x"]["sd"] == pytest.approx(model.coef_sd_[0], rel=0.03)
    rows = run("predict", saved, table, "--kind", "response", "--json")["predictions"]
    np.testing.assert_allclose([row["mean"] for row in rows], model.predict(X), atol=0.05 * model.intercept_sd_)
    inside = sum(row["lower"] < y < row["upper"] for row, y in zip(rows, Y, strict=True))
    # Of 40 responses with 90% intervals: binomial, 28 or fewer with a probability of 4e-4.
    assert inside > 28 and all(row["sd"] is None for row in rows)
