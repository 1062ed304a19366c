"""Theorem 8 with distances from a certificate: they contain the true ones, and no bound is below a measured gap."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import solve_triangular

from provi.algorithms import ProxSGD
from provi.certify import certify
from provi.core.arguments import double_precision
from provi.diagnostics.exact import exact_negative_elbo
from provi.diagnostics.optimum import linear_model_optimum
from provi.families.location_scale import Gaussian
from provi_lab.papers.prox_proj import certified
from provi_lab.papers.prox_proj.rates import spread_spectrum, well_conditioned

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.fixture(scope="module")
def rows():
    return certified.measure("toy", well_conditioned(0).target, (50, 800), 4, 0)


@pytest.mark.parametrize("whitened", [False, True])
@double_precision
def test_distances_contain_the_true_ones(whitened):
    """From members that are far from best: by certificates of their own, and by their true gaps, the least allowed."""
    target, rng = spread_spectrum(0).target, np.random.default_rng(0)
    family = Gaussian(target.dim, "triangular")
    best = linear_model_optimum(target, family)
    own = certified.Coordinates.of(target, whitened)
    truth = own.moved(best.point.loc, best.point.scale.apply(jnp.eye(target.dim)).T)
    mode = solve_triangular(own.factor, np.asarray(best.mode) - own.shift, lower=True)
    slope = np.linalg.norm(jax.grad(own.target.potential)(jnp.zeros(target.dim)))
    assert 0 < np.linalg.norm(mode) <= slope / own.strong_convexity  # the origin is the mode up to its gradient
    start = ProxSGD.from_theorem(target, family, budget=100, whiten=whitened).guarantee.start
    begin = start.loc, start.scale.apply(jnp.eye(target.dim)).T
    true = np.sum((own.moved(*begin) - truth) ** 2), np.sum((truth - np.append(mode, np.zeros(target.dim**2))) ** 2)
    root = np.asarray(best.point.scale.apply(jnp.eye(target.dim))).T
    nearer = 0
    for size in (0.0, 0.01, 0.1, 0.5):
        for sign in (-1.0, 1.0):
            mean = np.asarray(best.point.loc) + sign * size * root @ rng.normal(size=target.dim)
            scale = root * (1 + sign * size / 2)
            member = family.point(mean, 1.0)
            gap = certify(target, (mean, scale @ scale.T), compare=False).gap
            at = type(member)(member.loc, type(member.scale)(jnp.asarray(scale)))
            least = float(exact_negative_elbo(target, family, at)) - best.negative_elbo
            assert gap >= least - 1e-9
            for allowed in (gap, max(least, 0) + 1e-9):
                found = certified.certified_distances(own, mean, scale @ scale.T, allowed, *begin)
                assert found.initial >= true[0] and found.reference >= true[1]
            bare = certified.certified_distances(own, mean, scale @ scale.T, 0.0, *begin)
            nearer += bare.initial < true[0] or bare.reference < true[1]
    assert nearer  # without what the gap allows some would be wrong


def test_no_bound_is_below_the_measured_gap(rows):
    for row in rows:
        assert row["largest_gap"] >= row["gap"] > 0
        assert row["bound"] >= row["certified_bound"] >= row["largest_gap"]
    white = [row for row in rows if row["coordinates"] == certified.WHITENED]
    given = [row for row in rows if row["coordinates"] == certified.PLAIN]
    assert all(a["certified_bound"] < b["certified_bound"] for a, b in zip(white, given, strict=True))
    assert rows[0]["certificate"] <= certified.TOLERANCE


def test_verdicts_and_tables_follow_from_the_rows(rows):
    text = [{name: str(value) for name, value in row.items()} for row in rows]
    assert certified.read_rows_of(text) == rows
    holds, useful = certified.claims(rows)
    assert holds.verdict == "holds"
    assert useful.verdict == ("holds" if rows[-1]["certified_bound"] < 1 else "does not hold")
    below = [{**row, "certified_bound": row["gap"] / 2} for row in rows]
    assert certified.claims(below)[0].verdict == "does not hold"
