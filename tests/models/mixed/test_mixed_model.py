"""`MixedModel` from end to end: against exact quadrature, its tables, predictions, and scikit-learn's conventions."""

import pickle
import warnings

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from scipy.special import expit
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from provi.models import MixedModel
from provi.targets import latent

RNG = np.random.default_rng(3)
N, GROUPS = 90, 9


@pytest.fixture(scope="module")
def frame():
    """Nine schools, a covariate far from zero, a Gaussian response and labels."""
    school, x = np.arange(N) % GROUPS, 20 + 2 * RNG.normal(size=N)
    effects = 1.5 * RNG.normal(size=GROUPS)
    eta = 0.8 * (x - 20) + effects[school]
    label = np.where(RNG.random(N) < expit(eta), "pass", "fail")
    columns = {"score": 50 + eta + 2 * RNG.normal(size=N), "label": label, "x": x, "school": [f"s{k}" for k in school]}
    return pd.DataFrame(columns, index=[f"row{k}" for k in range(N)])


@pytest.fixture(scope="module")
def gaussian(frame):
    return MixedModel("score ~ x + (1 | school)", frame, family="gaussian").fit()


@pytest.fixture(scope="module")
def logistic(frame):
    return MixedModel("label ~ x + (1 | school)", frame, family="bernoulli").fit()


def _exact(frame, priors):
    """Means and deviations of (Intercept at 0, x, sd, sigma), and log p(y), by quadrature on a grid of both scales."""
    X = np.column_stack([np.ones(N), frame["x"] - frame["x"].mean()])
    Z = (frame["school"].to_numpy()[:, None] == np.unique(frame["school"])[None]) * 1.0
    y, prior = frame["score"].to_numpy() - priors.fixed.mean[0], np.diag(priors.fixed.scale**2)
    wide = float(priors.scales["school"][0].scale)
    logs = np.linspace(-2.5, 2.0, 90), np.linspace(0.2, 1.2, 60)
    to_zero = np.array([[1, -frame["x"].mean()], [0, 1]])
    weights, means, covariances, scales = [], [], [], []
    for a in np.exp(logs[0]):
        for s in np.exp(logs[1]):
            noise = s**2 * np.eye(N) + a**2 * Z @ Z.T
            total = noise + X @ prior @ X.T
            solved = np.linalg.solve(total, y)
            gain = prior @ X.T @ np.linalg.inv(total)
            log_prior = -0.5 * (a**2 + s**2) / wide**2 + 2 * np.log(np.sqrt(2 / np.pi) / wide) + np.log(a * s)
            log_evidence = -0.5 * (y @ solved + np.linalg.slogdet(total)[1] + N * np.log(2 * np.pi))
            weights.append(log_evidence + log_prior)
            means.append(to_zero @ (gain @ y))
            covariances.append(np.diag(to_zero @ (prior - gain @ X @ prior) @ to_zero.T))
            scales.append([a, s])
    weights, means, scales = np.array(weights), np.array(means), np.array(scales)
    step = (logs[0][1] - logs[0][0]) * (logs[1][1] - logs[1][0])
    evidence = np.log(np.sum(np.exp(weights - weights.max())) * step) + weights.max()
    p = np.exp(weights - weights.max())
    p /= p.sum()
    every = np.concatenate([means, scales], axis=1)
    mean = p @ every
    variance = p @ (every - mean) ** 2 + np.concatenate([p @ np.array(covariances), [0, 0]])
    return mean + [priors.fixed.mean[0], 0, 0, 0], np.sqrt(variance), evidence


def test_a_gaussian_model_against_exact_quadrature(frame, gaussian):
    mean, sd, evidence = _exact(frame, gaussian.assembly_.priors)
    found = gaussian.summary()
    assert found.names == ("Intercept", "x", "sd(school)", "sigma")
    # The aim of the issue: means within 0.05 sd, sds within 5%.
    np.testing.assert_array_less(np.abs(found.mean - mean) / sd, 0.05)
    np.testing.assert_allclose(found.standard_deviation, sd, rtol=0.05)
    assert float(gaussian.fit_.elbo) == pytest.approx(evidence, abs=0.02), "Gaussian: the ELBO is the evidence"


def test_draws_agree_with_the_summary(gaussian):
    draws, found = gaussian.draws(20_000), gaussian.summary().to_dict()
    for name, row in found.items():
        # Five standard errors, and the smoothing of the nodes.
        assert abs(draws[name].mean() - row["mean"]) < 5 * row["sd"] / np.sqrt(20_000) + 0.02 * row["sd"]
        assert draws[name].std() == pytest.approx(row["sd"], rel=0.05)
        assert np.quantile(draws[name], 0.03) == pytest.approx(row["low"], abs=0.1 * row["sd"])
    assert draws["school"].shape == (20_000, GROUPS)


