"""`provi fit TABLE`: the same as `provi.fit` on arrays that were encoded by hand."""

import io
import json

import numpy as np
import pytest
from rich.console import Console

import provi as library
from provi.cli.answer import print_plain
from provi.cli.table_data import Model, TableOptions, read_data
from provi.models.gp.hyperparameters import learn_hyperparameters
from provi.targets.likelihoods import GaussianNoise

RESPONSES = "died,visits,score"


def check_same(document, fit):
    """The JSON of the command agrees with a `Fit` to rounding."""
    parameters = document["parameters"]
    assert [row["name"] for row in parameters] == list(fit.posterior.names)
    np.testing.assert_allclose([row["mean"] for row in parameters], fit.posterior.mean, rtol=1e-12)
    np.testing.assert_allclose([row["sd"] for row in parameters], fit.posterior.standard_deviation, rtol=1e-12)
    assert document["elbo"]["value"] == pytest.approx(fit.elbo.value, rel=1e-12)
    assert document["gap"] == pytest.approx(fit.certificate.gap, rel=1e-9)


@pytest.mark.parametrize(
    ("model", "response", "target", "intercept"),
    [
        ("logistic", "died", library.targets.LogisticRegression, 2.5),
        ("poisson", "visits", library.targets.PoissonRegression, 10.0),
    ],
)
def test_regressions_equal_those_on_arrays(provi, patients_csv, patients, design, model, response, target, intercept):
    drop = [word for name in RESPONSES.split(",") if name != response for word in ("--drop", name)]
    result = provi("fit", patients_csv, "--target", response, "--model", model, *drop, "--json")
    assert result.exit_code == 0, result.stderr
    X, names = design
    y = patients[response] == "yes" if response == "died" else patients[response]
    by_hand = target(X, y, [intercept, 1, 1, 1, 1], intercept=True, names=names)
    check_same(json.loads(result.stdout), library.fit(by_hand))


def test_prior_and_units_can_be_chosen(provi, patients_csv, patients, design):
    words = "fit patients.csv -t died -m logistic --columns age,ward --columns dose --no-standardise --positive no"
    result = provi(*words.split(), "--prior-scale", "0.3", "--tol", "0.1", "--seed", "3", "--json")
    X, names = design
    X = np.stack([patients["age"], X[:, 1], X[:, 2], patients["dose"]], axis=1)
    y, scales = patients["died"] == "no", [2.5, 0.3, 0.3, 0.3, 0.3]
    by_hand = library.targets.LogisticRegression(X, y, scales, intercept=True, names=names)
    check_same(json.loads(result.stdout), library.fit(by_hand, tol=0.1, seed=3))


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
        "prior N(0, 1^2) on coefficients, N(0, 2.5^2) on the intercept",
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
        result = provi("fit", incomplete, "-t", "died", "-m", "missing-logistic", "--json")
        assert result.exit_code == 1, result.stderr  # it has no certificate
        document = json.loads(result.stdout)
        assert document["converged"] and "estimated" in document["sentence"]
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
