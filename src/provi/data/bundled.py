"""Data sets that come with scikit-learn."""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Table:
    """A design matrix with column names, and a response."""

    features: np.ndarray
    response: np.ndarray
    names: tuple[str, ...]


def breast_cancer(standardise: bool = True) -> Table:
    """The Wisconsin breast-cancer data, 569 x 30, response 1 = malignant; columns standardised by default."""
    try:
        from sklearn.datasets import load_breast_cancer
    except ImportError:
        raise ImportError("This data set comes with scikit-learn: pip install 'provi[models]'.") from None
    data = load_breast_cancer()
    features = np.asarray(data.data, np.float64)  # pyright: ignore[reportAttributeAccessIssue]
    if standardise:
        features = (features - features.mean(axis=0)) / features.std(axis=0)
    # scikit-learn codes malignant as 0; the event of interest is 1 here.
    response = 1 - np.asarray(data.target)  # pyright: ignore[reportAttributeAccessIssue]
    names = tuple(str(name) for name in data.feature_names)  # pyright: ignore[reportAttributeAccessIssue]
    return Table(features, response, names)
