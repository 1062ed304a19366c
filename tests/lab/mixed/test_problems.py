"""The problems of mixed models: their data, their programs' names, and the sampler that makes references of them."""

import numpy as np
import pytest

from provi_lab.mixed import tables
from provi_lab.mixed.problems import PROBLEMS, Problem, graph_root, grouped_logistic
from provi_lab.mixed.references import Sampler, describe, load, run_until, scalars


def test_typed_tables_have_their_published_totals():
    edges = tables.lip_edges()
    assert len(edges) == 132 and len(np.unique(np.sort(edges, axis=1), axis=0)) == 132
    assert (np.bincount(edges.ravel()).min(), np.bincount(edges.ravel()).argmax()) == (1, 28)
    assert sum(tables.LIPS["observed"]) == 536 and sum(tables.LIPS["expected"]) == pytest.approx(536.2)
    assert (len(tables.COAL), sum(tables.COAL)) == (111, 191)
    assert {len(column) for column in tables.KIDNEY.values()} == {76}
    assert (sum(tables.KIDNEY["days"]), sum(tables.KIDNEY["infected"])) == (7724, 58)


def test_a_graph_root_sums_to_zero_and_has_unit_variances():
    root = graph_root(tables.lip_edges(), 56)
    assert np.abs(root.sum(axis=0)).max() < 1e-12
    assert np.exp(np.log((root**2).sum(axis=1)).mean()) == pytest.approx(1.0)
    with pytest.raises(ValueError, match="not connected"):
        graph_root(np.asarray([[0, 1], [2, 3]]), 4)


@pytest.fixture(params=PROBLEMS)
def problem(request) -> Problem:
    return PROBLEMS[request.param]()


def test_the_program_has_the_sites_that_are_reported(problem):
    from numpyro import handlers

    sites = handlers.trace(handlers.seed(problem.model, 0)).get_trace()
    for name in (*problem.fixed, *problem.hyperparameters):
        assert np.shape(sites[name]["value"]) == ()
    for block, spots in problem.blocks.items():
        value = np.asarray(sites[block]["value"])
        assert all(np.ndim(value[spot]) == 0 for spot in spots)


def test_there_is_a_reference_of_each(problem):
    kept = load()[problem.name]
    names = {*problem.fixed, *problem.hyperparameters}
    assert names < set(kept["quantities"]) and set(problem.blocks) == set(kept["effects"])
    for quantity in kept["quantities"].values():
        assert quantity["rhat"] < 1.01 and quantity["mcse_mean"] < 0.03 * quantity["sd"]


@pytest.mark.slow
def test_short_chains_find_the_reference():
    problem = grouped_logistic()
    found, ess = run_until(problem, Sampler(problem), 5, 400.0)
    assert ess >= 400 and found.seconds > 0
    kept = load()["logistic"]["quantities"]
    for name, x in scalars(problem, found.draws()).items():
        error = np.hypot(describe(x)["mcse_mean"], kept[name]["mcse_mean"])
        # Five estimated standard errors, six quantities: about one false alarm in 10^5, and the key is fixed.
        assert abs(x.mean() - kept[name]["mean"]) < 5 * error, name
