"""The models of `provi reproduce front-ends`: one density in all languages, in the same coordinates and names."""

import jax
import numpy as np
import pytest

from provi_lab.papers.front_ends.figure import NUMPYRO, PYMC, target_of
from provi_lab.papers.front_ends.models import POISSON, STAN, problems

PROBLEMS = problems(0)
CASES = [(problem, PYMC) for problem in PROBLEMS] + [(next(p for p in PROBLEMS if p.name == POISSON), STAN)]


@pytest.mark.parametrize(("problem", "front_end"), CASES, ids=lambda value: getattr(value, "name", value))
def test_the_same_posterior_as_numpyros(problem, front_end, quick_compilation):
    """Log densities differ by a constant; Stan's programs of the other two problems are left to the experiment."""
    ours, theirs = target_of(problem, front_end), target_of(problem, NUMPYRO)
    points = 0.5 * np.random.default_rng(1).normal(size=(20, theirs.dim))
    difference = np.asarray(jax.vmap(ours.potential)(points)) - np.asarray(jax.vmap(theirs.potential)(points))
    np.testing.assert_allclose(difference, difference[0], atol=1e-9)
    assert ours.constrained_names == theirs.constrained_names
    for name, value in theirs.constrain(points).items():
        np.testing.assert_allclose(ours.constrain(points)[name], value, rtol=1e-10, atol=1e-12)
    assert (theirs.linear_model() is not None) == (problem.name == POISSON)
    assert front_end == STAN or (ours.linear_model() is not None) == (problem.name == POISSON)
