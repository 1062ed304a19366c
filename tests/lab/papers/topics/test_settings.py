"""The paper's own settings for Figure 3 of 002: a run that was cut off goes on with the fits that are not there yet."""

import dataclasses

import numpy as np
import pytest

from provi_lab.common.curves import all_rows
from provi_lab.papers.topics import settings
from provi_lab.papers.topics.measure import LAPLACE, NATS, synthetic_problem


@pytest.mark.parametrize("method", [settings.PAPERS, LAPLACE])
def test_fits_are_kept_and_not_made_again(tmp_path, monkeypatch, capsys, method):
    problem = dataclasses.replace(synthetic_problem(0, documents=40), num_topics=2)
    first = settings.Fits(tmp_path, (1, 2)).of(problem, method, [0])
    assert capsys.readouterr().out.count("nats a word") == 1
    made, fit = [], settings._fit
    monkeypatch.setattr(settings, "_fit", lambda *given: (made.append(given[2]), fit(*given))[1])
    again = settings.Fits(tmp_path, (1, 2))
    both = again.of(problem, method, [0, 1])
    assert set(made) == {1} and again.earlier == first[0].more["wall"] > 0
    assert all_rows(both[:1]) == all_rows(first) and both[1][NATS][-1] != first[0][NATS][-1]
    np.testing.assert_array_equal(both[0].more["own"], first[0].more["own"])
    # Another number of passes is another fit.
    settings.Fits(tmp_path, (1,)).of(problem, method, [0])
    assert 0 in made
