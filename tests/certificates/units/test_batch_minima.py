"""`monte_carlo/batch_minima.py`: its quasi-Newton step by its matrix, its rules one trial at a time."""

from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from provi.certificates.monte_carlo import batch_minima as minima
from provi.certificates.monte_carlo.batch_sums import NUM_BATCHES, BatchMeans

RNG, ONES = np.random.default_rng(1), np.ones(2)


@pytest.mark.parametrize("diagonal", [False, True])
def test_a_step_is_that_of_the_bfgs_matrix(diagonal):
    """H <- (I - r s y')H(I - r y s') + r s s' for each pair in turn; a pair with 0 is left out."""
    half = RNG.normal(size=(3, 3))
    start = np.array([0.5, 1.0, 2.0]) if diagonal else half @ half.T + np.eye(3)
    pairs = []
    for k in range(3):
        step, change = RNG.normal(size=(2, NUM_BATCHES, 3))
        inverse = 1 / np.einsum("bi,bi->b", step, change)
        inverse[k::4] = 0.0
        pairs.append((step, change, inverse))
    gradient = RNG.normal(size=(NUM_BATCHES, 3))
    found = minima._quasi_newton(gradient, pairs, start)
    for b in range(NUM_BATCHES):
        matrix = np.diag(start) if diagonal else start
        for step, change, inverse in pairs:
            left = np.eye(3) - inverse[b] * np.outer(step[b], change[b])
            matrix = left @ matrix @ left.T + inverse[b] * np.outer(step[b], step[b])
        assert np.allclose(found[b], matrix @ gradient[b], rtol=1e-9)


def test_remainders():
    v, gradient = RNG.normal(size=(2, NUM_BATCHES, 2))
    matrix = np.array([[1.0, 0.0], [0.5, 2.0]])
    assert np.allclose(minima._remainder(matrix, v, gradient, 9.0), [0.5 * g @ matrix.T @ matrix @ g for g in gradient])
    assert np.allclose(
        minima._remainder(np.array([2.0, 3.0]), v, gradient, 9.0),
        0.5 * (4 * gradient[:, 0] ** 2 + 9 * gradient[:, 1] ** 2),
    )
    expected = [np.sqrt(g @ g) * (np.sqrt(x @ x) + 9.0) for g, x in zip(gradient, v, strict=True)]
    assert np.allclose(minima._remainder(None, v, gradient, 9.0), expected)
    assert minima._like(np.ones(4, bool), np.zeros((4, 2, 2))).shape == (4, 1, 1)


def test_a_trial_is_accepted_by_slope_and_value():
    def better(after, value, before=-1.0):
        means = SimpleNamespace(gradient=np.array([[after, 0.0]]), value=np.array([value]), magnitude=np.array([10.0]))
        gradient, step = np.array([[before, 5.0]]), np.array([[1.0, 0.0]])
        return bool(minima._better(np.array([3.0]), gradient, step, means, 0.01)[0])

    assert better(0.89, 3.0) and not better(0.91, 3.0) and better(-5.0, 3.0) and better(0.89, 3.0, 1.0)
    assert better(0.0, 3.0 + 0.79) and not better(0.0, 3.0 + 0.81)


class Bowls:
    """Batches b of the potential |v - c_b|^2_K / 2, or of what is given: every call kept."""

    def __init__(self, spread=0.3, stiff=(1.0, 4.0), least=None, value=None):
        self.centres = spread * RNG.normal(size=(NUM_BATCHES, 2))
        self.stiff, self.least, self.value, self.calls = np.asarray(stiff), least, value, []

    def __call__(self, shifts, with_fisher):
        self.calls.append((shifts.copy(), with_fisher))
        k = len(self.calls)
        away = shifts - self.centres
        value = 0.5 * np.sum(self.stiff * away**2, axis=1)
        gradient = self.stiff * away
        if self.value is not None:
            value, gradient = self.value(k, value, gradient)
        least = np.zeros(NUM_BATCHES)
        if self.least is not None:
            least[3] = self.least(k)
        ones = np.ones(NUM_BATCHES)
        return BatchMeans(*(jnp.asarray(x) for x in (value, ones, gradient, np.full((NUM_BATCHES, 2), float(k)))), None,
                          *(jnp.asarray(x) for x in (ones, ones, least)))  # fmt: skip


def run(bowls, whitener=ONES, most=40, preconditioner=ONES, **more):
    def evaluate(shifts, with_fisher):
        return minima.on_host(bowls(shifts, with_fisher))

    return minima.minimise_batches(evaluate, whitener, preconditioner, most, 1e-16, **more)


