"""Pages beside the report of a fit: what was fitted, checks, functions, mixtures, comparisons; and their numbers."""

import dataclasses
import json

import matplotlib.pyplot as plt
import numpy as np
import pytest
from scipy import special

import provi
from provi.report.html.page import render_report
from provi.report.html.verdict import verdict
from provi.report.plots.fitted import latent_function, plot_function, plot_replicated, plot_residuals
from provi.report.plots.posterior import draw_intervals, model_marginals
from provi.result.description import ModelDescription, describe_target
from provi.targets.likelihoods import GaussianNoise, NegativeBinomial
from support.html_page import check_pictures, check_self_contained, check_structure, check_style

T = provi.targets
pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.fixture(scope="module")
def misfit():
    """Counts of four times their variance under a Poisson model, with an intercept far from the coefficients."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(150, 2))
    y = rng.poisson(np.exp(4 + 0.2 * X[:, 0]) * rng.gamma(8.0, size=150) / 8)
    return provi.fit(T.PoissonRegression(X, y, [5.0, 1.0, 1.0], intercept=True, names=("<b>", "dose")))


@pytest.fixture(scope="module")
def processes():
    """Gaussian processes of one, two and three inputs; their posterior is known in closed form."""
    rng = np.random.default_rng(1)
    found = {}
    for columns in (1, 2, 3):
        X = rng.uniform(-2, 2, size=(40, columns))
        y = np.sin(X[:, 0]) + 0.2 * rng.normal(size=40)
        found[columns] = provi.fit(T.GaussianProcess(X, y, likelihood=GaussianNoise(0.2)))
    return found


def page_of(fit, pictures, **options):
    source = render_report(fit, num_draws=0, **options)
    page = check_self_contained(source)
    check_structure(page)
    check_pictures(page, pictures)
    check_style(source)
    return page


def test_a_certified_fit_of_a_wrong_model_is_amber_and_says_what_to_try(misfit):
    page = page_of(misfit, 8)
    assert page.text("h2").count("Certified approximation of a model that does not fit") == 1
    assert any(a.get("class") == "verdict caution" for a, _ in page.all("section"))
    assert "more variance (negative binomial)" in page.text("li") and "over-dispersion" in page.text("li")
    text = page.text()
    for words in (
        "What was fitted",
        "y ~ 1 + <b> + dose",
        "Poisson, log link",
        "N(0, 5²) on intercept; N(0, 1²) on <b>, dose",
    ):
        assert words in text, words
    assert "Does the model fit?" in text and "fails" in page.text("td") and "p_loo" in text
    assert verdict(misfit).level == "certified"  # without the check


def test_the_intercept_does_not_press_the_others_into_dots(misfit):
    marginals = model_marginals(misfit.posterior, 40)
    figure, axes = plt.subplots()
    draw_intervals(axes, marginals)
    low, high = axes.get_xlim()
    assert high - low < 1.0 and not low < marginals.mean[0] < high  # 4, while the others are within 0.3
    (label,) = [text.get_text() for text in axes.texts]
    assert label.startswith(f"{marginals.mean[0]:.3g} (") and label.endswith("off the axis")
    # Units that differ by far more than any axis can show: each in its own deviations.
    wide = dataclasses.replace(misfit.posterior, target=None)
    unequal = dataclasses.replace(model_marginals(wide, 40), title="x")
    object.__setattr__(unequal, "interval", lambda p: np.array([[0.9, 1.1], [90.0, 110.0], [9e3, 1.1e4]]) * 1.0)
    axes.clear()
    draw_intervals(axes, unequal)
    assert "posterior standard deviations" in axes.get_xlabel()
    plt.close(figure)


def test_functions_are_the_posterior_of_the_process(processes):
    """k'(K + s^2)^-1 y and its variance, at points that are none of the data."""
    for columns, fit in processes.items():
        target, points = fit.target, np.random.default_rng(2).uniform(-2, 2, size=(5, columns))
        X, y = np.asarray(target.inputs), np.asarray(target.response)

        def kernel(a, b):
            return np.exp(-0.5 * ((a[:, None] - b[None]) ** 2).sum(axis=-1))

        gram = kernel(X, X) + (1e-6 + 0.04) * np.eye(40)
        cross = kernel(X, points)
        mean, deviation = latent_function(fit, points)
        np.testing.assert_allclose(mean, cross.T @ np.linalg.solve(gram, y), atol=1e-5)
        variance = 1 - (cross * np.linalg.solve(gram, cross)).sum(axis=0)
        np.testing.assert_allclose(deviation, np.sqrt(variance), atol=1e-5)


