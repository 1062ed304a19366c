"""The bench of passes: its peer finds the optimum, its slopes are those of the times; the page is of the records."""

from pathlib import Path

import numpy as np
import pytest

import provi
from provi_lab.bench.passes import hand_written, slope, table
from provi_lab.bench.record import PAGE, make_page


def test_the_page_is_what_the_records_give():
    root = Path(__file__).parents[3]
    assert (root / PAGE).read_text(encoding="utf-8") == make_page(root)


def test_the_peer_in_numpy_finds_the_gaussian_that_the_proof_is_about():
    design, response = table(300, 4)
    fit = provi.fit(provi.targets.LogisticRegression(design, response, prior_scale=1.0), tol=1e-8, progress=False)
    mean, covariance = hand_written(design, response, 30)
    np.testing.assert_allclose(mean, fit.posterior.mean, atol=1e-4)
    np.testing.assert_allclose(covariance, fit.posterior.covariance, atol=1e-4)


def test_slopes_are_those_of_the_times():
    sizes = [(n, 64) for n in (10, 20, 40)] + [(10, 128)]
    rows = [{"rows": n, "columns": d, "passes": 2, "provi_cpu": n**1.25 * d} for n, d in sizes]
    assert slope(rows, "rows", "columns") == (pytest.approx(1.25), 3)
    assert slope(rows, "columns", "rows") is None
