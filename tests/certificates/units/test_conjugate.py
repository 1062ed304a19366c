"""`distance/conjugate.py`: f by hand, its conjugate in closed form, its errors in arithmetic that shows them."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, special

from provi.certificates.distance import conjugate as conj
from provi.certificates.distance.conjugate import DensityProblem, RowProblem
from provi.certificates.linear import bounds as linear
from provi.targets import LogDensity, LogisticRegression
from provi.targets.likelihoods import BernoulliLogit, GaussianNoise, Poisson
from support.formulas import fresh

RNG = np.random.default_rng(2)
DESIGN, ROOT = RNG.normal(size=(4, 3)), RNG.normal(size=(3, 2)) * 0.5
CENTRE, COUNTS, LABELS = RNG.normal(size=4), np.array([0.0, 1.0, 3.0, 2.0]), np.array([0.0, 1.0, 1.0, 0.0])
PRIOR, GRADIENT = np.array([[1.2, 0.3], [0.3, 0.8]]), np.array([0.2, -0.4])


def problem(likelihood=None, **changed):
    held = dict(
        design=DESIGN, root=ROOT, centre=CENTRE, response=COUNTS, likelihood=likelihood or Poisson(),
        prior_curvature=PRIOR, prior_gradient=GRADIENT, curvature_error=0.01, gradient_error=0.02,
        row_error=np.array([0.001, 0.002, 0.003, 0.004]), centre_error=np.array([0.004, 0.001, 0.002, 0.003]),
        largest_weight=math.inf, quadratic=False, multiples=None,
    )  # fmt: skip
    return RowProblem(**{**held, **changed})


def identity_problem(design=None, **changed):
    """Rows of R itself."""
    del design
    return problem(design=None, root=DESIGN @ ROOT, **changed)


EXACT = dict(curvature_error=0.0, gradient_error=0.0, row_error=np.zeros(4), centre_error=np.zeros(4))


def terms(eta, multiples=1.0):
    """Of the Poisson likelihood: values, slopes and weights."""
    return (
        multiples * (np.exp(eta) - COUNTS * eta + special.gammaln(COUNTS + 1)),
        multiples * (np.exp(eta) - COUNTS),
        multiples * np.exp(eta),
    )


@pytest.mark.parametrize("make", [problem, identity_problem])
@pytest.mark.parametrize("multiples", [None, np.array([1.0, 0.0, 2.5, 1.0])])
def test_f_its_slopes_and_its_inverse_hessians(make, multiples):
    held, each = make(multiples=multiples, **EXACT), 1.0 if multiples is None else multiples
    w = RNG.normal(size=(3, 2))
    value, gradient, *_ = (np.asarray(x) for x in fresh(conj.evaluate)(held, w))
    slopes = np.asarray(fresh(lambda p, w: p.slopes(jnp.asarray(w)))(held, w))
    inverses, rows = conj.inverse_hessians(held, w), DESIGN @ ROOT
    for k in range(3):
        here, slope, weight = terms(CENTRE + rows @ w[k], each)
        first, _, _ = terms(CENTRE, each)
        assert value[k] == pytest.approx(np.sum(here - first) + w[k] @ PRIOR @ w[k] / 2 + GRADIENT @ w[k])
        direct = PRIOR @ w[k] + GRADIENT + rows.T @ slope
        assert np.allclose(gradient[k], direct) and np.allclose(slopes[k], direct)
        assert np.allclose(inverses[k] @ (PRIOR + rows.T @ np.diag(weight) @ rows), np.eye(2))
    assert held.dim == 2


@pytest.mark.parametrize("make", [problem, identity_problem])
@pytest.mark.parametrize("largest", [math.inf, 0.7])
def test_errors_of_f_and_of_its_gradient(make, largest, coarse, monkeypatch):
    held, w = make(largest_weight=largest), RNG.normal(size=(2, 2))
    unit = coarse(conj)
    monkeypatch.setattr(conj, "_EPS", 3 * unit)  # that of sums, in float64 whatever w is in
    _, _, value_error, gradient_error = (np.asarray(x) for x in fresh(conj.evaluate)(held, w))
    rows = DESIGN @ ROOT
    norms = np.linalg.norm(rows, axis=1)
    sizes = norms if held.design is None else np.abs(DESIGN) @ np.linalg.norm(ROOT, axis=1)
    for k in range(2):
        values, slopes, weights = terms(CENTRE + rows @ w[k])
        first, _, _ = terms(CENTRE)
        length, prior = np.linalg.norm(w[k]), np.linalg.norm(PRIOR @ w[k])
        products, sums = (4 + 16) * unit, 32 * unit + 4 * 3 * unit
        along = held.row_error + 32 * unit * norms
        always = held.centre_error + 32 * unit * np.abs(CENTRE)
        expected = sums * (
            np.abs(values).sum() + np.abs(first).sum() + length * prior + length * np.linalg.norm(GRADIENT)
        )
        expected += 0.02 * length + 0.5 * 0.01 * length**2
        expected += 2 * (length * np.abs(slopes) @ along + np.abs(slopes) @ always)
        assert value_error[k] == pytest.approx(expected, rel=1e-10)
        bent = largest * np.ones(4) if math.isfinite(largest) else weights
        expected = length * bent @ (norms * along) + bent @ (norms * always)
        expected += np.abs(slopes) @ (products * sizes + held.row_error)
        expected += products * (prior + np.linalg.norm(GRADIENT) + length) + 0.02 + 0.01 * length
        assert gradient_error[k] == pytest.approx(expected, rel=1e-10)


def test_sums_over_rows_that_cancel_in_the_coordinates_of_w():
    """Columns nearly the same: sums over rows are large, their combinations are not. Oracle: a sum without rounding."""
    size, rng = 20_000, np.random.default_rng(5)
    design = np.stack([np.full(size, 1e6), 1e6 + rng.normal(size=size)], axis=1)
    root = np.array([[1.0], [-1.0]])
    held = problem(
        BernoulliLogit(), design=design, root=root, centre=np.zeros(size), response=np.ones(size), largest_weight=0.25,
        prior_curvature=np.eye(1), prior_gradient=np.zeros(1), curvature_error=0.0, gradient_error=0.0,
        row_error=np.zeros(size), centre_error=np.zeros(size),
    )  # fmt: skip
    _, gradient, _, error = (np.asarray(x) for x in fresh(conj.evaluate)(held, np.zeros((1, 1))))
    exact = math.fsum(-0.5 * (row[0] - row[1]) for row in design)  # the differences are exact
    assert abs(gradient[0, 0] - exact) <= error[0]


@pytest.mark.parametrize("make", [problem, identity_problem])
def test_other_coordinates(make, coarse):
    held, matrix = make(multiples=np.array([1.0, 2.0, 0.0, 1.0])), np.array([[1.5, 0.2], [-0.3, 0.6]])
    unit = coarse(conj, linear)
    moved = held.transformed(matrix)
    size, rounding = np.linalg.svd(matrix)[1][0], 8 * unit
    assert np.allclose(moved.prior_curvature, matrix.T @ PRIOR @ matrix) and np.allclose(
        moved.prior_gradient, matrix.T @ GRADIENT
    )
    assert moved.curvature_error == pytest.approx(size**2 * (0.01 + rounding * np.sqrt(np.sum(PRIOR**2))))
    assert moved.gradient_error == pytest.approx(size * (0.02 + rounding * np.sqrt(np.sum(GRADIENT**2))))
    roots = np.linalg.norm(held.root, axis=1)
    sizes = roots if held.design is None else np.abs(DESIGN) @ roots
    assert np.allclose(moved.row_error, size * (held.row_error + rounding * sizes))
    assert np.allclose(moved.root, held.root @ matrix) and moved.multiples is held.multiples
    assert (moved.quadratic, moved.largest_weight) == (held.quadratic, held.largest_weight)
    assert np.array_equal(moved.prior_curvature, moved.prior_curvature.T)
    below = PRIOR - (0.01 + 32 * unit * 2.0) * np.eye(2)
    assert np.allclose(held.curvature(), below)
    table = jnp.asarray(DESIGN)  # where the design lies on a device
    there = make(design=None if held.design is None else table).transformed(matrix)
    assert np.allclose(there.row_error, moved.row_error)


def test_chunks_keep_to_the_cache():
    for count, chunk in (
        (100, 512),
        (4096, 32),
        (4097, 512),
        (2**17, 32),
        (2**22, 8),
        (1000, 128),
        (255, 512),
        (257, 256),
    ):
        held = problem(centre=np.zeros(count))
        assert held.chunk == chunk
    regression = LogisticRegression(np.zeros((2**14, 2)) + np.arange(2.0), np.arange(2**14) % 2)
    assert DensityProblem(regression, np.zeros(2), np.eye(2), np.eye(2)).chunk == 256
    plain = LogDensity(lambda z: -jnp.sum(z**2), 2)
    assert DensityProblem(plain, np.zeros(2), np.eye(2), np.eye(2)).chunk == 512
    assert DensityProblem(plain, np.zeros(2**18), np.eye(2**9), np.eye(2)).chunk == 512


def test_the_conjugate_of_a_quadratic_is_one():
    """f*(u) = (u - g)'S^-1(u - g) / 2 - f(0), S and g the Hessian and slope of f at zero."""
    noise = GaussianNoise(0.5)
    held = problem(noise, **EXACT, quadratic=True)
    rows = DESIGN @ ROOT
    hessian = PRIOR + rows.T @ rows / 0.25
    slope = GRADIENT + rows.T @ (CENTRE - COUNTS) / 0.25
    points = RNG.normal(size=(9, 2))
    truth = [0.5 * (u - slope) @ np.linalg.solve(hessian, u - slope) for u in points]
    found = conj.conjugates(held, points, 1e-9)
    assert np.all(found.upper >= np.asarray(truth) - 1e-13) and np.allclose(found.upper, truth, atol=5e-9)
    assert np.allclose(found.places, np.linalg.solve(hessian, (points - slope).T).T, atol=1e-3)
    assert found.passes >= 2 and found.evaluations >= 2 * 9
    assert conj.conjugates(problem(prior_curvature=-PRIOR), points, 1e-9) is None