def test_functions_by_moments_and_by_inducing_points(processes):
    fit = processes[1]
    points = np.linspace(-1.9, 1.9, 7)[:, None]
    exact = latent_function(fit, points)

    class Moments:
        family, point = fit.posterior.family, None
        mean, covariance = fit.posterior.mean, fit.posterior.covariance

    plain = dataclasses.make_dataclass("Fit", ["target", "posterior"])(fit.target, Moments)
    for found, known in zip(latent_function(plain, points), exact, strict=True):
        np.testing.assert_allclose(found, known, atol=1e-5)
    sparse = T.SparseGaussianProcess(
        np.asarray(fit.target.inputs), fit.target.response, likelihood=GaussianNoise(0.2), inducing=25
    )
    for found, known in zip(latent_function(provi.fit(sparse), points), exact, strict=True):
        np.testing.assert_allclose(found, known, atol=0.01)


def test_pages_of_processes_have_the_function_and_no_unexplained_parameters(processes):
    described = ModelDescription(
        "A process.", "y ~ f(age)", inputs=(("age", 50.0, 10.0),), response=("score", 5.0, 2.0)
    )
    fit = dataclasses.replace(processes[1], description=described)
    page = page_of(fit, 6)  # three of the checks, the function, two of the run
    assert "The function" in page.text("h2") and "Values of the function at the data" in page.text("summary")
    figure = plot_function(fit, described)
    axes = figure.axes[0]
    assert axes.get_xlabel() == "age" and axes.get_ylabel() == "score"
    assert 20 < axes.get_xlim()[0] < 50 < axes.get_xlim()[1] < 80  # 50 + 10 * [-2, 2]
    plt.close(figure)
    assert "squared exponential (length scale 1, amplitude 1)" in page_of(processes[2], 6).text()
    panels = plot_function(processes[3])
    assert [axes.get_xlabel() for axes in panels.axes] == ["input 1", "input 2", "input 3", ""]
    plt.close(panels)


@pytest.mark.parametrize("likelihood", [NegativeBinomial(2.0), T.likelihoods.BernoulliProbit()])
def test_functions_on_the_scale_of_the_response(likelihood):
    rng = np.random.default_rng(3)
    X = rng.normal(size=(30, 1))
    y = rng.poisson(2.0, 30) if isinstance(likelihood, NegativeBinomial) else rng.random(30) < 0.5
    fit = provi.fit(T.GaussianProcess(X, y, likelihood=likelihood))
    figure = plot_function(fit)
    mean, _ = latent_function(fit, X[:1])
    expected = np.exp(mean) if isinstance(likelihood, NegativeBinomial) else special.ndtr(mean)
    curve = next(
        line for line in figure.axes[0].lines if line.get_label() in ("expected count", "probability of a one")
    )
    assert np.interp(X[0, 0], *curve.get_data()) == pytest.approx(float(expected[0]), abs=0.02)
    plt.close(figure)


