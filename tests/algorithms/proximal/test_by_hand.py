"""Algorithms against plain NumPy loops on the same draws."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from provi.algorithms import MPSGD, Optax, ProjSGD, ProxSGD
from provi.estimators import StickingTheLanding
from provi.families import Gaussian
from provi.geometry import BlockPreconditioner
from provi.schedules import PolynomialBatch, PolynomialStep
from provi.targets import Gaussian as GaussianTarget
from support.members import FACTOR, LOC, dense
from support.trajectories import normal_draws, step, trajectory

TARGET = GaussianTarget(LOC, FACTOR @ FACTOR.T)
PRECISION = np.linalg.inv(FACTOR @ FACTOR.T)
KEY = jax.random.key(11)
STEP, BATCH = PolynomialStep(0.15, 0.6), PolynomialBatch(3, 1.5)
NUM_STEPS = 5
LOW = 0.75  # above the start, so that the projection does something


def project_on(kind, matrix):
    if kind == "triangular":
        return np.tril(matrix)
    return (matrix + matrix.T) / 2 if kind == "symmetric" else np.diag(np.diagonal(matrix))


def prox(kind, matrix, gamma):
    if kind == "symmetric":
        values, vectors = np.linalg.eigh(matrix)
        return vectors @ np.diag((values + np.sqrt(values**2 + 4 * gamma)) / 2) @ vectors.T
    diagonal = np.diagonal(matrix)
    return matrix + np.diag((diagonal + np.sqrt(diagonal**2 + 4 * gamma)) / 2 - diagonal)


def raise_eigenvalues(matrix, low):
    values, vectors = np.linalg.eigh(matrix)
    return vectors @ np.diag(np.maximum(values, low)) @ vectors.T


def gradient(kind, m, C, t, num, entropy):
    """By hand: mean pi and P(mean pi u'), with -C^-T ("entropy") or the score ("stl") or neither."""
    u = normal_draws(KEY, t, num, 3)
    pi = (m + u @ C.T - LOC) @ PRECISION
    if entropy == "stl":
        pi = pi - u @ np.linalg.inv(C)
    g_C = pi.T @ u / num
    if entropy == "exact":
        g_C = g_C - np.linalg.inv(C).T
    return pi.mean(axis=0), project_on(kind, g_C)


def by_hand(kind, operator, entropy, precondition=(1.0, 1.0), anchored=False):
    m, C = np.zeros(3), 0.7 * np.eye(3)
    start, iterates = (m, C), []
    for t in range(NUM_STEPS):
        gamma, num = 0.15 / (t + 1) ** 0.6, int(np.ceil(3 * (t + 1) ** 1.5))
        g_m, g_C = gradient(kind, m, C, t, num, entropy)
        m = m - gamma * precondition[0] * g_m
        C = operator(C - gamma * precondition[1] * g_C, gamma)
        if anchored:
            beta = 1 / (t + 2)
            m, C = beta * start[0] + (1 - beta) * m, beta * start[1] + (1 - beta) * C
        iterates.append((m, C))
    return iterates


def check_trajectory(algorithm, kind, expected):
    family = Gaussian(3, kind)
    states, infos = trajectory(algorithm, TARGET, family, family.point(np.zeros(3), 0.7), KEY, NUM_STEPS)
    for t, (m, C) in enumerate(expected):
        np.testing.assert_allclose(states[t + 1].point.loc, m, rtol=1e-11, atol=1e-13)
        np.testing.assert_allclose(dense(states[t + 1].point.scale), C, rtol=1e-11, atol=1e-12)
        assert int(states[t + 1].step) == t + 1
    return states, infos


@pytest.mark.parametrize("kind", ["triangular", "symmetric", "diagonal"])
def test_prox_sgd(kind):
    expected = by_hand(kind, lambda C, gamma: prox(kind, C, gamma), None)
    check_trajectory(ProxSGD(STEP, BATCH), kind, expected)


@pytest.mark.parametrize(("kind", "entropy"), [("symmetric", "exact"), ("diagonal", "exact"), ("symmetric", "stl")])
def test_proj_sgd(kind, entropy):
    expected = by_hand(kind, lambda C, gamma: raise_eigenvalues(C, LOW), entropy)
    assert min(np.linalg.eigvalsh(C)[0] for _, C in expected) == pytest.approx(LOW)
    options = {"estimator": StickingTheLanding()} if entropy == "stl" else {}
    check_trajectory(ProjSGD(STEP, BATCH, smallest_scale=LOW, **options), kind, expected)


def test_mpsgd_with_a_preconditioner():
    operator = lambda C, gamma: raise_eigenvalues(C, LOW)  # noqa: E731
    expected = by_hand("symmetric", operator, "exact", precondition=(0.9, 0.25))
    algorithm = MPSGD(STEP, BATCH, BlockPreconditioner(0.9, 0.25), smallest_scale=LOW)
    check_trajectory(algorithm, "symmetric", expected)


def test_the_default_floor_is_one_over_the_root_of_the_smoothness():
    for kind in (ProjSGD, MPSGD):
        resolved = kind(0.1).resolve(TARGET, Gaussian(3, "symmetric"))
        expected = 1 / np.sqrt(np.linalg.eigvalsh(PRECISION)[-1])
        assert float(resolved.smallest_scale) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("name", ["prox", "proj"])
def test_halpern_anchor(name):
    if name == "prox":
        expected = by_hand("symmetric", lambda C, g: prox("symmetric", C, g), None, anchored=True)
        algorithm = ProxSGD(STEP, BATCH, anchored=True)
    else:
        expected = by_hand("symmetric", lambda C, g: raise_eigenvalues(C, LOW), "exact", anchored=True)
        algorithm = ProjSGD(STEP, BATCH, smallest_scale=LOW, anchored=True)
    check_trajectory(algorithm, "symmetric", expected)


def test_optax_is_optax_by_hand():
    rule = optax.adam(0.05)
    family = Gaussian(3, "triangular")
    states, infos = trajectory(Optax(rule, 10), TARGET, family, family.point(np.zeros(3), 0.7), KEY, NUM_STEPS)
    weights = {"m": jnp.zeros(3), "C": 0.7 * jnp.eye(3)}
    rule_state = rule.init(weights)
    for t in range(NUM_STEPS):
        m, C = np.asarray(weights["m"]), np.asarray(weights["C"])
        g_m, g_C = gradient("triangular", m, C, t, 10, "stl")
        updates, rule_state = rule.update({"m": jnp.asarray(g_m), "C": jnp.asarray(g_C)}, rule_state, weights)
        weights = optax.apply_updates(weights, updates)
        np.testing.assert_allclose(states[t + 1].point.loc, weights["m"], rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(states[t + 1].point.scale.matrix, weights["C"], rtol=1e-9, atol=1e-12)
        assert float(infos[t].norms[0]) == pytest.approx(np.linalg.norm(g_m), rel=1e-9)
        assert float(infos[t].norms[1]) == pytest.approx(np.linalg.norm(g_C), rel=1e-9)


@pytest.mark.parametrize("kind", ["triangular", "low_rank"])
def test_optax_keeps_the_scale_positive(kind):
    """A step of length 100 would leave the positive definite scales."""
    family = Gaussian(3, kind)
    algorithm = Optax(optax.sgd(100.0), 10, smallest_scale=0.01)
    states, _ = trajectory(algorithm, TARGET, family, family.point(LOC, 3.0), KEY, 1)
    scale = states[1].point.scale
    diagonal = scale.diagonal if kind == "low_rank" else np.diagonal(scale.matrix)
    assert float(np.min(diagonal)) == 0.01


def test_shrink_multiplies_the_step_size():
    family = Gaussian(3, "diagonal")
    large, small = (ProxSGD(PolynomialStep(value, 0.6), BATCH) for value in (0.2, 0.05))
    state = large.init(family.point(np.zeros(3), 0.7))
    shrunk, _ = step(KEY, large, state, TARGET, family, jnp.asarray(0.25))
    plain, info = step(KEY, small, state, TARGET, family, jnp.asarray(1.0))
    np.testing.assert_allclose(shrunk.point.loc, plain.point.loc, rtol=1e-14)
    assert float(info.step_size) == pytest.approx(0.05)


def test_steps_differ_in_their_draws_and_repeat_with_the_key():
    family = Gaussian(3, "diagonal")
    algorithm, start = ProxSGD(PolynomialStep(1e-9, 0.6), BATCH), family.point(np.zeros(3), 0.7)
    states, infos = trajectory(algorithm, TARGET, family, start, KEY, 2)
    again, _ = trajectory(algorithm, TARGET, family, start, KEY, 2)
    assert abs(float(infos[0].norms[0]) / float(infos[1].norms[0]) - 1) > 1e-3
    np.testing.assert_array_equal(states[2].point.loc, again[2].point.loc)
