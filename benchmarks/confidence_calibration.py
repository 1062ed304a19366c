"""How often the upper bounds of provi.certificates.bounds fail, and how wide they are.

`fails` is the measured failure rate over delta (1 is nominal, below is conservative; standard error 1/sqrt(trials
delta)). For the mean, `t fails` is that of the t-interval and `width` the mean width over its width. For the squared
norm `fails` is the worst over mu in the largest and smallest eigendirection, |mu|^2 = 0.01 ... 100 tr(Sigma)/R, and
`width` is the median bound at mu = 0 over the median of the plug-in |X_bar|^2.

    python benchmarks/confidence_calibration.py [--trials 20000]
"""

import argparse
import time

import numpy as np
from scipy import stats

from provi.certificates.bounds import mean_bound_from_moments, squared_norm_bound_from_moments

RATIOS = (0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0)
FLAT_FROM = 100  # beyond this dimension 1/i^2 is replaced by its average: the block is then one Wishart draw


def scalar_cases(rng):
    """Name, sampler and true mean."""
    for k in (1, 2, 3, 10, 30, 100):
        yield f"chi-square {k}", lambda size, k=k: rng.chisquare(k, size), k
    for k, shift in ((1, 1), (1, 4), (1, 25), (10, 10)):
        name = f"noncentral {k}, {shift}"
        yield name, lambda size, k=k, shift=shift: rng.noncentral_chisquare(k, shift, size), k + shift
    for sigma in (0.5, 1.0):
        yield f"log-normal {sigma}", lambda size, s=sigma: rng.lognormal(0, s, size), np.exp(sigma**2 / 2)
    for mean in (0.5, 2.0, 10.0):
        yield f"Gaussian {mean}, 1", lambda size, m=mean: rng.normal(m, 1, size), mean
    # Beyond what is promised: a constant hides the skewness.
    yield "chi-square 1 - 0.5", lambda size: rng.chisquare(1, size) - 0.5, 0.5
    yield "chi-square 1 + 20", lambda size: rng.chisquare(1, size) + 20, 21.0


def calibrate_mean(rng, trials):
    print(f"{'mean_upper_bound':24}{'R':>4}{'delta':>8}{'fails':>8}{'t fails':>9}{'width':>7}")
    for num in (16, 32, 64):
        for name, sample, truth in scalar_cases(rng):
            x = sample((trials, num))
            mean, variance, lowest = x.mean(1), x.var(1, ddof=1), x.min(1)
            for delta in (0.01, 0.005, 0.001):
                width = stats.t.isf(delta, num - 1) * np.sqrt(variance / num)
                bound = mean_bound_from_moments(mean, variance, lowest, num, delta)
                fails, t_fails = np.mean(bound < truth) / delta, np.mean(mean + width < truth) / delta
                ratio = np.mean(bound - mean) / np.mean(width)
                print(f"{name:24}{num:4}{delta:8}{fails:8.2f}{t_fails:9.2f}{ratio:7.2f}")


def spectra():
    for dim in (1, 2, 3, 10, 100, 1000):
        yield f"equal, p = {dim}", np.ones(dim)
        if dim > 1:
            values = 1.0 / np.arange(1, dim + 1) ** 2
            if dim > FLAT_FROM:
                values[FLAT_FROM:] = values[FLAT_FROM:].mean()
            yield f"1/i^2, p = {dim}", values
    yield "1, then 1000 x 0.03", np.r_[1.0, np.full(1000, 0.03)]
    yield "1, then 1000 x 0.1", np.r_[1.0, np.full(1000, 0.1)]


def covariance_moments(rng, values, num, trials):
    """tr S, tr S^2 and lambda_max(S) of sample covariances; a long flat part of the spectrum is one Wishart draw."""
    n = num - 1
    flat = int(np.sum(values == values[-1]))
    head = values if flat <= n else values[:-flat]
    wishart = np.zeros((trials, n, n))
    if flat > n:  # Bartlett's decomposition
        lower = np.tril(rng.standard_normal((trials, n, n)), -1)
        index = np.arange(n)
        lower[:, index, index] = np.sqrt(rng.chisquare(flat - index, (trials, n)))
        wishart += values[-1] * (lower @ lower.transpose(0, 2, 1))
    if head.size:
        x = rng.standard_normal((trials, n, head.size)) * np.sqrt(head)
        # The small one of X X' and X' X has the same eigenvalues.
        wishart = x.transpose(0, 2, 1) @ x if head is values and head.size < n else wishart + x @ x.transpose(0, 2, 1)
    eigenvalues = np.linalg.eigvalsh(wishart) / n
    return np.stack([eigenvalues.sum(1), (eigenvalues**2).sum(1), eigenvalues[:, -1]])


def mean_moments(rng, values, num, trials):
    """First and last coordinate and squared norm of X_bar - mu (independent of S)."""
    first, last = rng.standard_normal((2, trials)) * np.sqrt(values[[0, -1]] / num)[:, None]
    if values.size == 1:
        return first, first, first**2
    middle, counts = np.unique(values[1:-1], return_counts=True)
    rest = sum((v * rng.chisquare(c, trials) / num for v, c in zip(middle, counts, strict=True)), np.zeros(trials))
    return first, last, first**2 + last**2 + rest


def norm_failures(spread, centre, values, num, delta):
    """The worst failure rate over delta with its place, and the width at mu = 0."""
    first, last, square = centre

    def bound(norm_square):
        return squared_norm_bound_from_moments(np.stack([norm_square - spread[0] / num, *spread]), num, delta)

    fails = {}
    for ratio in RATIOS:
        norm = np.sqrt(ratio * values.sum() / num)
        for direction, noise in (("largest", first), ("smallest", last)):
            missed = bound(square + 2 * norm * noise + norm**2) < norm**2
            fails[f"{direction}, {ratio:g}"] = np.mean(missed) / delta
    worst = max(fails, key=lambda key: fails[key])
    return fails[worst], worst, np.median(bound(square)) / np.median(square)


def calibrate_norm(rng, trials):
    print(f"\n{'squared_norm_upper_bound':24}{'R':>4}{'delta':>8}{'fails':>8}{'worst at':>22}{'width':>8}")
    for num in (16, 32, 64):
        for name, values in spectra():
            parts = [covariance_moments(rng, values, num, min(1000, trials - k)) for k in range(0, trials, 1000)]
            spread = np.concatenate(parts, axis=1)
            centre = mean_moments(rng, values, num, trials)
            for delta in (0.01, 0.005):
                fails, worst, width = norm_failures(spread, centre, values, num, delta)
                print(f"{name:24}{num:4}{delta:8}{fails:8.2f}{worst:>22}{width:8.2f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=20_000)
    arguments = parser.parse_args()
    started = time.perf_counter()
    generator = np.random.default_rng(0)
    calibrate_mean(generator, arguments.trials)
    calibrate_norm(generator, arguments.trials)
    print(f"\n{arguments.trials} trials a cell, {time.perf_counter() - started:.0f} s")