def test_bowls_are_minimised_until_the_remainder_is_a_hundredth():
    bowls = Bowls()
    found = run(bowls, np.array([1.0, 0.5]))
    gradient = bowls.stiff * (found.shifts - bowls.centres)
    remainder = 0.5 * np.sum((gradient * [1.0, 0.5]) ** 2, axis=1)
    whole = 0.5 * np.sum(bowls.stiff * bowls.centres**2, axis=1)
    decrease = whole - 0.5 * np.sum(bowls.stiff * (found.shifts - bowls.centres) ** 2, axis=1)
    assert np.allclose(found.remainder, remainder, atol=1e-14) and np.allclose(found.decrease, decrease, atol=1e-14)
    assert np.all(remainder <= np.maximum(0.01 * decrease, 1e-8)) and np.all(decrease >= 0)
    assert found.passes == len(bowls.calls) < 12 and [fisher for _, fisher in bowls.calls] == [True] + [False] * (
        found.passes - 1
    )
    assert not bowls.calls[0][0].any() and found.least == 0.0 and np.all(found.moment >= 1)
    # A batch that is done stands still, whatever the others do.
    done = [np.all(later == found.shifts, axis=1) for later, _ in bowls.calls]
    assert done[-1].any() and found.first.value == pytest.approx(whole)
    exact = Bowls(stiff=(1.0, 1.0))
    found = run(exact)
    assert found.passes == 2 and np.allclose(found.shifts, exact.centres)
    assert run(Bowls(), most=3).passes == 3 and run(Bowls(), most=1).passes == 1
    assert run(Bowls(spread=1e-6)).passes == 1  # negligible from the first


def test_without_a_whitener_the_remainder_is_a_distance():
    bowls = Bowls(stiff=(1.0, 1.0))
    seen = []
    found = run(bowls, None, distance=lambda first: seen.append(first) or 7.0, most=1)
    lengths = np.linalg.norm(bowls.centres, axis=1)
    assert np.allclose(found.remainder, 7.0 * lengths) and len(seen) == 1 and seen[0] is found.first
    assert np.allclose(run(bowls, None, most=1).remainder, 1e6 * lengths)
    run(bowls, distance=lambda _: pytest.fail("not asked for"))


def test_a_refuted_potential_ends_it():
    found = run(Bowls(least=lambda k: -0.5 if k == 2 else 0.0))
    assert found.passes == 2 and found.least == -0.5
    bowls = Bowls(least=lambda k: -0.25)
    found = run(bowls)
    assert found.passes == 1 and found.least == -0.25 and not found.least_at.any()
    bowls = Bowls(least=lambda k: -0.5 if k == 2 else 0.0)
    found = run(bowls)
    assert np.array_equal(found.least_at, bowls.calls[1][0]) and found.least_at.any()


def test_a_trial_that_taught_nothing_is_a_quarter_as_long():
    def broken(k, value, gradient):
        return (np.full_like(value, np.nan), np.full_like(gradient, np.nan)) if k in (2, 3) else (value, gradient)

    bowls = Bowls(value=broken, stiff=(1.0, 1.0))
    run(bowls)
    steps = [shifts for shifts, _ in bowls.calls]
    assert np.allclose(steps[1], bowls.centres) and np.allclose(steps[2], bowls.centres / 4)
    assert np.allclose(steps[3], bowls.centres / 16)
    found = run(Bowls(value=lambda k, value, gradient: (np.full_like(value, np.inf), gradient)))
    assert found.passes == 1


def test_it_gives_up_after_ten_passes_without_progress():
    """Accepted ones count whole, rejected ones half: a slope that never falls, and a trial that is never better."""

    def flat(k, value, gradient):
        return np.full_like(value, -float(k)), np.ones_like(gradient)

    assert run(Bowls(value=flat)).passes == 11

    def worse(k, value, gradient):
        return value * 0 + k, np.where(k == 1, 1.0, np.nan) * np.ones_like(gradient)

    assert run(Bowls(value=worse)).passes == 21
    assert (minima.MEMORY, minima.STALLED, minima.NEGLIGIBLE, minima.LARGEST_DISTANCE) == (8, 10, 1e-8, 1e6)


def test_so_many_pairs_are_kept(monkeypatch):
    kept = []
    quasi_newton = minima._quasi_newton
    monkeypatch.setattr(
        minima, "_quasi_newton", lambda g, pairs, p: kept.append(len(pairs)) or quasi_newton(g, pairs, p)
    )

    def slow(k, value, gradient):
        return value, gradient / 1.001**k

    run(Bowls(value=slow, stiff=(1.0, 90.0)), preconditioner=np.full(2, 0.003))
    assert kept[:9] == list(range(9)) and max(kept) == 8
