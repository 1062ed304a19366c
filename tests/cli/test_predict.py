"""`provi predict`: saved fits and new tables, against the model in Python with features made by hand."""

import csv
import json

import numpy as np
import pytest
from scipy import special
from typer.testing import CliRunner

import provi as library
from provi.cli import app


@pytest.fixture(scope="module")
def folder(tmp_path_factory, patients):
    """A folder with the patients, three fits of them, and a new table whose columns are in another order."""
    place = tmp_path_factory.mktemp("predict")

    def write(name, columns):
        with (place / name).open("w", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream)
            writer.writerow(columns)
            writer.writerows(zip(*columns.values(), strict=True))

    write("patients.csv", patients)
    write(
        "new.csv",
        {
            "dose": [1.0, 5, "", 9],
            "note": ["a", "b", "c", "d"],
            "ward": ["south", "east", "east", "north"],
            "age": [40, 50, 60, 70],
        },
    )
    for model, response in (("logistic", "died"), ("poisson", "visits"), ("gp", "score")):
        drop = ",".join(name for name in ("visits", "score", "died") if name != response)
        words = [
            "fit",
            place / "patients.csv",
            "-t",
            response,
            "-m",
            model,
            "--drop",
            drop,
            "--save",
            place / f"{model}.fit",
        ]
        result = CliRunner().invoke(app, [str(word) for word in (*words, "--json")])
        assert result.exit_code == 0, result.stderr
    return place


@pytest.fixture
def predicted(folder):
    """`predicted(model, ...)` runs the command on the new table."""

    def run(model, *words):
        words = ["predict", folder / f"{model}.fit", folder / "new.csv", *words]
        return CliRunner().invoke(app, [str(word) for word in words])

    return run


def features(patients, rows):
    """Age, ward against 'east', dose: in the order of the fit, from their own means and deviations."""
    ward = np.array(["south", "east", "east", "north"])[rows]
    age, dose = np.array([40.0, 50, 60, 70])[rows], np.array([1.0, 5, 0, 9])[rows]

    def standard(new, name):
        return (new - patients[name].mean()) / patients[name].std()

    return np.column_stack([standard(age, "age"), ward == "north", ward == "south", standard(dose, "dose")]).astype(
        float
    )


def test_probabilities_of_a_label(predicted, folder, patients, tmp_path):
    out = tmp_path / "out.csv"
    result = predicted("logistic", "--output", out, "--interval", "0.8")
    assert result.exit_code == 0, result.stderr
    assert "Probability that 'died' is 'yes', with central 80% intervals" in result.stdout
    assert "No predictions for 1 of 4 rows" in result.stdout and f"Wrote {out}." in result.stdout
    with out.open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["row"] for row in rows] == ["1", "2", "3", "4"]
    assert list(rows[0]) == ["row", "probability", "sd", "lower", "upper", "label"]
    assert set(rows[2].values()) == {"3", ""}  # a missing dose
    fit = library.load(folder / "logistic.fit")
    X = np.concatenate([np.ones((3, 1)), features(patients, [0, 1, 3])], axis=1)
    eta, sd = X @ fit.posterior.mean, np.sqrt(np.einsum("ni,ij,nj->n", X, fit.posterior.covariance, X))
    kept = [rows[place] for place in (0, 1, 3)]
    np.testing.assert_allclose([float(row["upper"]) for row in kept], special.expit(eta + special.ndtri(0.9) * sd))
    np.testing.assert_allclose([float(row["lower"]) for row in kept], special.expit(eta - special.ndtri(0.9) * sd))
    assert [row["label"] for row in kept] == ["yes" if float(row["probability"]) > 0.5 else "no" for row in kept]


