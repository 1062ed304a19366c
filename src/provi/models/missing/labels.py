"""Labels of any type to -1 and 1, for models of two classes."""

from typing import Any

import numpy as np
from sklearn.utils import column_or_1d
from sklearn.utils.multiclass import check_classification_targets, type_of_target


def read_labels(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The two classes, sorted, and 1 where a label is the second, -1 elsewhere."""
    check_classification_targets(labels)
    classes = np.unique(labels)
    if len(classes) > 2:
        raise ValueError(
            f"Only binary classification is supported. The type of the target is {type_of_target(labels)}, with "
            f"{len(classes)} classes: merge some, or wrap the model in sklearn.multiclass.OneVsRestClassifier."
        )
    if len(classes) < 2:
        raise ValueError(f"y has one class only, {shown(classes[0])}; rows of two classes are needed.")
    return classes, np.where(labels == classes[1], 1.0, -1.0)


def match_labels(y: Any, classes: np.ndarray, num_rows: int) -> np.ndarray:
    """1 and -1 for labels that must be of the `classes` of an earlier fit."""
    labels = column_or_1d(y)
    if len(labels) != num_rows:
        raise ValueError(f"y has {len(labels)} labels, but X has {num_rows} rows.")
    unknown = np.setdiff1d(labels, classes)
    if len(unknown):
        raise ValueError(f"y has the label {shown(unknown[0])}, but the model knows {shown(classes)}.")
    return np.where(labels == classes[1], 1.0, -1.0)


def shown(label: Any) -> str:
    """A NumPy label, or an array of them, as Python shows it."""
    return repr(label.tolist() if isinstance(label, np.ndarray | np.generic) else label)