def test_mixtures_over_hyperparameters():
    rng = np.random.default_rng(4)
    group, x = np.arange(60) % 6, rng.normal(size=60)
    y = rng.poisson(np.exp(5 + 0.2 * x + 0.3 * rng.normal(size=6)[group]))
    blocks = T.latent.Independent(group, name="ward")
    fixed = np.stack([np.ones(60), x], axis=1)
    fit = provi.fit(
        T.LatentGaussian(y, "poisson", fixed=fixed, fixed_names=("Intercept", "x"), fixed_scale=20.0, blocks=blocks)
    )
    page = page_of(fit, 7)  # three of the checks, two of intervals, densities, correlations
    assert any(a.get("class") == "verdict conditional" for a, _ in page.all("section"))
    assert "Integrated over the hyperparameters" in page.text("h2")
    for words in ("prior of sd(ward)", "off the axis", "Scales and other hyperparameters", "there is no run to draw"):
        assert words in page.text(), words
    marginals = model_marginals(fit.posterior, 40)
    assert marginals.names == ("Intercept", "x", "sd(ward)")
    points, density = marginals.density(1)
    assert np.trapezoid(density, points) == pytest.approx(1, abs=0.01)


def test_comparisons_draw_their_brackets(tmp_path):
    rng = np.random.default_rng(5)
    X = rng.normal(size=(40, 2))
    y = rng.random(40) < special.expit(2 * X[:, 0])
    fits = {"both </b>": T.LogisticRegression(X, y), "one": T.LogisticRegression(X[:, :1], y)}
    found = provi.compare({name: provi.fit(target) for name, target in fits.items()})
    path = found.report(tmp_path / "new" / "comparison.html")
    source = path.read_text("utf-8")
    page = check_self_contained(source)
    check_structure(page)
    check_pictures(page, 1)
    check_style(source)
    assert found.verdict in page.text("p") and "both </b>" in page.text("th") and "both </b>" in page.text("text")
    unbounded = dataclasses.replace(found.brackets[1], upper=np.inf, status="none")
    both = dataclasses.replace(found, brackets=(found.brackets[0], unbounded), status="none")
    assert "conditional" in both.report(path).read_text("utf-8")


def test_descriptions_are_kept_in_files(misfit, tmp_path):
    described = ModelDescription("Visits.", "visits ~ dose", (("data", "v.csv: 150 rows"),))
    dataclasses.replace(misfit, description=described).save(tmp_path / "fit.provi")
    assert provi.load(tmp_path / "fit.provi").describe() == described
    misfit.save(tmp_path / "fit.provi")
    assert provi.load(tmp_path / "fit.provi").description is None


def test_descriptions_are_plain_data(processes):
    for target in (processes[2].target, T.LinearRegression(np.eye(3), np.arange(3.0), 0.5)):
        found = describe_target(target)
        assert ModelDescription.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    assert "Gaussian; scale 0.5" in str(found) and "N(0, 1²) on every coefficient" in str(found)
    table = ModelDescription(
        "w", "y ~ a", (("prior", "N(0, 1)"),), (("a", "as it is"),), (("a", 1.0, 2.0),), ("y", 0.0, 1.0)
    )
    assert ModelDescription.from_dict(json.loads(json.dumps(table.to_dict()))) == table
    several = describe_target(T.MultinomialLogistic(np.eye(3), np.arange(3), 0.5, classes=("u", "v", "w")))
    assert ("priors", "N(0, 0.5²) on every coefficient, for each of v, w") in several.facts
    density = describe_target(T.LogDensity(lambda z: -(z @ z), 2))
    assert density.formula is None and "does not read" in density.facts[0][1]


def test_the_pictures_of_a_check_show_its_numbers(misfit):
    found = misfit.check()
    figure = plot_replicated(found)
    observed = next(patch for patch in figure.axes[0].patches if patch.get_label() == "observed")
    assert observed.get_data().values.sum() == 150  # no row is left out
    plt.close(figure)
    figure = plot_residuals(found)
    dots = figure.axes[0].lines[0].get_ydata()
    # The dispersion of the table is that of the dots.
    dispersion = next(row.observed for row in found.rows if row.name == "over-dispersion")
    assert np.mean(np.square(dots)) == pytest.approx(dispersion, rel=1e-6)
    plt.close(figure)