def test_counts_and_measurements(predicted, folder, patients):
    """Counts by their closed form; those of a process in the unit of the response, not of its standardised values."""
    found = json.loads(predicted("poisson", "--json").stdout)
    fit = library.load(folder / "poisson.fit")
    X = np.concatenate([np.ones((3, 1)), features(patients, [0, 1, 3])], axis=1)
    variance = np.einsum("ni,ij,nj->n", X, fit.posterior.covariance, X)
    means = [row["mean"] for row in found["predictions"]]
    np.testing.assert_allclose(np.delete(means, 2).astype(float), np.exp(X @ fit.posterior.mean + variance / 2))
    assert means[2] is None and found["rows"] == 4 and found["kind"] == "mean" and found["notes"]
    score = json.loads(predicted("gp", "--json").stdout)["predictions"]
    process = library.load(folder / "gp.fit")
    values = patients["score"]
    kernel, inputs = process.target.kernel, np.asarray(process.target.inputs)
    k = float(kernel.amplitude) ** 2 * np.exp(
        -0.5
        * ((features(patients, [0, 1, 3])[:, None] - inputs[None]) ** 2).sum(axis=2)
        / float(kernel.length_scale) ** 2
    )
    mean = k @ np.asarray(process.posterior.point.dual_mean) * values.std() + values.mean()
    np.testing.assert_allclose([score[place]["mean"] for place in (0, 1, 3)], mean, rtol=1e-6)
    wider = json.loads(predicted("gp", "--json", "--kind", "response").stdout)["predictions"]
    assert wider[0]["upper"] > score[0]["upper"] and wider[0]["lower"] < score[0]["lower"]


def test_a_loaded_fit_predicts_from_frames(folder, patients):
    """In Python: the raw columns of the table, as a frame or a dictionary."""
    pd = pytest.importorskip("pandas")
    fit = library.load(folder / "logistic.fit")
    columns = {name: patients[name][:5] for name in ("ward", "age", "dose", "died")}
    found = fit.predict(pd.DataFrame(columns))
    assert fit.predict(columns).to_dict() == found.to_dict() and found.labels == ("no", "yes")
    np.testing.assert_allclose(found.linear.mean, np.asarray(fit.target.design)[:5] @ fit.posterior.mean)
    assert str(found).startswith("Probability of 'yes'")
    assert fit.description.formula == "died ~ 1 + age + ward + dose"  # for its report
    assert fit.posterior_predictive(columns, num_draws=8)["y"].shape == (8, 5)
    with pytest.raises(ValueError, match="X_new must be a data frame with its columns, 'age', 'ward', 'dose'"):
        fit.predict(np.zeros((2, 4)))


BAD = {
    "no column 'ward', which the fit needs": "age,dose\n1,2\n",
    "'ward' has the level 'west' in row 2, which the fit has not seen: its levels are 'east', 'north', 'south'": (
        "age,dose,ward\n1,2,east\n1,2,west\n"
    ),
    "'age' must hold numbers, as in the fit, not 'old'": "age,dose,ward\nold,2,east\n",
    "is empty": "",
}


@pytest.mark.parametrize("message", BAD)
def test_bad_tables(folder, tmp_path, message):
    (tmp_path / "bad.csv").write_text(BAD[message])
    result = CliRunner().invoke(app, ["predict", str(folder / "logistic.fit"), str(tmp_path / "bad.csv")])
    assert result.exit_code == 2 and message in result.stderr and len(result.stderr.splitlines()) == 1


def test_bad_options(folder, predicted, tmp_path):
    for words, message in (
        (["--output", tmp_path / "out.xlsx"], "must end in .csv, .tsv or .parquet"),
        (["--interval", "2"], "--interval must lie between 0 and 1"),
        (["--output", folder / "new.csv"], "is the file that is read"),
    ):
        result = predicted("logistic", *words)
        assert result.exit_code == 2 and message in result.stderr
    assert "no file" in predicted("nothing").stderr
    (folder / "text.fit").write_text("no fit")
    assert "text.fit is not a fit saved by ProVI" in predicted("text").stderr
    library.load(folder / "logistic.fit").save(folder / "bare.fit", target=False)
    assert "does not hold its target" in predicted("bare").stderr


