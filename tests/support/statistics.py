"""Statistical assertions that state how often they fail by chance."""

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats


def assert_mean(samples: ArrayLike, expected: ArrayLike, alarm: float = 1e-6, exact: float = 0.0) -> None:
    r"""Assert that independent `samples` have mean `expected`: two-sided z-test, Bonferroni over components.

    Each of the $k$ components fails when $|\bar x - e| > z\,\hat\sigma/\sqrt n$, with $z$ the standard normal
    quantile at $1 - \text{alarm}/(2k)$. The true rate is at most `alarm` up to the error of the normal
    approximation, so heavy-tailed samples need a large $n$.

    **Arguments:**

    - `samples`: shape `(n, ...)`, independent along the first axis.
    - `expected`: the mean under test, of a shape that broadcasts to `samples.shape[1:]`.
    - `alarm`: the probability that a correct mean fails.
    - `exact`: absolute tolerance of components whose samples are all equal; 1e-12 relative is added to it.
    """
    samples = np.asarray(samples, dtype=np.float64)
    if samples.ndim == 0 or samples.shape[0] < 2:
        raise ValueError(f"samples needs two entries or more along its first axis; its shape is {samples.shape}.")
    if not 0 < alarm < 1:
        raise ValueError(f"alarm must be a probability between 0 and 1, not {alarm}.")
    expected = np.broadcast_to(np.asarray(expected, dtype=np.float64), samples.shape[1:])
    assert np.isfinite(samples).all(), "samples hold NaN or infinity"
    error = np.abs(samples.mean(axis=0) - expected)
    # A constant component has a computed deviation of rounding size, which would make a useless scale.
    constant = np.ptp(samples, axis=0) <= 1e-12 * np.abs(samples).max(axis=0)
    standard_error = samples.std(axis=0, ddof=1) / np.sqrt(samples.shape[0])
    threshold = stats.norm.isf(alarm / (2 * max(error.size, 1)))
    allowed = np.where(constant, exact + 1e-12 * np.abs(expected), threshold * standard_error)
    if not (error <= allowed).all():
        worst = np.unravel_index(np.argmax(error - allowed), error.shape)
        raise AssertionError(
            f"mean at {tuple(int(i) for i in worst)} is {samples.mean(axis=0)[worst]:.8g}, expected "
            f"{expected[worst]:.8g}: off by {error[worst]:.3g}, allowed {allowed[worst]:.3g} "
            f"({int((error > allowed).sum())} of {error.size} components fail; false-alarm rate {alarm:g})"
        )
