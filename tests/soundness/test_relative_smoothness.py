"""The automatic steps of PG-SVI, written by hand: what they guarantee holds at every step of real runs."""

import numpy as np
import pytest
from scipy.special import xlogy

from provi.theory import relative_smoothness


class Poisson:
    """q = N(m, v), prior N(0, 4), f = E[exp(z) - y z] = exp(m + v/2) - y m: nowhere near globally smooth."""

    prior, count = (0.0, 4.0), 7.0
    start = (-3.0, 2.0)

    def value_and_slopes(self, m, v):
        rate = np.exp(m + v / 2)
        return rate - self.count * m, rate - self.count, rate / 2


class Cosine(Poisson):
    """f = 3 E cos z: not convex; trial precisions can be negative."""

    start = (2.0, 0.3)

    def value_and_slopes(self, m, v):
        decay = 3 * np.exp(-v / 2)
        return decay * np.cos(m), -decay * np.sin(m), -decay * np.cos(m) / 2


def kl(first, second):
    """KL(N(first) || N(second))."""
    (m, v), (n, u) = first, second
    return 0.5 * ((v + (m - n) ** 2) / u - 1 - np.log(v / u))


def trial(problem, q, beta):
    """The step in mean parameters (m, v + m^2), and the model's value there; None where it is no distribution."""
    m, v = q
    value, slope, half_curvature = problem.value_and_slopes(m, v)
    gradient = np.array([slope - 2 * m * half_curvature, half_curvature])
    natural = [np.array([a / b, -0.5 / b]) for a, b in (q, problem.prior)]
    new = (natural[0] + beta * (natural[1] - gradient)) / (1 + beta)
    if new[1] >= 0:
        return None
    moved = (-0.5 * new[0] / new[1], -0.5 / new[1])
    change = np.array([moved[0] - m, moved[1] + moved[0] ** 2 - v - m**2])
    return moved, value + gradient @ change + kl(moved, q) / beta


@pytest.mark.parametrize("growth", [1.5, 2.0])
@pytest.mark.parametrize("problem", [Poisson(), Cosine()], ids=["poisson", "cosine"])
def test_accepted_steps_descend_as_promised(problem, growth):
    """At every trial: accepted <=> F_k - F_k+1 >= (1 + 1/beta) KL(q_k || q_k+1); and the sum is within F_0 - F*."""
    q, beta, steps, divergences, values, rejected = problem.start, 50.0, [], [], [], 0

    def objective(at):
        return problem.value_and_slopes(*at)[0] + kl(at, problem.prior)

    for _ in range(60):
        moved, model = trial(problem, q, beta) or (None, None)
        value = objective(q)
        if moved is not None:
            excess = problem.value_and_slopes(*moved)[0] - model
            promised = relative_smoothness.descent([beta], [kl(q, moved)])[0]
            slack = 1e-12 * (1 + abs(value) + abs(objective(moved)) + promised)
            # The two differ by rounding only: an identity, not just an implication.
            assert value - objective(moved) - promised == pytest.approx(-excess, abs=slack)
        if moved is None or excess > 0:
            beta, rejected = beta / 2, rejected + 1
            continue
        steps.append(beta)
        divergences.append(kl(q, moved))
        values.append(value)
        q, beta = moved, growth * beta
        if divergences[-1] < 1e-14:
            break
    assert rejected > 0 and len(steps) > 5
    spent = np.cumsum(relative_smoothness.descent(steps, divergences))
    assert np.all(spent <= values[0] - objective(q) + 1e-10)
    bound = relative_smoothness.smallest_divergence_bound(steps, values[0] - objective(q) + 1e-10)
    assert np.all(np.minimum.accumulate(divergences) <= bound)
    # The fixed point is stationary: gradient of F in (m, v).
    _, slope, half_curvature = problem.value_and_slopes(*q)
    assert abs(slope + q[0] / 4) < 1e-5 and abs(half_curvature + 1 / 8 - 0.5 / q[1]) < 1e-5


def test_convex_in_the_mean_parameters():
    """Categorical, f = p'Qp/2 with Q >= 0: L_r = max |Q_ij| (Pinsker). Steps never below 1/(2 L_r); linear rate."""
    rng = np.random.default_rng(0)
    root = rng.normal(size=(6, 6))
    curvature, log_prior = 4 * root @ root.T, np.log(np.full(6, 1 / 6))
    relative = np.abs(curvature).max()

    def normalised(log_p):
        p = np.exp(log_p - log_p.max())
        return p / p.sum()

    def divergence(p, r):
        return np.sum(xlogy(p, p / r))

    def objective(p):
        return 0.5 * p @ curvature @ p + np.sum(xlogy(p, p) - p * log_prior)

    def step(p, beta):
        return normalised((np.log(p) + beta * (log_prior - curvature @ p)) / (1 + beta))

    best = np.full(6, 1 / 6)
    for _ in range(4000):
        best = step(best, 1 / relative)
    np.testing.assert_allclose(step(best, 1 / relative), best, rtol=1e-12)
    p, beta, steps, distances, gaps = normalised(3 * rng.normal(size=6)), 8.0, [], [], []
    start = divergence(best, p)
    while len(steps) < 80:
        new = step(p, beta)
        change = new - p
        if 0.5 * change @ curvature @ change > divergence(new, p) / beta + 1e-15:
            beta /= 2
            continue
        steps.append(beta)
        distances.append(divergence(best, new))
        gaps.append(objective(new) - objective(best))
        p, beta = new, 1.5 * beta
    assert min(steps) >= relative_smoothness.smallest_step_size(8.0, relative)
    assert min(steps) < 1  # backtracking was needed
    tiny = 1e-12
    assert np.all(distances <= relative_smoothness.convex_distance_bound(steps, start) + tiny)
    assert np.all(gaps <= relative_smoothness.convex_gap_bound(steps, start) + tiny)
    # Not only the product: each step contracts.
    assert np.all(np.array(distances) <= np.array([start, *distances[:-1]]) / (1 + np.array(steps)) + tiny)


@pytest.mark.parametrize("seed", [0, 1])
def test_a_stationary_point_is_a_fixed_point_of_every_site_update(seed):
    """The site table settles on grad F = 0 and then no visit, in any order, moves it; mini-batch steps keep moving."""
    rng = np.random.default_rng(seed)
    covariates, counts = rng.normal(size=12), rng.poisson(2.0, size=12)

    def site(n, m, v):
        x = covariates[n]
        rate = np.exp(x * m + x * x * v / 2)
        return np.array([x * x * rate * m - x * (rate - counts[n]), x * x * rate])  # (linear term, precision)

    def member(sites):
        linear, precision = sites.sum(0) + [0.0, 1.0]
        return linear / precision, 1 / precision

    table = np.zeros((12, 2))
    for n in rng.integers(0, 12, 1500):
        table[n] = 0.5 * table[n] + 0.5 * site(n, *member(table))
    m, v = member(table)
    rates = np.exp(covariates * m + covariates**2 * v / 2)
    assert abs(m + covariates @ (rates - counts)) < 1e-10
    assert abs(1 + covariates**2 @ rates - 1 / v) < 1e-10
    for n in range(12):
        np.testing.assert_allclose(site(n, m, v), table[n], atol=1e-10)
    total, moved = np.array([m / v, 1 / v]), []
    for n in rng.integers(0, 12, 200):
        at = (total[0] / total[1], 1 / total[1])
        total = 0.95 * total + 0.05 * (np.array([0.0, 1.0]) + 12 * site(n, *at))
        moved.append(abs(at[0] - m))
    assert np.mean(moved[100:]) > 1e-3