@pytest.mark.parametrize("kind", ["rows", "density"])
def test_the_conjugate_by_search(kind):
    rows = DESIGN @ ROOT

    def potential(w):
        sign, eta = 2 * LABELS - 1, CENTRE + rows @ w
        return np.sum(np.logaddexp(0, -sign * eta) - np.logaddexp(0, -sign * CENTRE)) + w @ PRIOR @ w / 2 + GRADIENT @ w

    if kind == "rows":
        held = problem(BernoulliLogit(), response=LABELS, largest_weight=0.25, **EXACT)
    else:
        sign, design, loc = 2 * LABELS - 1, DESIGN[:, :2], np.array([0.3, -0.2])
        root = np.array([[0.8, 0.0], [0.2, 0.5]])

        def density(z):
            return -jnp.sum(jnp.logaddexp(0.0, -sign * (design @ z))) - 0.5 * z @ jnp.asarray(PRIOR) @ z

        held = DensityProblem(LogDensity(density, 2), loc, root, PRIOR)

        def plain(z):
            return np.sum(np.logaddexp(0.0, -sign * (design @ z))) + 0.5 * z @ PRIOR @ z

        def potential(w):  # noqa: F811
            return plain(loc + root @ w) - plain(loc)

    points = RNG.normal(size=(3, 2))
    found = conj.conjugates(held, points, 1e-10)
    for k, u in enumerate(points):
        best = optimize.minimize(lambda w, u=u: potential(w) - u @ w, np.zeros(2), method="Nelder-Mead",
                                 options={"xatol": 1e-9, "fatol": 1e-13, "maxiter": 2000})  # fmt: skip
        assert -best.fun - 1e-10 <= found.upper[k] <= -best.fun + 1e-8
        assert np.allclose(found.places[k], best.x, atol=1e-3)


