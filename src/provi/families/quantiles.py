"""Quantiles of one coordinate of a spherical base, for credible intervals."""

import functools

import numpy as np
from scipy import optimize, special

from provi.families.bases import AbstractBase, Laplace, Normal, StudentT, Uniform


@functools.singledispatch
def marginal_quantile(base: AbstractBase, dim: int, probability: float) -> float:
    """The value x with P(u_1 <= x) = `probability`, u_1 a coordinate of `base` in dimension `dim`."""
    raise TypeError(f"There is no quantile function for {type(base).__name__}.")


@marginal_quantile.register(Normal)
def _normal(base: Normal, dim: int, probability: float) -> float:
    return float(special.ndtri(probability))


@marginal_quantile.register(StudentT)
def _student_t(base: StudentT, dim: int, probability: float) -> float:
    df = float(base.df)
    return float(special.stdtrit(df, probability) * np.sqrt((df - 2) / df))


@marginal_quantile.register(Uniform)
def _uniform(base: Uniform, dim: int, probability: float) -> float:
    """The density (1 - x^2/(d+2))^((d-1)/2) is that of a beta variable stretched to [-R, R]."""
    half = (dim + 1) / 2
    return float(np.sqrt(dim + 2) * (2 * special.betaincinv(half, half, probability) - 1))


@marginal_quantile.register(Laplace)
def _laplace(base: Laplace, dim: int, probability: float) -> float:
    """u_1 = sqrt(G) g with G ~ Gamma(k, rate k), k = (d+1)/2, so P(u_1 <= x) = E Phi(x / sqrt(G))."""
    shape = (dim + 1) / 2
    levels = (np.arange(4000) + 0.5) / 4000
    deviation = np.sqrt(special.gammaincinv(shape, levels) / shape)

    def excess(x: float) -> float:
        return float(special.ndtr(x / deviation).mean()) - probability

    return float(optimize.brentq(excess, -60, 60, xtol=1e-12))  # pyright: ignore[reportArgumentType]
