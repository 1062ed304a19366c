"""What a posterior of the suite is: a NumPyro model, its data, and how its reference is made."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

MEAN_ERROR, SD_ERROR = 0.1, 0.1
"""What counts as right: means within a tenth of a standard deviation, deviations within a tenth of themselves."""

Moments = dict[str, tuple[np.ndarray, np.ndarray]]
"""Of each latent site its means and its standard deviations."""


@dataclasses.dataclass(frozen=True)
class Posterior:
    """One posterior. The quantities that are compared are the values of all latent sites, in the model's own words.

    - `data()`: the arguments of the model, made with a fixed seed.
    - `decentre`: locations and scales that the reference run moves out of the prior (the same posterior, in
      coordinates that suit NUTS); the model itself stays as a user wrote it. `shapes`: of the distribution there, the
      parameters that are neither location nor scale.
    - `reference`: another model of the same posterior, or of the part of it that `complete` makes whole, with the
      same names.
    - `complete(draws)`: the draws of the whole posterior from those of `reference`, by name; for labels that switch.
    - `exact(*data)`: moments in closed form or by quadrature, instead of a run.
    """

    name: str
    kind: str
    model: Callable[..., Any]
    data: Callable[[], tuple[Any, ...]] = tuple
    decentre: tuple[str, ...] = ()
    shapes: tuple[str, ...] = ()
    reference: Callable[..., Any] | None = None
    complete: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]] | None = None
    exact: Callable[..., Moments] | None = None


def generator(seed: int) -> np.random.Generator:
    """Random numbers for data."""
    return np.random.default_rng(seed)


def design(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """Correlated standardised predictors."""
    common = rng.normal(size=(rows, 1))
    table = 0.8 * rng.normal(size=(rows, columns)) + 0.6 * common
    return (table - table.mean(0)) / table.std(0)


def errors(draws: dict[str, np.ndarray], reference: dict[str, Any]) -> dict[str, Any]:
    """The worst error of a mean, in deviations, and the ratio of deviations that is farthest from one."""
    shifts, ratios = [], []
    for name, site in reference["sites"].items():
        mean, sd = np.ravel(site["mean"]), np.ravel(site["sd"])
        values = np.asarray(draws[name], float).reshape(len(draws[name]), -1)
        varies = sd > 1e-12
        shifts += list(np.abs(values.mean(0) - mean)[varies] / sd[varies])
        ratios += list(values.std(0)[varies] / sd[varies])
    shift, ratio = float(np.max(shifts)), float(ratios[int(np.argmax(np.abs(np.log(ratios))))])
    return {"mean_error": shift, "sd_ratio": ratio, "right": bool(shift <= MEAN_ERROR and abs(ratio - 1) <= SD_ERROR)}