def test_effects_of_the_levels(gaussian):
    table = gaussian.ranef()
    assert list(table.columns) == ["term", "level", "effect", "mean", "sd", "lower", "upper"]
    assert table["level"].tolist() == [f"s{k}" for k in range(GROUPS)] and set(table["effect"]) == {"Intercept"}
    draws = gaussian.draws(20_000)["school"]
    np.testing.assert_allclose(table["mean"], draws.mean(axis=0), atol=5 * table["sd"].max() / np.sqrt(20_000))
    assert ((table["lower"] < table["mean"]) & (table["mean"] < table["upper"])).all()
    pd.testing.assert_frame_equal(gaussian.random_effects, table)


def test_predictions_are_averages_over_the_draws(frame, logistic):
    new = pd.DataFrame({"x": [19.0, 22.0], "school": ["s3", "s0"]}, index=["a", "b"])
    draws = logistic.draws(2000, 0)
    eta = np.stack([draws["Intercept"] + 19 * draws["x"] + draws["school"][:, 3],
                    draws["Intercept"] + 22 * draws["x"] + draws["school"][:, 0]], axis=1)  # fmt: skip
    found = logistic.predict(new, interval=0.8)
    np.testing.assert_allclose(found["mean"], expit(eta).mean(axis=0), rtol=1e-9)
    np.testing.assert_allclose(found["lower"], np.quantile(expit(eta), 0.1, axis=0), rtol=1e-9)
    assert found.index.tolist() == ["a", "b"] and list(found.columns) == ["mean", "sd", "lower", "upper"]
    np.testing.assert_allclose(logistic.predict(new, kind="latent")["mean"], eta.mean(axis=0), rtol=1e-9)
    np.testing.assert_allclose(logistic.predict(new, kind="draws"), expit(eta), rtol=1e-9)
    np.testing.assert_allclose(logistic.predict_proba(new)[:, 1], found["mean"])
    assert logistic.classes_.tolist() == ["fail", "pass"]
    assert set(np.unique(logistic.predict(new, kind="response")[["lower", "upper"]])) <= {0.0, 1.0}
    assert logistic.predict().index.equals(frame.index)


def test_levels_that_the_fit_has_not_seen(logistic):
    new = pd.DataFrame({"x": [20.0], "school": ["other"]})
    with pytest.warns(UserWarning, match="not seen the levels school: 'other': predicted without an effect"):
        logistic.predict(new)
    with pytest.raises(ValueError, match="The fit has not seen the levels school: 'other'"):
        logistic.predict(new, new_levels="error")
    population = logistic.predict(new, kind="latent", new_levels="population")
    sample = logistic.predict(new, kind="latent", new_levels="sample")
    assert sample["sd"].item() > 1.5 * population["sd"].item()


def test_models_are_compared_by_their_evidence(frame, logistic):
    without = MixedModel("label ~ (1 | school)", frame, family="bernoulli").fit()
    found = logistic.compare(without)
    assert found.names[0] == "label ~ x + (1 | school)"
    low = logistic.fit_.evidence.lower - without.fit_.evidence.upper
    assert found.log_bayes_factor(*found.names)[0] == pytest.approx(low)
    with pytest.raises(ValueError, match="different responses"):
        logistic.compare(MixedModel("score ~ x", frame, family="gaussian").fit())


def test_what_is_printed(logistic):
    text = str(logistic)
    for words in (
        "Formula: label ~ x + (1 | school)",
        "1 for 'pass'",
        "Priors:",
        "sd(school)",
        "Fitted in",
        "evidence",
    ):
        assert words in text
    assert repr(logistic) == "MixedModel('label ~ x + (1 | school)', family='bernoulli')"


def test_missing_rows_are_said(frame):
    holes = frame.assign(x=frame["x"].where(np.arange(N) > 3))
    with pytest.warns(UserWarning, match=r"86 rows; 4 rows with missing entries were left out \('x' 4\)"):
        found = MixedModel("score ~ x", holes, family="gaussian").fit()
    assert found.num_dropped_ == 4 and len(found.predict()) == 86
    assert found.predict().index.tolist() == frame.index[4:].tolist()


