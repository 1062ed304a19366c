"""The HTML report of a Bayesian network: one file that needs no network, no JavaScript and no other file."""

import functools
import re
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from provi.core.files import write_text
from provi.models.network import predictive as metrics
from provi.models.network.plots import plot_reliability, plot_rotation_entropy, plot_training, rotate
from provi.models.network.reading import class_numbers
from provi.report.html.figures import Picture, inline_svg
from provi.report.style import number

DEGREES = np.arange(0, 181, 15)
_ROTATED = 500  # images that are turned, at most: thirteen predictions of each
_WORDS = {
    "accuracy": "accuracy",
    "nll": "negative log-likelihood, nats",
    "ece": "expected calibration error",
    "brier": "Brier score (0 to 2)",
    "entropy": "mean entropy, nats",
    "mutual_information": "of which disagreement, nats",
    "rmse": "root mean squared error",
}
_SHARED = {"weight": "for each weight", "tensor": "for each tensor of weights", "global": "for all weights"}


def write_report(model: Any, path: str | Path, X: Any, y: Any, title: str) -> Path:
    """Write the page of a fitted `provi.models.BayesianNetwork` and new rows X, y; returns its path."""
    path, shared = Path(path), _SHARED[model.posterior]
    found, rows = model.evaluate(X, y), model.target_.num_terms
    sections = [("Training", "Each block of data counts as at its latest visit: a little behind.", _training(model))]
    if model.classes_ is not None:
        probabilities, labels = model.predict_proba(X), class_numbers(y, model.classes_)
        words = "Expected calibration error: 15 bins of equal width (Guo et al. 2017). Small samples make it too large."
        sections.append(("Calibration", words, _reliability(probabilities, labels)))
        if np.ndim(X) > 2:
            words = (
                "Turned images are unlike those of the training: a model that knows what it knows is less sure of them."
            )
            sections.append(("Distribution shift", words, _rotation(model, X)))
    page = _environment().get_template("report.html.jinja").render(
        title=title,
        subtitle=f"{model.target_.dim:,} weights, Gaussian posterior, one standard deviation {shared}.",
        level="conditional" if model.outcome_.ok else "none",
        verdict="Nothing is proven",
        sentence=f"The posterior of a network is not log-concave, so no bound on the gap is known. The ELBO is "
        f"that of the training data; the scores are measured on {len(y):,} rows, which should be other ones.",
        warning=None if model.outcome_.ok else model.message_,
        figures=[
            ("ELBO, nats", f"{number(model.elbo_.value, 6)} ± {number(model.elbo_.standard_error, 2)}"),
            # A model that was read from a file has lost its data, and with them their number.
            *([("−ELBO per row, nats", number(-model.elbo_.value / rows))] if rows > 1 else []),
            *((_WORDS[name], number(value)) for name, value in found.items()),
            ("epochs", f"{model.n_iter_:,} in {number(model.seconds_)}\N{NO-BREAK SPACE}s"),
        ],
        sections=sections,
        call=describe_call(model),
    )  # fmt: skip
    return write_text(path, page)


def describe_call(model: Any) -> str:
    """The constructor's call as Python: a class is named by where it is, not shown as `<class ...>`."""
    return re.sub(r"<class '([\w.]+)'>", r"\1", repr(model))


def _training(model: Any) -> Picture:
    epochs, values = model.history_["epoch"], model.history_["negative_elbo"]
    words = "no finite record" if not len(values) else f"from {number(values[0])} to {number(values[-1])} nats per row"
    alt = f"Line chart of minus the ELBO over {number(epochs[-1] if len(epochs) else 0)} epochs: {words}."
    name = model.method if isinstance(model.method, str) else type(model.method).__name__
    return Picture(inline_svg(plot_training({name: (epochs, values)}), "training", alt), f"The training: {words}.")


def _reliability(probabilities: np.ndarray, labels: np.ndarray) -> Picture:
    error = number(metrics.expected_calibration_error(probabilities, labels), 2)
    alt = f"Reliability diagram: accuracy against confidence in 15 bins; the expected calibration error is {error}."
    caption = "Is it right as often as it says? Points below the dotted line: too sure; above it: not sure enough."
    return Picture(inline_svg(plot_reliability(probabilities, labels), "reliability", alt), caption)


def _rotation(model: Any, X: Any) -> Picture:
    """Pixels of type uint8 are scaled first, as the model does: turned ones are of type float32."""
    images = np.asarray(X)[:_ROTATED]
    images = images / np.float32(255) if images.dtype == np.uint8 else images
    entropies = np.stack([metrics.entropy(model.predict_proba(rotate(images, float(angle)))) for angle in DEGREES])
    middle = np.median(entropies, axis=1)
    alt = f"Entropy of predictions against rotation: median {number(middle[0], 2)} nats upright, "
    alt += f"at most {number(middle.max(), 2)}, at {DEGREES[middle.argmax()]} degrees."
    caption = (
        f"Entropy of the predictions for {len(images)} images turned by an angle: median, and 10% to 90% quantiles."
    )
    figure = plot_rotation_entropy(DEGREES, entropies, len(model.classes_))
    return Picture(inline_svg(figure, "rotation", alt), caption)


@functools.cache
def _environment() -> jinja2.Environment:
    """Everything that the template prints is escaped; the style sheet is that of the other reports."""
    loaders = [jinja2.PackageLoader(room, ".") for room in ("provi.models.network", "provi.report.html")]
    return jinja2.Environment(
        loader=jinja2.ChoiceLoader(loaders),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
