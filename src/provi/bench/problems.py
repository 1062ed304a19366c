"""The data of the benchmarks, all as logistic regressions with a unit prior."""

from collections.abc import Callable

import numpy as np

from provi.bench.protocol import Problem
from provi.data.loaders import breast_cancer as breast_cancer_table
from provi.data.loaders import load


def breast_cancer() -> Problem:
    """569 x 31: standardised columns and an intercept."""
    table = breast_cancer_table()
    return Problem("breast cancer", _with_intercept(table.features), table.response)


def correlated(terms: int = 20_000, dim: int = 100, correlation: float = 0.9, seed: int = 0) -> Problem:
    """Columns with the AR(1) correlation `correlation^|i-j|`, labels from the model itself."""
    rng = np.random.default_rng(seed)
    design = rng.normal(size=(terms, dim))
    for column in range(1, dim):
        design[:, column] = correlation * design[:, column - 1] + (1 - correlation**2) ** 0.5 * design[:, column]
    coefficients = 0.3 * rng.normal(size=dim)
    response = rng.random(terms) < 1 / (1 + np.exp(-design @ coefficients))
    return Problem(f"correlated {terms} x {dim}", design, response)


def german() -> Problem:
    """1,000 x 25: standardised columns and an intercept."""
    table = load("german_numeric").table()
    columns = (table.features - table.features.mean(axis=0)) / table.features.std(axis=0)
    return Problem("German credit", _with_intercept(columns), table.response)


def a9a() -> Problem:
    """32,561 x 124: the training set's binary columns and an intercept."""
    table = load("a9a").table("train")
    return Problem("a9a", _with_intercept(table.features), table.response)


def w8a() -> Problem:
    """49,749 x 301: binary columns and an intercept."""
    table = load("w8a").table()
    return Problem("w8a", _with_intercept(table.features), table.response)


def mnist_3v5() -> Problem:
    """11,552 x 785: the training images of 3 (label 1) and 5, pixels / 255, and an intercept."""
    arrays = load("mnist").arrays
    labels = arrays["y_train"]
    kept = (labels == 3) | (labels == 5)
    pixels = arrays["X_train"][kept].reshape(int(kept.sum()), -1) / 255
    return Problem("MNIST 3 v 5", _with_intercept(pixels), labels[kept] == 3)


BLACKBOX_PROBLEMS: dict[str, Callable[[], Problem]] = {
    "breast-cancer": breast_cancer,
    "correlated": correlated,
    "german": german,
    "a9a": a9a,
}

GLM_PROBLEMS: dict[str, Callable[[], Problem]] = {
    "breast-cancer": breast_cancer,
    "german": german,
    "a9a": a9a,
    "w8a": w8a,
    "mnist-3v5": mnist_3v5,
}


def _with_intercept(columns: np.ndarray) -> np.ndarray:
    return np.column_stack([np.ones(len(columns)), columns])
