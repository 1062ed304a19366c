"""The benchmark of logistic regression with missing covariates: its own likelihood and maximum, rows and tables."""

import json

import numpy as np
import pytest
from scipy.optimize import approx_fprime
from scipy.stats import multivariate_normal
from typer.testing import CliRunner

from provi_lab.bench import record as records
from provi_lab.bench.command import app
from provi_lab.bench.methods import Method
from provi_lab.bench.missing import (
    MISSING_METHODS,
    MISSING_PROBLEMS,
    NUM_SEEDS,
    measure_missing,
    missing_cells,
    missing_verdicts,
)
from provi_lab.bench.missing_oracle import (
    MissingOracle,
    Parameters,
    _negative_log_likelihood,
    _pack,
    em_step,
    moments,
    start,
)
from provi_lab.bench.peers import numpy as numpy_peer
from provi_lab.bench.peers import provi as provi_peer
from provi_lab.bench.peers import sklearn as sklearn_peer
from provi_lab.bench.problems import MissingProblem, load_problem
from provi_lab.bench.protocol import Recorder
from provi_lab.common.tables import markdown_cells
from provi_lab.data.missing_tables import synthetic_missing


def tiny(terms=60, columns=3, share=0.3, seed=0):
    table = synthetic_missing(seed, terms, columns, share)
    return MissingProblem("tiny", table.features * [2.0, 1.0, 30.0][:columns] + 5.0, table.response, seed)


def brute_force(row, label, parameters):
    """log p(y, x_obs) by a sum over a grid of the missing entries, and E z and E zz' given both."""
    missing = np.isnan(row)
    spread = np.sqrt(np.diagonal(parameters.covariance))[missing]
    sides = [m + s * np.linspace(-8, 8, 81) for m, s in zip(parameters.mean[missing], spread, strict=True)]
    grid = np.stack(np.meshgrid(*sides, indexing="ij"), axis=-1).reshape(-1, missing.sum())
    full = np.tile(row, (len(grid), 1))
    full[:, missing] = grid
    eta = (2 * label - 1) * (parameters.coefficients[0] + full @ parameters.coefficients[1:])
    density = multivariate_normal(parameters.mean, parameters.covariance).pdf(full) / (1 + np.exp(-eta))
    weights = density * np.prod(16 * spread / 80)
    total = weights.sum()
    return np.log(total), weights @ full / total, (full * weights[:, None]).T @ full / total


@pytest.mark.parametrize("missing", [[1], [0, 2], [0, 1, 2]])
@pytest.mark.parametrize("label", [0.0, 1.0])
def test_moments_are_those_of_a_grid_over_the_missing_entries(missing, label):
    rng = np.random.default_rng(1)
    root = rng.normal(size=(3, 3))
    parameters = Parameters(rng.normal(size=4), rng.normal(size=3), root @ root.T + np.eye(3))
    row = rng.normal(size=3)
    row[missing] = np.nan
    found = moments(row[None], np.array([label]), parameters)
    value, first, second = brute_force(row, label, parameters)
    assert found.log_likelihood == pytest.approx(value, abs=1e-9)
    np.testing.assert_allclose(found.first, first, atol=1e-8)
    np.testing.assert_allclose(found.second, second, atol=1e-7)


def test_gradient_is_that_of_finite_differences():
    problem = tiny()
    features = (problem.features - np.nanmean(problem.features, axis=0)) / np.nanstd(problem.features, axis=0)
    vector = _pack(start(features, problem.response))
    vector = vector + 0.2 * np.random.default_rng(2).normal(size=len(vector))
    _, gradient = _negative_log_likelihood(vector, features, problem.response)

    def value(vector):
        return _negative_log_likelihood(vector, features, problem.response)[0]

    np.testing.assert_allclose(gradient, approx_fprime(vector, value, 1e-7), atol=2e-4)


def test_maximum_of_complete_data_is_sample_moments_and_ordinary_logistic_regression():
    problem = tiny(share=0.0)
    oracle, record = MissingOracle.of(problem), Recorder(10.0)
    sklearn_peer.mean_imputation(problem, 1e-10, record)  # nothing to impute
    _, _, mean, covariance, _ = record.snapshots[0]
    assert abs(oracle.gap(mean, covariance)) < 1e-8 and 0 <= oracle.remainder < 1e-10
    assert oracle.gap(mean, 1.1 * covariance) > 0.1 and oracle.gap(mean + 0.1, covariance) > 0.1


def test_em_climbs_to_the_maximum_and_the_peer_stops_within_its_tolerance():
    problem = tiny(terms=300)
    oracle, parameters, gaps = MissingOracle.of(problem), start(problem.features, problem.response), []
    for _ in range(40):
        gaps.append(oracle.gap(np.concatenate([parameters.coefficients, parameters.mean]), parameters.covariance))
        parameters = em_step(parameters, moments(problem.features, problem.response, parameters), 300)
    assert (np.diff(gaps) < 1e-9).all() and abs(gaps[-1]) < 1e-6
    record = Recorder(10.0)
    facts = numpy_peer.missing_em(problem, 0.01, record)
    _, _, mean, covariance, steps = record.snapshots[0]
    assert -1e-9 < oracle.gap(mean, covariance) <= 0.01 and steps == facts["passes"] < 40