def test_a_density_in_the_coordinates_of_q(coarse):
    target = LogDensity(lambda z: -0.5 * z[0] ** 4 - z[1] ** 2 + 0.3 * z[0], 2)
    loc, root, lower = np.array([0.5, -2.0]), np.array([[0.8, 0.0], [0.2, 0.5]]), np.diag([0.1, 2.0])
    held = DensityProblem(target, loc, root, lower)
    w = RNG.normal(size=(2, 2))
    unit = coarse(conj, linear)
    value, gradient, error, gradient_error = (np.asarray(x) for x in fresh(conj.evaluate)(held, w))

    def at(z):
        return 0.5 * z[0] ** 4 + z[1] ** 2 - 0.3 * z[0], np.array([2 * z[0] ** 3 - 0.3, 2 * z[1]])

    first, there = at(loc)
    for k in range(2):
        z = loc + root @ w[k]
        here, slope = at(z)
        assert value[k] == pytest.approx(here - first) and np.allclose(gradient[k], root.T @ slope)
        moved = np.abs(slope * z).sum() + np.abs(there * loc).sum()
        assert error[k] == pytest.approx(64 * unit * (abs(here) + abs(first)) + 8 * unit * moved)
        assert gradient_error[k] == pytest.approx(64 * unit * np.linalg.norm(root.T @ slope))
        assert np.allclose(fresh(lambda p, w: p.slopes(jnp.asarray(w)))(held, w)[k], root.T @ slope)
    product = root.T @ lower @ root
    size = np.linalg.norm(np.abs(root).T @ lower @ np.abs(root))
    taken = 8 * unit * size + 32 * unit * np.trace(product)
    assert np.allclose(held.curvature(), product - taken * np.eye(2)) and held.dim == 2
    moved = held.transformed(2 * np.eye(2))
    assert (
        np.allclose(moved.root, 2 * root) and moved.lower is lower and conj.in_floating_type(held, np.float32) is held
    )


