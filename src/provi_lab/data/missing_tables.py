r"""Tables with missing entries for logistic regression: made-up ones with the truth they come from, and SUPPORT2.

Made-up rows are $z_i \sim N(\beta, \Omega)$ with $\Omega_{jk} = \rho^{|j-k|}$, their labels
$P(y_i = 1) = \sigma(\delta_0 + \delta'z_i)$.
"""

import dataclasses

import numpy as np

from provi.data.loaders import Table, load

NEIGHBOUR_SLOPE, LABEL_SLOPE = 1.0, 0.5
"""How the log odds of an entry's being missing at random grow with its left neighbour, and with the label."""


@dataclasses.dataclass(frozen=True, eq=False)
class MissingTable:
    """A table with NaN where an entry is missing, and what it was made of.

    - `features`: as a user gets them; `complete`: the same rows before entries were taken out.
    - `response`: 0 or 1; `coefficients`: the intercept first; `mean`, `covariance`: of the covariates.
    """

    features: np.ndarray
    response: np.ndarray
    complete: np.ndarray
    coefficients: np.ndarray
    mean: np.ndarray
    covariance: np.ndarray


def synthetic_missing(
    seed: int, terms: int, columns: int, share: float, mechanism: str = "mcar", correlation: float = 0.5
) -> MissingTable:
    r"""A table of which about the `share` of all entries is missing; equal arguments give equal tables.

    - `"mcar"`: each entry is missing with probability `share`, whatever the values are.
    - `"mar"`: columns 0, 2, 4, ... are always observed. An entry of column 1, 3, 5, ... is missing with probability
      $\sigma(a + z_{j-1} - \beta_{j-1} + (y - 1/2)/2)$: it depends on what is observed alone. The number $a$ is chosen
      so that the expected number of missing entries in these columns makes the `share` of the whole table.

    **Arguments:** `correlation` is $\rho$, of neighbouring columns, between -1 and 1.
    """
    if mechanism not in ("mcar", "mar"):
        raise ValueError(f"mechanism must be 'mcar' or 'mar', not {mechanism!r}.")
    largest = (columns // 2) / columns if mechanism == "mar" else 1.0
    if not 0 <= share < largest:
        raise ValueError(f"share must be at least 0 and below {largest:g} with mechanism {mechanism!r}, not {share:g}.")
    if not -1 < correlation < 1:
        raise ValueError(f"correlation must be between -1 and 1, not {correlation:g}.")
    rng = np.random.default_rng([seed, terms, columns])
    places = np.arange(columns)
    covariance = float(correlation) ** np.abs(places[:, None] - places)
    mean = np.resize([0.5, -1.0, 1.5, 0.0], columns)
    slopes = np.resize([1.0, -0.8, 0.6, -0.4, 0.2], columns)
    # Half of the labels are ones at the mean of the covariates.
    coefficients = np.concatenate([[-slopes @ mean], slopes])
    complete = mean + rng.normal(size=(terms, columns)) @ np.linalg.cholesky(covariance).T
    log_odds = coefficients[0] + complete @ slopes
    response = (rng.random(terms) < _sigmoid(log_odds)).astype(float)
    if mechanism == "mcar":
        probability = np.full((terms, columns), float(share))
    else:
        probability = _missing_at_random(complete - mean, response, share)
    missing = rng.random((terms, columns)) < probability
    return MissingTable(np.where(missing, np.nan, complete), response, complete, coefficients, mean, covariance)


def _missing_at_random(centred: np.ndarray, response: np.ndarray, share: float) -> np.ndarray:
    """The probability of each entry's being missing; zero in every other column."""
    probability = np.zeros(centred.shape)
    if share == 0:
        return probability
    num_missing = centred.shape[1] // 2
    neighbours = centred[:, 0 : 2 * num_missing : 2]
    log_odds = NEIGHBOUR_SLOPE * neighbours + LABEL_SLOPE * (response - 0.5)[:, None]
    wanted = share * centred.shape[1] / num_missing
    low, high = -50.0, 50.0
    for _ in range(60):  # bisection: the mean probability grows with the intercept
        middle = (low + high) / 2
        low, high = (middle, high) if _sigmoid(log_odds + middle).mean() < wanted else (low, middle)
    probability[:, 1 : 2 * num_missing : 2] = _sigmoid(log_odds + middle)
    return probability


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return np.exp(-np.logaddexp(0.0, -x))


SKEWED = ("wblc", "alb", "bili", "crea", "glucose", "bun")
"""Right-skewed columns (skewness of 1.9 to 4.9) that are nearly symmetric in logarithms, or at least nearer.

Not `urine`: its skewness is 1.0, and -3.3 after a logarithm because of its zeros.
"""


def support2() -> Table:
    """9105 patients and 16 columns, 17 % of the entries missing; the response is death in hospital.

    The columns of `SKEWED` are logarithms, of 1 + x in those with zeros, named `log NAME` and `log(1 + NAME)`.
    Raises `FileNotFoundError`, with what to do about it, where the data are not here.
    """
    table = load("support2").table()
    features, names = np.array(table.features, float), list(table.names)
    for name in SKEWED:
        column = names.index(name)
        zeros = bool((features[:, column] == 0).any())
        features[:, column] = np.log1p(features[:, column]) if zeros else np.log(features[:, column])
        names[column] = f"log(1 + {name})" if zeros else f"log {name}"
    return Table(features, np.asarray(table.response, float), tuple(names))
