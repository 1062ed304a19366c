"""Batch schedules against exact integer arithmetic."""

import math
from fractions import Fraction

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

from provi.schedules import ConstantBatch, FunctionBatch, OffsetPolynomialBatch, PolynomialBatch
from provi.schedules.batch_sizes import as_batch_size

evaluate = eqx.filter_jit(lambda schedule, t: schedule(t))


def exact_power(initial, base, exponent):
    """ceil(initial * base^(p/q)) by integer roots: n is the least with n^q >= initial^q base^p."""
    goal = initial**exponent.denominator * base**exponent.numerator
    n = max(1, round(goal ** (1 / exponent.denominator)) - 2)
    while n**exponent.denominator < goal:
        n += 1
    return n


@pytest.mark.parametrize("initial", [1, 3])
@pytest.mark.parametrize("exponent", [Fraction(1), Fraction(3, 2), Fraction(1, 2), Fraction(5, 4), Fraction(2)])
def test_polynomial_growth_is_rounded_up_exactly(initial, exponent):
    """Exact powers included: 100^(3/2) is 1000, not 1001."""
    schedule = PolynomialBatch(initial, float(exponent))
    steps = np.unique(np.concatenate([np.arange(300), np.arange(1, 60) ** 2 - 1, np.arange(1, 20) ** 4 - 1]))
    expected = [exact_power(initial, int(t) + 1, exponent) for t in steps]
    result = evaluate(schedule, jnp.asarray(steps))
    assert result.dtype == jnp.int32
    keep = np.asarray(expected) < 2**30
    np.testing.assert_array_equal(np.asarray(result)[keep], np.asarray(expected)[keep])


def test_large_exact_powers():
    schedule = PolynomialBatch(1, 3.0)
    for base in (100, 613, 999, 1000):
        assert int(evaluate(schedule, jnp.asarray(base - 1))) == base**3


def test_the_largest_batch_caps_the_growth():
    schedule = PolynomialBatch(2, 1.5, 50)
    sizes = [int(evaluate(schedule, jnp.asarray(t))) for t in range(200)]
    assert sizes[:4] == [2, math.ceil(2 * 2**1.5), math.ceil(2 * 3**1.5), 16]
    assert max(sizes) == sizes[-1] == 50
    assert int(evaluate(PolynomialBatch(1, 2.0), jnp.asarray(10**9))) == 2**30


def test_constant():
    schedule = as_batch_size(7)
    assert isinstance(schedule, ConstantBatch)
    assert int(schedule(jnp.asarray(3))) == 7
    assert as_batch_size(schedule) is schedule


@pytest.mark.parametrize(
    ("bad", "message"), [(0, "at least 1"), (-3, "at least 1"), (1.5, "whole number"), (True, "whole number")]
)
def test_bad_numbers_are_refused(bad, message):
    with pytest.raises(ValueError, match=f"num_draws must be .*{message}"):
        as_batch_size(bad)
    with pytest.raises(ValueError, match=f"initial must be .*{message}"):
        PolynomialBatch(bad, 1.0)
    with pytest.raises(ValueError, match=f"largest must be .*{message}"):
        PolynomialBatch(1, 1.0, bad)


@pytest.mark.parametrize("bad", [-0.5, np.nan, np.inf])
def test_a_shrinking_batch_is_refused(bad):
    """initial (t+1)^-e would reach zero draws."""
    with pytest.raises(ValueError, match="exponent must be"):
        PolynomialBatch(1, bad)


def test_ten_plus_squares():
    """Paper 001's 10 + k^2, exactly, its cap, and a straight line."""
    steps = np.arange(0, 3000, 7)
    squares = evaluate(OffsetPolynomialBatch(10, 2), jnp.asarray(steps))
    assert squares.dtype == jnp.int32
    np.testing.assert_array_equal(squares, 10 + steps**2)
    np.testing.assert_array_equal(
        evaluate(OffsetPolynomialBatch(10, 2, largest=150), jnp.asarray(steps)), np.minimum(10 + steps**2, 150)
    )
    line = evaluate(OffsetPolynomialBatch(1, 1, factor=2.5), jnp.asarray(steps))
    np.testing.assert_array_equal(line, 1 + np.ceil(2.5 * steps))
    assert int(evaluate(OffsetPolynomialBatch(10, 2), jnp.asarray(10**9))) == 2**30


def test_the_users_function():
    """Rounded up, at least one, at most the cap; changing the cap does not recompile."""
    schedule = FunctionBatch(lambda k: 0.3 * k - 1)
    steps = np.arange(40)
    values = evaluate(schedule, jnp.asarray(steps))
    assert values.dtype == jnp.int32
    np.testing.assert_array_equal(values, np.maximum(np.ceil(0.3 * steps - 1 - 1e-9), 1))
    traces = []

    def counted(k):
        traces.append(1)
        return k

    for cap in (4, 9):
        assert int(jnp.max(evaluate(FunctionBatch(counted, cap), jnp.asarray(steps)))) == cap
    assert len(traces) == 1
    with pytest.raises(ValueError, match="one number"):
        FunctionBatch(lambda k: jnp.ones(2))(jnp.asarray(3))
    with pytest.raises(ValueError, match="function must map"):
        FunctionBatch(3)


def test_what_is_known_of_the_growth():
    assert ConstantBatch(5).growth == (0.0, None)
    assert PolynomialBatch(1, 1.5).growth == (1.5, None)
    assert OffsetPolynomialBatch(10, 2, largest=100).growth == (2.0, 100)
    assert PolynomialBatch(1, 1, 50).growth == (1.0, 50)
    assert PolynomialBatch(1, 1, 2**30).growth == (1.0, None)
    assert FunctionBatch(lambda k: k).growth is None
    exponent, cap = FunctionBatch(lambda k: k**3, 20).growth
    assert math.isnan(exponent) and cap == 20


def test_paper_001s_schedules_with_a_cap():
    """M_k = k counted from 1, and 10 + k^2, up to the cap; another cap does not recompile."""
    passes = np.arange(60)
    traces = []

    @eqx.filter_jit
    def counted(schedule, steps):
        traces.append(1)
        return schedule(steps)

    for cap in (1, 7, 40, 10**6):
        np.testing.assert_array_equal(
            counted(PolynomialBatch(1, 1, cap), jnp.asarray(passes)), np.minimum(passes + 1, cap)
        )
    assert len(traces) == 1
    for cap in (1, 10, 200):
        capped = counted(OffsetPolynomialBatch(10, 2, largest=cap), jnp.asarray(passes))
        np.testing.assert_array_equal(capped, np.minimum(10 + passes**2, cap))
    assert len(traces) == 2


@pytest.mark.parametrize("bad", [0, -1, np.nan])
def test_bad_offsets_and_factors(bad):
    with pytest.raises(ValueError, match="offset must be"):
        OffsetPolynomialBatch(bad, 2)
    with pytest.raises(ValueError, match="factor must be"):
        OffsetPolynomialBatch(1, 2, bad)
