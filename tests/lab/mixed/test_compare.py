"""What the comparison of nested fits with NUTS calls a fault, on fits that are the reference itself, or worse."""

import dataclasses
import types

import numpy as np
import pytest

from provi_lab.mixed.compare import cells, faults, judge, judge_effects, summary
from provi_lab.mixed.problems import eight_schools
from provi_lab.mixed.references import load


@dataclasses.dataclass
class Marginal:
    mean: float
    sd: float
    quantiles: dict

    def quantile(self, p):
        return self.quantiles[p]


def _posterior(reference, problem, shift=0.0, stretch=1.0):
    """A fit with the numbers of the reference, but for `shift` sds and `stretch` in each scalar."""

    def marginal(name):
        truth = reference["quantities"][name]
        move = shift * truth["sd"]
        found = {p: truth[f"q{round(100 * p)}"] + move for p in (0.05, 0.5, 0.95)}
        return Marginal(truth["mean"] + move, stretch * truth["sd"], found)

    effects = {
        block: types.SimpleNamespace(mean=np.asarray(x["mean"]), sd=np.asarray(x["sd"]))
        for block, x in reference["effects"].items()
    }
    named = [{name: marginal(name) for name in names} for names in (problem.fixed, problem.hyperparameters)]
    return types.SimpleNamespace(fixed=named[0], hyperparameters=named[1], effects=effects)


@pytest.fixture(scope="module")
def reference():
    return load()["eight schools"]


def test_the_reference_itself_has_no_fault(reference):
    problem = eight_schools()
    posterior = _posterior(reference, problem)
    rows = judge(problem, reference, posterior)
    assert len(rows) == 5 and faults(rows) == []
    blocks = judge_effects(problem, reference, posterior)
    assert [(row["block"], row["effects"], row["largest_mean_error"]) for row in blocks] == [("school", 8, 0.0)]
    names, lines = cells(rows)
    assert {len(line) for line in lines} == {len(names)}


def test_shifted_and_narrow_fits_have_theirs(reference):
    problem = eight_schools()
    found = faults(judge(problem, reference, _posterior(reference, problem, shift=0.2, stretch=0.59)))
    assert any(fault.startswith("mean of Intercept +0.200 sd") for fault in found)
    assert any(fault.startswith("sd of sd(school) x 0.590") for fault in found)
    assert any(fault.startswith("q50 of sd(school)") for fault in found)


def test_a_missing_name_says_which_there_are(reference):
    problem = eight_schools()
    posterior = _posterior(reference, problem)
    posterior.hyperparameters["sd(pupil)"] = posterior.hyperparameters.pop("sd(school)")
    with pytest.raises(KeyError, match=r"no 'sd\(school\)'; it has sd\(pupil\)"):
        judge(problem, reference, posterior)


def test_a_problem_that_fails_keeps_its_line():
    names, lines = summary([{"problem": "radon", "error": "ValueError: no"}])
    assert len(lines[0]) == len(names) and lines[0][1] == "ValueError: no"