def test_a_bound_from_any_place_is_above_the_conjugate(coarse):
    """<u, w> - f(w) + |grad f(w) - u|^2 / 2 in the inverse of H, and what rounding adds."""
    held, points = problem(), RNG.normal(size=(3, 2))
    inverse = np.linalg.inv(np.linalg.cholesky(PRIOR))
    value, gradient, error, gradient_error = (np.asarray(x) for x in conj.evaluate(held, points))
    unit = coarse(conj)
    search = conj._Search(held, inverse, points)
    search._in_chunks = lambda function, dtype, w, u: (
        value, np.linalg.norm((gradient - u) @ inverse.T, axis=1), error, gradient_error)  # fmt: skip
    remainder = search._evaluate(np.arange(3))
    largest = np.linalg.svd(inverse)[1][0]
    for k, u in enumerate(points):
        norm = math.sqrt((gradient[k] - u) @ np.linalg.solve(PRIOR, gradient[k] - u))
        left = (norm * (1 + 16 * unit) + 2 * largest * gradient_error[k]) ** 2 / 2
        assert remainder[k] == pytest.approx(left)
        expected = u @ u - value[k] + left + error[k] + 8 * unit * np.sum(u * u)
        assert search.upper[k] == pytest.approx(expected)
    before = search.upper.copy()
    value[:], value[0] = -1e3, np.nan
    search._evaluate(np.arange(3))
    assert np.array_equal(search.upper, before)  # only what is less is taken, and no number that is none
    fresh_search = conj._Search(held, inverse, points)
    fresh_search._in_chunks = search._in_chunks
    fresh_search._evaluate(np.arange(3))
    assert fresh_search.upper[0] == np.inf and np.isfinite(fresh_search.upper[1:]).all()


def test_residuals_of_a_call():
    held, w, points = problem(**EXACT), RNG.normal(size=(3, 2)), RNG.normal(size=(3, 2))
    inverse = np.array([[0.9, 0.0], [0.3, 1.2]])
    gradient = np.asarray(fresh(conj.evaluate)(held, w)[1])
    residual, remainder = fresh(conj._residual)(held, inverse, w, points)
    assert np.allclose(residual, gradient - points)
    assert np.allclose(remainder, 0.5 * np.sum(((gradient - points) @ inverse.T) ** 2, axis=1))
    value, norm, *errors = fresh(conj._evaluate_residual)(held, inverse, w, points)
    assert np.allclose(norm, np.sqrt(2 * np.asarray(remainder)))
    direct = fresh(conj.evaluate)(held, w)
    assert all(np.allclose(a, direct[k]) for a, k in zip((value, *errors), (0, 2, 3), strict=True))


def test_chunks_of_a_call(monkeypatch):
    search = conj._Search(problem(), np.eye(2), RNG.normal(size=(11, 2)))
    monkeypatch.setattr(RowProblem, "chunk", 4)
    seen = []

    def double(data, inverse, w, u):
        seen.append(w.shape)
        return 2 * w, w[:, 0]

    found = search._in_chunks(double, np.float64, search.points, search.points)
    assert np.array_equal(found[0], 2 * search.points) and np.array_equal(found[1], search.points[:, 0])
    assert seen == [(4, 2)] * 3 and search.evaluations == 11
    search._in_chunks(double, np.float64, search.points, search.points)
    assert search.evaluations == 22 and search.passes == 0


def test_quasi_newton_is_the_bfgs_matrix():
    gradient, pairs = RNG.normal(size=(5, 3)), []
    for _ in range(3):
        step, change = RNG.normal(size=(2, 5, 3))
        pairs.append((step, change, 1 / np.einsum("ij,ij->i", step, change)))
    found = conj._quasi_newton(gradient, pairs)
    for k in range(5):
        matrix = np.eye(3)
        for step, change, inverse in pairs:
            left = np.eye(3) - inverse[k] * np.outer(step[k], change[k])
            matrix = left @ matrix @ left.T + inverse[k] * np.outer(step[k], step[k])
        assert np.allclose(found[k], matrix @ gradient[k])