def test_what_is_no_answer_has_an_infinite_gap():
    oracle = MissingOracle.of(tiny())
    mean, covariance = np.zeros(7), np.eye(3)
    assert oracle.gap(np.full(7, np.nan), covariance) == np.inf
    assert oracle.gap(mean, -covariance) == np.inf and oracle.gap(mean, covariance) < np.inf


def test_problems_survive_their_files_and_differ_in_their_seeds(tmp_path):
    for key in ("10%", "30%"):
        made = MISSING_PROBLEMS[key]()
        assert len(made) == NUM_SEEDS >= 3 and len({problem.name for problem in made}) == 1
        made[1].save(tmp_path / "p.npz")
        read = load_problem(tmp_path / "p.npz")
        assert (read.name, read.seed) == (made[1].name, 1)
        np.testing.assert_array_equal(read.features, made[1].features)
        np.testing.assert_array_equal(read.response, made[1].response)
        assert not np.array_equal(made[0].response, made[1].response)
        assert np.isnan(read.features).mean() == pytest.approx(float(key[:-1]) / 100, abs=0.02)


def test_programs_make_rows():
    absent = Method("absent", "nothing", ("no_such_package",), "no-such-package", (1.0,), "x")
    broken = Method("broken", "no.such.module", (), "", (1.0,), "x")
    rows = measure_missing([tiny()], [MISSING_METHODS["numpy"], absent, broken], 1.0)
    assert [row["status"] for row in rows] == ["ran", "not installed", "failed"]
    assert 0 <= rows[0]["gap"] <= 0.01 and rows[0]["cpu"] > 0 and rows[0]["passes"] > 2
    text = markdown_cells(missing_cells(rows))
    assert "pip install no-such-package" in text and "ModuleNotFoundError" in text


def row(method, cpu, gap, seed):
    times = dict(cpu=cpu, cpu_compiling=cpu + 2, wall=cpu, wall_compiling=cpu + 2)
    names = dict(problem="p", seed=seed, method=MISSING_METHODS[method].name, status="ran", note="", setting="s")
    return {**names, **times, "gap": gap, "passes": None, "facts": {"versions": {method: "1.2"}}}


def test_verdicts_and_page(tmp_path):
    rows = [row("exact", cpu, 1e-4, seed) for seed, cpu in enumerate((0.1, 0.2, 5.0))]
    rows += [row("misso10", 0.3, gap, seed) for seed, gap in enumerate((0.001, 0.02, 0.001))]
    rows += [row("misaem", 2.1, 0.08, 0), row("misaem-errors", 6.0, None, 0)]
    exact, misso = missing_verdicts(rows)
    assert exact.startswith("ProVI, exact: gap of at most 0.01 nats: yes (0.0001 at worst); at least 10 times")
    assert "as fast as misaem: yes (10.5)" in exact and "with standard errors: yes (30)" in exact
    assert "nats: no (0.02 at worst)" in misso and "as misaem: no (7)" in misso
    path, page = records.write_record(tmp_path, records.make_record("missing", rows))
    text = page.read_text(encoding="utf-8")
    assert "## Logistic regression with missing covariates" in text and "misaem 1.2" in text
    assert "| ProVI, exact | 3 | 0.2 (2.2) | 0.2 (2.2) | 0.0001 | 0.0001 |  | 10.5 |" in text
    assert json.loads(path.read_text())["kind"] == "missing"
    assert missing_verdicts(rows[:3]) == ["ProVI, exact: gap of at most 0.01 nats: yes (0.0001 at worst)."]


def test_command_runs_one_method(monkeypatch):
    monkeypatch.setitem(MISSING_PROBLEMS, "10%", lambda: [tiny(), tiny(seed=1)])
    ended = CliRunner().invoke(app, ["missing", "--quick", "--methods", "numpy"])
    assert ended.exit_code == 0 and "NumPy EM" in ended.output and "seed 1" not in ended.output
    wrong = CliRunner().invoke(app, ["missing", "--methods", "nothing"])
    assert wrong.exit_code == 2 and "there is no 'nothing'" in wrong.output


def test_our_program_hands_back_an_answer_within_its_tolerance():
    problem, record = tiny(), Recorder(10.0)
    facts = provi_peer.missing(problem, 0.01, record)
    _, _, mean, covariance, passes = record.snapshots[0]
    assert -1e-9 < MissingOracle.of(problem).gap(mean, covariance) <= 0.01 and facts["converged"]
    assert passes == facts["passes"] > 0 and len(facts["standard_errors"]) == 4 and json.dumps(facts)
