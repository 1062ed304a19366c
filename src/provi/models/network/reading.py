"""The user's data and network, checked: images and tables to float32, labels to class numbers, a network to train."""

import dataclasses
import warnings
from typing import Any

import equinox as eqx
import jax
import numpy as np
from sklearn.utils.multiclass import check_classification_targets, type_of_target

from provi.models.certified_estimator import validate_data
from provi.nets import Perceptron
from provi.targets.bayesian_network import BayesianNetwork

LIKELIHOODS = ("auto", "categorical", "gaussian")
HIDDEN_UNITS = 50


@dataclasses.dataclass(frozen=True)
class Response:
    """y as the target takes it: class numbers with the `classes`, or real columns and None."""

    values: np.ndarray
    classes: np.ndarray | None
    num_outputs: int


def read_inputs(model: Any, X: Any, y: Any = "no_validation", *, reset: bool) -> tuple[np.ndarray, Any]:
    """X in float32, pixels of type uint8 divided by 255, and y as an array; both finite, of the same length.

    Without y, as for predictions, the second is not looked at.
    """
    pixels = are_pixels(X)
    options: dict[str, Any] = {"dtype": np.float32, "allow_nd": True, "reset": reset}
    if y is not None and not isinstance(y, str):
        columns, numeric = model.likelihood != "categorical", model.likelihood == "gaussian"
        inputs, y = validate_data(model, X, y, **options, multi_output=columns, y_numeric=numeric)
    else:
        absent: Any = y
        inputs: Any = validate_data(model, X, absent, **options)  # which refuses None
    return inputs / np.float32(255) if pixels else inputs, y


def are_pixels(X: Any) -> bool:
    """Whether X is images of type uint8: an array, or a list of arrays."""
    first = X[0] if isinstance(X, list | tuple) and X else X
    return getattr(first, "dtype", None) == np.uint8 and np.ndim(X) > 2


def warn_of_scale(fitted: tuple[bool, float], X: Any, inputs: np.ndarray) -> None:
    """A warning if of training and prediction one has pixels divided by 255, the other numbers of another scale.

    `fitted`: `are_pixels` and the largest number of the training; `inputs` is X as it was read.
    """
    if are_pixels(X) != fitted[0] and inputs.ndim > 2 and max(fitted[1], float(inputs.max())) > 1:
        one, other = ("uint8, divided by 255", "of another type, used as they are")[:: 1 if fitted[0] else -1]
        warnings.warn(
            f"The images of the training were {one}, these are {other}, and reach beyond 1: bring them to one type.",
            UserWarning,
            stacklevel=4,
        )


def check_shape(inputs: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Rows of the shape seen in `fit`."""
    if inputs.shape[1:] != shape:
        raise ValueError(
            f"X has rows of shape {inputs.shape[1:]}, but the network was fitted to rows of shape {shape}."
        )
    return inputs


def read_response(likelihood: Any, y: Any) -> Response:
    """What y is, by `likelihood` or by its looks: scikit-learn's `type_of_target` tells classes from numbers."""
    if not isinstance(likelihood, str) or likelihood not in LIKELIHOODS:
        raise ValueError(f"likelihood must be one of {', '.join(map(repr, LIKELIHOODS))}, not {likelihood!r}.")
    array = one_axis(y)
    if likelihood == "auto" and array.ndim == 2 and np.isin(array, (0, 1)).all() and (array.sum(axis=1) == 1).all():
        raise ValueError(
            "y looks like classes in one-hot columns: pass y.argmax(axis=1), or likelihood='gaussian' for numbers."
        )
    if likelihood == "categorical" or (likelihood == "auto" and type_of_target(array) in ("binary", "multiclass")):
        check_classification_targets(array)
        if array.ndim != 1:
            raise ValueError(f"y must have one label a row for likelihood='categorical'; its shape is {array.shape}.")
        classes, numbers = np.unique(array, return_inverse=True)
        if len(classes) < 2:
            raise ValueError(f"y has one class only, {classes[0]!r}: a classifier needs at least two.")
        return Response(numbers.astype(np.int32), classes, len(classes))
    try:
        with np.errstate(over="ignore"):
            columns = array.astype(np.float32).reshape(len(array), -1)
    except ValueError:
        raise ValueError("y must hold numbers for likelihood='gaussian'; for labels use 'categorical'.") from None
    if not np.isfinite(columns).all():
        raise ValueError("y has entries that are too large for float32: scale them.")
    return Response(columns, None, columns.shape[1])


def one_axis(y: Any) -> np.ndarray:
    """A single column as a vector, anything else as it is."""
    array = np.asarray(y)
    return array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array


def check_responses(y: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Responses (n, outputs) in float64, of the shape of the predictions."""
    values = np.asarray(y, dtype=np.float64)
    values = values[:, None] if values.ndim == 1 else values
    if values.shape != shape or not np.isfinite(values).all():
        raise ValueError(
            f"y must be finite and have the shape {shape} of the predictions; its shape is {values.shape}."
        )
    return values


def check_outputs(target: BayesianNetwork, response: Response) -> None:
    """A class for each output: probabilities of classes that nobody named could not be told from the others."""
    outputs = eqx.filter_eval_shape(target.forward, target.start, target.inputs[:1]).shape[1]
    if response.classes is not None and outputs != response.num_outputs:
        raise ValueError(
            f"network has {outputs} outputs, but y has {response.num_outputs} classes: they must be as many. A "
            f"function make(key, num_outputs) as network is told their number."
        )


def class_numbers(y: Any, classes: np.ndarray) -> np.ndarray:
    """The places of labels among the classes of the training."""
    labels = one_axis(y)
    known = np.isin(labels, classes)
    if labels.ndim != 1 or not known.all():
        strange = labels[~known][:1] if labels.ndim == 1 else labels.shape
        raise ValueError(f"y must hold labels among classes_, {classes}, in one axis; not {strange}.")
    return np.searchsorted(classes, labels)


def make_network(network: Any, key: Any, row_shape: tuple[int, ...], num_outputs: int) -> tuple[Any, Any]:
    """A module and None, or a function `apply(params, x)` and its parameters."""
    if network is None:
        return Perceptron(key, row_shape[0], [HIDDEN_UNITS], num_outputs), None
    if isinstance(network, eqx.Module):
        return network, None
    if not callable(network):
        raise ValueError(
            f"network must be None, an Equinox module, or a function make(key, num_outputs) that returns one or a pair "
            f"(apply, params), not {network!r}."
        )
    made = network(key, num_outputs)
    if isinstance(made, tuple) and len(made) == 2:
        return made
    if not isinstance(made, eqx.Module):
        raise ValueError(
            f"network(key, num_outputs) must return an Equinox module or a pair (apply, params), not "
            f"{type(made).__name__}."
        )
    return made, None


def split_seed(seed: int) -> tuple[Any, Any]:
    """Keys of the first weights and of predictions; the training has the seed itself."""
    first, second = jax.random.split(jax.random.key(seed))
    return first, second