def test_conventions_of_scikit_learn(frame, logistic):
    fresh = clone(logistic)
    assert fresh.get_params()["formula"] == logistic.formula and not hasattr(fresh, "fit_")
    assert fresh.set_params(tol=0.1).tol == 0.1
    with pytest.raises(NotFittedError):
        fresh.predict()
    again = pickle.loads(pickle.dumps(logistic))
    new = {"x": [21.0], "school": ["s1"]}
    np.testing.assert_allclose(again.predict(new), logistic.predict(new))
    apart = MixedModel("label ~ x + (1 | school)", family="bernoulli").fit(frame.drop(columns="label"), frame["label"])
    np.testing.assert_allclose(apart.summary().mean, logistic.summary().mean, rtol=1e-6)
    unfitted = MixedModel("y ~ x", family="poisson")
    assert "Not fitted; no data yet" in str(unfitted)
    with pytest.raises(ValueError, match="There are no data"):
        unfitted.fit()


def test_a_picture_of_the_effects(logistic):
    figure = logistic.plot_effects()
    titles = [axis.get_title(loc="left") for axis in figure.axes]
    assert titles == ["Fixed effects", "Scales and other numbers", "Intercept by school"]
    assert len(figure.axes[2].get_yticks()) == GROUPS
    assert plt.figure(figure.number) is figure, "notebooks and the site show what pyplot has open"
    plt.close(figure)


def test_arviz(logistic):
    found = logistic.to_arviz(50)
    assert found.posterior["school"].dims == ("chain", "draw", "school level")
    assert found.posterior["school"].coords["school level"].values.tolist() == [f"s{k}" for k in range(GROUPS)]
    np.testing.assert_allclose(found.posterior["Intercept"].values[0], logistic.draws(50, 0)["Intercept"])
    assert found.posterior_predictive["label"].shape == (1, 50, N)


def test_a_report(logistic, tmp_path):
    text = logistic.report(tmp_path / "report.html").read_text(encoding="utf-8")
    assert "label ~ x + (1 | school) (bernoulli)" in text


def test_intercepts_and_slopes_that_are_correlated(frame):
    found = MixedModel("score ~ x + (1 + x | school)", frame, family="gaussian", tol=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found.fit()
    names = found.summary().names
    assert names == (
        "Intercept", "x", "sd(school: Intercept)", "sd(school: x)", "sigma", "cor(school: Intercept, x)",
    ) or set(names) >= {"sd(school: x)", "cor(school: Intercept, x)"}  # fmt: skip
    assert found.ranef().shape == (2 * GROUPS, 7)


def test_nested_groups_are_where_they_belong(frame):
    """The precision of the target against the dense one: blocks were once put in the order of their sizes."""
    import jax.numpy as jnp

    from provi.models.mixed.assembly import assemble

    table = frame.assign(room=[f"r{k % 3}" for k in range(N)], house=[f"h{k % 9 // 3}" for k in range(N)])
    target = assemble("score ~ x + (1 | house/school)", table, "gaussian").target()
    given, sites = target.conditional(jnp.zeros(3)), jnp.linspace(0.1, 1.0, N)
    unit = jnp.eye(target.num_effects)
    rows = np.stack([np.asarray(given.predictor(*target.split(e)) - given.offset) for e in unit], axis=1)
    found = given.precision(sites)
    dense = np.stack([np.asarray(target.join(*found.multiply(*target.split(e)))) for e in unit], axis=1)
    prior = np.concatenate([target.fixed_scale**-2.0, np.ones(target.num_effects - 2)])
    np.testing.assert_allclose(dense, rows.T @ (np.asarray(sites)[:, None] * rows) + np.diag(prior), atol=1e-10)


@pytest.mark.parametrize("rows", ["one row a group", "separable"])
def test_hard_groups_work(frame, rows):
    if rows == "separable":
        table = frame.assign(label=np.where(frame["school"] < "s5", "fail", "pass"))
    else:
        table = frame.assign(school=[f"s{k:02d}" for k in range(N)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = MixedModel("label ~ x + (1 | school)", table, family="bernoulli").fit()
    assert np.isfinite(found.summary().mean).all()
    assert found.predict()["mean"].between(0, 1).all()


def test_options_of_predictions(logistic):
    for options, message in [
        ({"kind": "odds"}, "kind must be one of 'mean', 'latent', 'response', 'draws', not 'odds'"),
        ({"interval": 1.5}, "interval must lie between 0 and 1"),
        ({"new_levels": "guess"}, "new_levels must be one of"),
        ({"num_draws": 0}, "num_draws must be at least 1"),
        ({"num_draws": 2**23, "kind": "draws"}, "take over 2 GiB"),
    ]:
        with pytest.raises(ValueError, match=message):
            logistic.predict(**options)


def test_priors_of_the_user_are_used(frame):
    tight = MixedModel(
        "score ~ x + (1 | school)", frame, family="gaussian", priors={"x": latent.Normal(3.0, 1e-3)}
    ).fit()
    assert tight.summary().to_dict()["x"]["mean"] == pytest.approx(3.0, abs=0.01)