def searching(residuals, start, points=None, dtype=np.float64, tolerance=1e-6, rows=None):
    count = len(start)
    search = conj._Search(problem(), np.eye(2), np.zeros((count, 2)) if points is None else points)
    search.places = np.array(start, float)
    calls = []

    def slopes(w, u):
        calls.append(w.copy())
        assert w.dtype == dtype
        residual = residuals(len(calls), w)
        return residual, 0.5 * np.sum(residual**2, axis=1)

    search._slopes = slopes
    search.run(dtype, tolerance, rows)
    return search, calls


def test_rows_end_by_themselves():
    stiff = np.array([1.0, 3.0])
    start = np.array([[1.0, 0.0], [0.3, -0.2], [1e-5, 1e-5]])
    search, calls = searching(lambda k, w: stiff * w, start)
    assert np.all(0.5 * np.sum((stiff * search.places) ** 2, axis=1) <= 1e-6)
    assert np.array_equal(search.places[2], start[2])  # was there from the first
    assert [len(w) for w in calls][:2] == [3, 2] and len(calls[2]) == 1 and np.allclose(calls[1][0], 0)
    search, calls = searching(lambda k, w: stiff * w, start, rows=np.array([1]))
    assert np.array_equal(search.places[[0, 2]], start[[0, 2]]) and not np.array_equal(search.places[1], start[1])


def test_a_trial_that_taught_nothing_is_a_quarter_as_long():
    search, calls = searching(lambda k, w: np.full_like(w, np.nan) if k in (2, 3) else w.copy(), np.array([[1.0, 2.0]]))
    assert (
        np.allclose(calls[1], 0) and np.allclose(calls[2], [[0.75, 1.5]]) and np.allclose(calls[3], [[0.9375, 1.875]])
    )
    # Past the minimum the slope must have shrunk to nine tenths.
    for slope, accepted in ((0.89, True), (0.91, False)):

        def slopes(k, w, slope=slope):
            return np.array([[1.0 if k == 1 else -slope, 0.0]])

        search, calls = searching(slopes, np.array([[1.0, 0.0]]), tolerance=0.499)
        assert np.allclose(search.places, [[0.0, 0.0]]) == accepted


def test_rows_give_up(monkeypatch):
    """After ten passes in which the remainder was not halved, or sixty in all."""
    ones = np.ones((1, 2))
    _, calls = searching(lambda k, w: ones.copy(), np.array([[1.0, 0.0]]))
    assert len(calls) == 11
    _, calls = searching(lambda k, w: ones * 0.69**k, np.array([[1.0, 0.0]]), tolerance=0.0)
    assert len(calls) == 61
    kept = []
    monkeypatch.setattr(conj, "_quasi_newton", lambda g, pairs: kept.append(len(pairs)) or -np.full_like(g, 0.01))
    searching(lambda k, w: ones * 0.69**k, np.array([[1.0, 0.0]]), tolerance=0.0)
    assert kept[:7] == [1, 2, 3, 4, 5, 6, 6] and max(kept) == 6


def test_rows_that_float32_could_not_finish_go_on():
    search = conj._Search(problem(), np.eye(2), np.zeros((3, 2)))
    remainders = iter([np.array([0.0, 2.01e-6, 1.99e-6]), np.array([1.0]), np.array([1.0])])
    ran, evaluated = [], []
    search._evaluate = lambda rows: evaluated.append(rows.tolist()) or next(remainders)
    search.run = lambda dtype, tolerance, rows=None: ran.append((dtype, tolerance, rows.tolist()))
    search.finish(1e-6)
    assert evaluated == [[0, 1, 2], [1], [1]] and ran == [(np.float64, 1e-6, [1])] * 2
    remainders = iter([np.zeros(3)])
    evaluated.clear()
    search.finish(1e-6)
    assert len(evaluated) == 1 and len(ran) == 2


def test_which_types_are_searched_in(monkeypatch):
    seen = []
    monkeypatch.setattr(conj._Search, "run", lambda self, dtype, tolerance, rows=None: seen.append((dtype, tolerance)))
    monkeypatch.setattr(conj._Search, "finish", lambda self, tolerance: seen.append(tolerance))
    points = np.zeros((2, 2))
    conj.conjugates(problem(), points, 1e-4)
    conj.conjugates(problem(), points, 1e-12)
    density = DensityProblem(LogDensity(lambda z: -jnp.sum(z**2), 2), np.zeros(2), np.eye(2), np.eye(2))
    conj.conjugates(density, points, 1e-12)
    assert seen == [(np.float32, 1e-4), 1e-4, (np.float32, 1e-9), 1e-12, 1e-12]
    single = conj.in_floating_type(problem(), np.float32)
    assert single.root.dtype == np.float32 and single.likelihood == Poisson() and single.largest_weight == math.inf
