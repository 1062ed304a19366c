"""`--model missing-logistic`: maximum likelihood on incomplete rows, whose gap is estimated, not proven."""

import re
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from rich.console import Console

from provi.cli.answer import Answer, Verdict, print_plain
from provi.cli.table_data import TableData


def fit_missing(data: TableData, tol: float, seed: int, progress: bool) -> Answer:
    """Fit `MissingLogisticRegression` with its exact solver."""
    from provi.models import MissingLogisticRegression

    model: Any = MissingLogisticRegression(tol=tol, random_state=seed, progress=progress)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", UserWarning)
        try:
            model.fit(data.features.values, data.response.values.astype(int))
        except ValueError as error:
            raise ValueError(_by_name(str(error), data.features.names)) from error
    notes = [" ".join(str(warning.message).split()) for warning in caught]
    model.feature_names_in_ = np.array(data.features.names, object)  # for the table: the fit itself takes arrays
    summary = model.summary()

    def show(console: Console) -> None:
        print_plain(console, *data.description(), summary.title, "", summary.table(), *(f"Note: {n}" for n in notes))

    document: dict[str, Any] = {
        "data": data.to_dict(),
        "log_likelihood": model.log_likelihood_,
        "estimated_gap": model.gap_,
        "converged": model.converged_,
        "coefficients": [{"name": name, **row} for name, row in summary.to_dict().items()],
        "notes": notes,
    }
    return Answer(_verdict(model, tol), document, show)


def _by_name(message: str, names: Sequence[str]) -> str:
    """An error about columns by number, with their names instead, and without remedies that only Python has."""

    def named(found: re.Match) -> str:
        return re.sub(r"\d+", lambda number: repr(names[int(number[0])]), found[0])

    numbered = r"columns? \d+(?:(?:, | and )\d+(?! more))*"
    return re.sub(numbered, named, message.partition(", or give rank=")[0].rstrip(".")) + "."


def _verdict(model: Any, tol: float) -> Verdict:
    grounds = "The likelihood of incomplete rows is not log-concave, and this model has no certificate"
    if model.separated_:
        return Verdict("not certified", f"Not certified: the labels are separated, and no maximum exists. {grounds}.")
    state = "converged" if model.converged_ else "not converged"
    gap = f"the gap to the maximum is estimated at {model.gap_:.2g} nats (tol = {tol:g}), not proven"
    return Verdict("not certified", f"Not certified, {state}: {gap}. {grounds}.")
