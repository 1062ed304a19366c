"""`provi fit TABLE`: the same as `provi.fit` on arrays that were encoded by hand."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import provi as library
from provi.cli.answer import print_plain
from provi.cli.table_data import Model, TableOptions, read_data
from provi.cli.table_models import make_problem
from provi.models.gp.hyperparameters import learn_hyperparameters
from provi.targets.likelihoods import GaussianNoise
from support.html_page import check_pictures, check_self_contained, check_structure

RESPONSES = "died,visits,score"


def check_same(document, fit):
    """The JSON of the command agrees with a `Fit` to rounding."""
    parameters = document["parameters"]
    assert [row["name"] for row in parameters] == list(fit.posterior.names)
    np.testing.assert_allclose([row["mean"] for row in parameters], fit.posterior.mean, rtol=1e-12)
    np.testing.assert_allclose([row["sd"] for row in parameters], fit.posterior.standard_deviation, rtol=1e-12)
    assert document["elbo"]["value"] == pytest.approx(fit.elbo.value, rel=1e-12)
    assert document["gap"] == pytest.approx(fit.certificate.gap, rel=1e-9)


def weak_prior(X, centre=0.0, scales=None):
    """rstanarm's rule by hand: independent priors of the coefficients and of the intercept at the columns' means."""
    scales = 2.5 / X.std(axis=0) if scales is None else scales
    root = np.diag(np.append(2.5, scales))
    root[0, 1:] = -X.mean(axis=0) * scales
    return {"prior_mean": np.append(centre, np.zeros(len(scales))), "prior_covariance": root @ root.T}


@pytest.mark.parametrize(
    ("model", "response", "target"),
    [
        ("logistic", "died", library.targets.LogisticRegression),
        ("poisson", "visits", library.targets.PoissonRegression),
    ],
)
def test_regressions_equal_those_on_arrays(provi, patients_csv, patients, design, model, response, target):
    drop = [word for name in RESPONSES.split(",") if name != response for word in ("--drop", name)]
    result = provi("fit", patients_csv, "--target", response, "--model", model, *drop, "--json")
    assert result.exit_code == 0, result.stderr
    X, names = design
    y = patients[response] == "yes" if response == "died" else patients[response]
    centre = 0.0 if response == "died" else np.log((y.sum() + 0.5) / 60)
    by_hand = target(X, y, **weak_prior(X, centre), intercept=True, names=names)
    check_same(json.loads(result.stdout), library.fit(by_hand))


def test_prior_and_units_can_be_chosen(provi, patients_csv, patients, design):
    words = "fit patients.csv -t died -m logistic --columns age,ward --columns dose --no-standardise --positive no"
    result = provi(*words.split(), "--prior-scale", "0.3", "--tol", "0.1", "--seed", "3", "--json")
    X, names = design
    X = np.stack([patients["age"], X[:, 1], X[:, 2], patients["dose"]], axis=1)
    y, prior = patients["died"] == "no", weak_prior(X, 0.0, np.full(4, 0.3))
    by_hand = library.targets.LogisticRegression(X, y, **prior, intercept=True, names=names)
    check_same(json.loads(result.stdout), library.fit(by_hand, tol=0.1, seed=3))


def test_rows_priors_and_units_of_the_table(provi, patients_csv, patients):
    """A prior is in the units of its column; so is the second table, with its odds ratios."""
    words = ("-t", "died", "-m", "logistic", "--columns", "age", "--weights", "visits", "--offset", "score")
    result = provi(
        "fit", patients_csv, *words, "--prior", "age=normal(0.1, 0.02)", "--prior", "intercept=normal(1,3)", "--json"
    )
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    age, weights = patients["age"], patients["visits"].astype(float)
    z = (age - age.mean()) / age.std()
    middle, unit = np.average(z, weights=weights), age.std()
    root = np.array([[3.0, -middle * 0.02 * unit], [0.0, 0.02 * unit]])
    mean = np.array([1.0 - middle * 0.1 * unit, 0.1 * unit])
    by_hand = library.targets.LogisticRegression(
        z[:, None], patients["died"] == "yes", prior_mean=mean, prior_covariance=root @ root.T, intercept=True,
        names=("age",), weights=weights, offset=patients["score"],
    )  # fmt: skip
    fit = library.fit(by_hand)
    check_same(document, fit)
    table = {row["name"]: row for row in document["original_units"]["parameters"]}
    slope, covariance = fit.posterior.mean[1] / unit, fit.posterior.covariance
    assert table["age"]["mean"] == pytest.approx(slope) and table["age"]["ratio"] == pytest.approx(np.exp(slope))
    back = np.array([1.0, -age.mean() / unit])
    assert table["intercept"]["mean"] == pytest.approx(back @ fit.posterior.mean)
    assert table["intercept"]["sd"] == pytest.approx(np.sqrt(back @ covariance @ back))
    assert document["original_units"]["ratio"] == "odds ratio" and document["priors"]["age"] == "normal(0.1, 0.02)"


def test_linear_regression_integrates_its_noise(provi, patients_csv, patients):
    from provi.models import LinearRegression

    words = (
        "fit",
        patients_csv,
        "-t",
        "score",
        "-m",
        "linear",
        "--columns",
        "age,dose",
        "--prior",
        "sigma=exponential(1)",
    )
    document = json.loads(provi(*words, "--json").stdout)
    X = np.stack([patients["age"], patients["dose"]], axis=1)
    model = LinearRegression(noise_scale=None).fit(X, patients["score"])
    table = {row["name"]: row["mean"] for row in document["original_units"]["parameters"]}
    # The same but for the prior of sigma.
    np.testing.assert_allclose([table["age"], table["dose"]], model.coef_, atol=0.01 * model.coef_sd_.min())
    assert table["intercept"] == pytest.approx(model.intercept_, abs=0.02 * model.intercept_sd_)
    assert document["priors"]["sigma"] == "Exponential(1)" and document["original_units"]["ratio"] is None
    assert [row["name"] for row in document["parameters"]] == ["intercept", "age", "dose", "sigma"]


@pytest.mark.parametrize(
    "model", ["multinomial", "ordinal", "negative-binomial", "weibull", "log-normal", "exponential", "student-t"]
)
def test_other_models_are_those_of_arrays(provi, patients_csv, patients, model):
    """Their targets, without a fit."""
    column, rows = {"multinomial": ("ward", ()), "ordinal": ("visits", ())}.get(model, ("visits", ("weights",)))
    column = "dose" if model in ("weibull", "log-normal", "exponential") else column
    options = TableOptions(
        column, Model(model), columns=["age"], **dict.fromkeys(rows, "visits" if column == "dose" else "dose")
    )
    data = read_data(str(patients_csv), options)
    problem = make_problem(data, options, 0, None)
    target, observed = problem.target, np.asarray(problem.target.observed_data["y"])
    if model == "multinomial":
        assert target.classes == ("east", "north", "south") and target.names == ("intercept", "age")
        np.testing.assert_array_equal(np.array(target.classes)[observed], patients["ward"])
    elif model == "ordinal":
        assert list(target.hyperpriors)[0] == "cutpoint[1]" and "intercept" not in problem.priors
        np.testing.assert_array_equal(np.unique(patients["visits"])[observed.astype(int)], patients["visits"])
    else:
        np.testing.assert_array_equal(observed, patients[column])
        np.testing.assert_allclose(target.weights, patients["visits" if column == "dose" else "dose"])
        number = {"negative-binomial": "dispersion", "weibull": "shape", "log-normal": "sigma", "student-t": "nu"}.get(
            model
        )
        assert number is None or number in target.hyperpriors
    assert problem.priors["age"].startswith("normal(0, ")


def test_process_regression_equals_that_on_arrays(provi, patients_csv, patients, design):
    result = provi("fit", patients_csv, "-t", "score", "-m", "gp", "--drop", "died,visits", "--json")
    assert result.exit_code == 0, result.stderr
    X, y = design[0], patients["score"]
    kernel = library.kernels.SquaredExponential(2.0)
    process = library.targets.GaussianProcess(X, (y - y.mean()) / y.std(), kernel, GaussianNoise(0.5))
    learnt = learn_hyperparameters(process)
    document = json.loads(result.stdout)
    check_same(document, library.fit(learnt.target, start=learnt.start))
    assert document["hyperparameters"]["noise scale"] == pytest.approx(float(learnt.target.likelihood.scale))


def test_two_labels_are_classes_to_a_process(provi, patients_csv):
    result = provi("fit", patients_csv, "-t", "died", "-m", "gp", "--columns", "age")
    assert result.exit_code == 0, result.stderr
    assert "Gaussian-process classification" in result.stdout and "... 50 more" in result.stdout


def test_what_was_done_is_said(provi, patients_csv, patients):
    result = provi("fit", patients_csv, "-t", "died", "-m", "logistic", "--drop", "visits,score")
    assert result.exit_code == 0 and not result.stderr
    yes, age = int((patients["died"] == "yes").sum()), patients["age"]
    for words in (
        "60 rows, 3 columns as 4 features",
        f"1 for 'yes' ({yes} rows), 0 for 'no' ({60 - yes} rows)",
        f"(x - {age.mean():.6g}) / {age.std():.6g}",
        "0/1 for 'north', 'south'; reference 'east'",
        "intercept normal(0, 2.5), at the columns' means, age normal(0, ",
        "In the units of the table",
        "odds ratio",
        "ward=south",
        "Proven: within",
        "Assumptions",
    ):
        assert words in result.stdout
    verdict, tails = result.stdout.splitlines()[-2:]
    assert verdict.startswith("Certified: the gap") and tails.startswith("k-hat 0.")


def test_names_with_brackets_are_printed_as_they_are(write):
    write("d.csv", "weight [kg],[/b],y\n1,u,0\n2,[bold],1\n4,:cat:,1\n")
    console = Console(file=io.StringIO(), width=100)
    print_plain(console, *read_data("d.csv", TableOptions("y", Model.LOGISTIC)).description())
    shown = console.file.getvalue()
    assert "weight [kg]" in shown and "[/b]" in shown and "reference ':cat:'" in shown and "'[bold]', 'u'" in shown


def test_a_budget_that_ends_the_run_is_no_certificate(provi, patients_csv):
    words = ("-t", "visits", "-m", "poisson", "--drop", "died,score", "--budget", "1", "-q")
    result = provi("fit", patients_csv, *words)
    assert result.exit_code == 1
    (line,) = result.stdout.splitlines()
    assert line.startswith("Not certified") and "budget" in line


class TestCheck:
    """What a model that does not fit does to the verdict, the exit code and the files."""

    @pytest.fixture
    def spread(self, write):
        rng = np.random.default_rng(3)
        x = rng.normal(size=120)
        visits = rng.poisson(np.exp(3 + 0.3 * x) * rng.gamma(2.0, size=120) / 2)
        return write("spread.csv", "x,visits\n" + "\n".join(f"{a:.3f},{b}" for a, b in zip(x, visits, strict=True)))

    def test_a_certified_fit_of_a_wrong_model_is_not_to_be_trusted(self, provi, spread):
        words = ("fit", spread, "-t", "visits", "-m", "poisson")
        quiet = provi(*words, "--quiet", "--report", "r.html")
        assert quiet.exit_code == 1
        (line,) = quiet.stdout.splitlines()
        assert line.startswith("Certified approximation of a model that does not fit. Certified: the gap")
        assert "over-dispersion" in line
        assert all(said.startswith("Warning: ") for said in quiet.stderr.splitlines())
        assert "more variance (negative binomial)" in quiet.stderr
        page = Path("r.html").read_text("utf-8")
        assert "verdict caution" in page and "<h1>visits ~ 1 + x</h1>" in page and "(x " in page
        assert "In the units of the table" in page and "rate ratio" in page
        document = json.loads(provi(*words, "--json").stdout)
        assert document["verdict"] == "does not fit" and document["status"] == "proven"
        assert not document["check"]["ok"] and document["warnings"] and document["check"]["p_loo"] > 10
        plain = provi(*words, "--no-check")
        assert plain.exit_code == 0 and "does not fit" not in plain.stdout and "Certified: the gap" in plain.stdout


class TestMissing:
    """Tables with missing entries."""

    @pytest.fixture
    def incomplete(self, write, patients):
        pytest.importorskip("sklearn")
        age, died = [f"{x:.2f}" for x in patients["age"]], list(patients["died"])
        age[::7], died[3] = ["NA"] * len(age[::7]), "?"
        rows = zip(age, patients["dose"], died, strict=True)
        return write("m.csv", "age,dose,died\n" + "\n".join(f"{a},{d},{y}" for a, d, y in rows))

    def test_they_are_integrated_out(self, provi, incomplete, patients):
        words = ("fit", incomplete, "-t", "died", "-m", "missing-logistic", "--json", "--report", "m.html")
        result = provi(*words)
        assert result.exit_code == 0, result.stderr  # converged; what it lacks is a certificate
        document = json.loads(result.stdout)
        assert document["verdict"] == "converged" and "estimated" in document["sentence"]
        page = check_self_contained(Path("m.html").read_text("utf-8"))
        check_structure(page)
        check_pictures(page, 2)
        for text in ("died ~ 1 + age + dose", "missing at random", "provi fit m.csv", "age 9"):
            assert text in page.text(), text
        X = np.stack([patients["age"], patients["dose"]], axis=1)
        X[::7, 0] = np.nan
        kept = np.arange(60) != 3
        model = library.models.MissingLogisticRegression().fit(X[kept], patients["died"][kept])
        # In units of the standard deviations: the coefficients by hand are in the units of the columns.
        by_hand = model.coef_[0] * np.nanstd(X[kept], axis=0)
        np.testing.assert_allclose([row["coefficient"] for row in document["coefficients"]][1:], by_hand, rtol=1e-6)
        assert document["data"]["missing_entries"] == {"age": 9}
        assert document["data"]["rows_left_out"] == {"without an entry in 'died'": 1}

    def test_other_models_refuse_them_with_a_hint(self, provi, incomplete):
        result = provi("fit", incomplete, "-t", "died", "-m", "logistic")
        assert result.exit_code == 2 and not result.stdout
        assert "9 of 59 rows: 'age' 9" in result.stderr and "--model missing-logistic" in result.stderr

    def test_or_leave_these_rows_out(self, incomplete, patients):
        data = read_data(incomplete, TableOptions("died", Model.LOGISTIC, complete_rows=True))
        kept = (np.arange(60) != 3) & (np.arange(60) % 7 != 0)
        dose = patients["dose"][kept]
        np.testing.assert_allclose(data.features.values[:, 1], (dose - dose.mean()) / dose.std(), rtol=1e-12)
        assert data.response.values.tolist() == (patients["died"][kept] == "yes").tolist()
        assert "Rows left out, with missing entries: 9." in data.description()


def test_a_student_t_regression_takes_numbers_only(provi, patients_csv):
    result = provi("fit", patients_csv, "-t", "ward", "-m", "student-t", "--columns", "age")
    assert result.exit_code == 2 and "ward" in result.stderr
    result = provi("fit", patients_csv, "-t", "score", "-m", "student-t", "--exposure", "dose")
    assert result.exit_code == 2 and "--exposure is for" in result.stderr
