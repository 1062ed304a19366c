"""The table that `MissingLogisticRegression.summary` returns: estimates, errors, tests, shares of missing entries."""

import dataclasses
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.stats import norm

from provi.models.missing.reading import shown


@dataclasses.dataclass(frozen=True)
class CoefficientSummary:
    """Coefficients with Wald's tests and intervals; prints itself, `to_dict()` for code.

    - `missing`: the share of each column's entries that are missing; NaN for the intercept and for indicators.
    - `title`: what is said above the table about the fit as a whole.
    """

    title: str
    names: tuple[str, ...]
    coefficient: np.ndarray
    standard_error: np.ndarray
    interval: np.ndarray
    missing: np.ndarray
    level: float

    @property
    def z(self) -> np.ndarray:
        """Coefficient / standard error."""
        return self.coefficient / self.standard_error

    @property
    def p_value(self) -> np.ndarray:
        """2 P(N > |z|): of the hypothesis that the coefficient is zero."""
        return 2 * norm.sf(np.abs(self.z))

    def to_dict(self) -> dict[str, dict[str, float]]:
        """name -> {"coefficient", "standard_error", "z", "p_value", "low", "high", "missing"}."""
        numbers = {
            "coefficient": self.coefficient,
            "standard_error": self.standard_error,
            "z": self.z,
            "p_value": self.p_value,
            "low": self.interval[:, 0],
            "high": self.interval[:, 1],
            "missing": self.missing,
        }
        return {name: {key: float(x[i]) for key, x in numbers.items()} for i, name in enumerate(self.names)}

    def table(self, largest: int = 60) -> Table:
        """A rich table of at most `largest` rows."""
        tail = 50 * (1 - self.level)
        table = Table(show_edge=False, pad_edge=False)
        table.add_column("column")
        heads = ("coefficient", "std. error", "z", "p", f"{tail:g}%", f"{100 - tail:g}%", "missing")
        for head in heads:
            table.add_column(head, justify="right")
        for name, row in list(self.to_dict().items())[:largest]:
            four = (row["coefficient"], row["standard_error"])
            table.add_row(
                name,
                *(_number(x, ".4g") for x in four),
                _number(row["z"], ".2f"),
                _number(row["p_value"], ".2g"),
                _number(row["low"], ".4g"),
                _number(row["high"], ".4g"),
                _number(row["missing"], ".0%"),
            )
        if len(self.names) > largest:
            table.add_row(f"... {len(self.names) - largest} more", *([""] * len(heads)))
        return table

    def __str__(self) -> str:
        console = Console(width=120, highlight=False)
        with console.capture() as capture:
            console.print(self.title, markup=False, soft_wrap=True)
            console.print()
            console.print(self.table())
        return capture.get()


def summarise(
    model: Any, coefficients: np.ndarray, intervals: np.ndarray, missing: np.ndarray, num_rows: int, level: float
) -> CoefficientSummary:
    """Of a fitted `MissingLogisticRegression`; `missing` are the shares of the columns' entries that are missing."""
    names = [str(name) for name in getattr(model, "feature_names_in_", [f"x{place}" for place in range(len(missing))])]
    indicators = [f"{names[place]} missing" for place in model.indicator_features_]
    no, yes = map(shown, model.classes_)
    given = " given the indicators of missing entries" if indicators else ""
    likelihoods = f"{model.log_likelihood_:.2f}, log p(y | x_obs) {model.conditional_log_likelihood_:.2f}{given}"
    title = (
        f"Logistic regression of {yes} against {no}: {num_rows} rows, {missing.mean():.1%} of the entries missing.\n"
        f"log p(y, x_obs) {likelihoods}, AIC {model.aic_:.1f}, BIC {model.bic_:.1f}; "
        f"estimated gap to the maximum {model.gap_:.2g} nats."
    )
    shares = np.concatenate([[np.nan], missing, np.full(len(indicators), np.nan)])
    words = ("(intercept)", *names, *indicators)
    return CoefficientSummary(title, words, coefficients, model.standard_errors_, intervals, shares, level)


def _number(value: float, form: str) -> str:
    return "" if np.isnan(value) else format(value, form)