def test_parquet(predicted, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    assert predicted("poisson", "--output", tmp_path / "out.parquet", "--quiet").stdout == ""
    found = parquet.read_table(tmp_path / "out.parquet").to_pydict()
    assert found["row"] == [1, 2, 3, 4] and found["mean"][2] is None and found["lower"][0] < found["mean"][0]


def test_fits_of_formulas(folder, tmp_path):
    """A mixed model: known and new levels, a row with a missing entry; the same numbers as in Python."""
    pytest.importorskip("formulae")
    words = ["fit", folder / "patients.csv", "--formula", "score ~ age + (1 | ward)", "--family", "gaussian"]
    CliRunner().invoke(app, [str(word) for word in (*words, "--save", folder / "mixed.fit", "--quiet")])
    (tmp_path / "new.csv").write_text("ward,age\nsouth,40\nwest,50\n,60\n")
    result = CliRunner().invoke(app, ["predict", str(folder / "mixed.fit"), str(tmp_path / "new.csv"), "--json"])
    found = json.loads(result.stdout)
    assert [row["row"] for row in found["predictions"]] == [1, 2, 3] and found["predictions"][2]["mean"] is None
    assert any("'west'" in note for note in found["notes"]) and any("1 of 3 rows" in note for note in found["notes"])
    model = library.models.MixedModel.load(folder / "mixed.fit")
    expected = model.predict({"ward": ["south"], "age": [40.0]})
    assert found["predictions"][0]["upper"] == pytest.approx(expected["upper"].iloc[0])


def test_unknown_numbers_exposures_and_classes(tmp_path):
    """Each in the units of the table: against what the data were drawn from, within four deviations of the estimate."""
    rng = np.random.default_rng(3)
    n = 150
    x, days = rng.normal(10, 2, n), rng.uniform(1, 5, n)
    columns = {
        "x": x,
        "days": days,
        "level": 3 + 0.5 * x + 0.2 * rng.normal(size=n),
        "visits": rng.poisson(days * np.exp(0.1 * x - 1)),
        "kind": np.array(["u", "v", "w"])[np.argmax(rng.gumbel(size=(n, 3)) + np.outer(x - 10, [0, 1, -1]), axis=1)],
    }
    with (tmp_path / "data.csv").open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    (tmp_path / "new.csv").write_text("x,days\n8,1\n12,2\n,1\n")

    def rows(model, response, *words):
        call = ["fit", tmp_path / "data.csv", "-m", model, "-t", response, "--columns", "x", *words]
        call += ["--save", tmp_path / "fit", "--tol", "0.5", "--quiet"]
        result = CliRunner().invoke(app, [str(word) for word in call])
        assert result.exit_code in (0, 1), result.stderr
        result = CliRunner().invoke(app, ["predict", str(tmp_path / "fit"), str(tmp_path / "new.csv"), "--json"])
        assert result.exit_code == 0, result.stderr
        return json.loads(result.stdout)["predictions"]

    for row, expected in zip(rows("linear", "level"), [7, 9, None], strict=True):
        assert row["mean"] is expected or abs(row["mean"] - expected) < 4 * row["sd"] < 0.2
    for row, expected in zip(
        rows("poisson", "visits", "--exposure", "days"), np.exp([-0.2, 0.2]) * [1, 2], strict=False
    ):
        assert abs(row["mean"] - expected) < 4 * row["sd"] < 0.8
    low, high, gone = rows("multinomial", "kind", "--budget", "3000")
    assert gone["label"] is None and gone["P(u)"] is None
    truth = np.exp(np.outer([-2, 2], [0, 1, -1]))
    truth /= truth.sum(axis=1, keepdims=True)
    for row, shares in zip((low, high), truth, strict=True):
        np.testing.assert_allclose([row[f"P({label})"] for label in "uvw"], shares, atol=0.15)
        assert row["label"] == "uvw"[shares.argmax()] and row["lower(u)"] < row["P(u)"] < row["upper(u)"]
