"""What the model is worth on rows it has not seen: the log-loss of a patient, beside common ways out.

Where it says something about the label that an entry is missing, indicators of missing entries help: with the model and
with mean imputation alike, so both are measured.
"""

import dataclasses
import math
import time
import warnings
from collections.abc import Callable
from functools import partial

import numpy as np

from provi.models import MissingLogisticRegression

MODEL, MEANS, COMPLETE = "MissingLogisticRegression", "mean imputation", "complete cases"
MODEL_INDICATORS, MEANS_INDICATORS = f"{MODEL}, indicators", f"{MEANS}, indicators"
TEST_SHARE = 0.2


@dataclasses.dataclass(frozen=True)
class HoldOut:
    """Log-losses of the held-out rows in nats a row, one number a split; `seconds`: wall-clock time of a whole fit.

    `seconds` is the second fit of all rows, standard errors and log-likelihood included: nothing is compiled.
    """

    title: str
    losses: dict[str, np.ndarray]
    seconds: float

    def difference(self, method: str, model: str = MODEL) -> tuple[float, float]:
        """The mean of the model's loss minus that of `method`, over the splits, and its standard error."""
        paired = self.losses[model] - self.losses[method]
        return float(paired.mean()), float(paired.std(ddof=1) / math.sqrt(len(paired)))


def hold_out(title: str, features: np.ndarray, response: np.ndarray, splits: int, seed: int) -> HoldOut:
    """`splits` random splits, a fifth of the rows held out in each; the same splits for all methods."""
    methods: dict[str, Callable] = {
        MODEL: _model,
        MODEL_INDICATORS: partial(_model, indicators=True),
        MEANS: _filled_with_means,
        MEANS_INDICATORS: _filled_with_indicators,
        COMPLETE: _complete_cases,
    }
    losses: dict[str, list[float]] = {name: [] for name in methods}
    for split in range(splits):
        order = np.random.default_rng([seed, split]).permutation(len(features))
        test, train = np.split(order, [int(TEST_SHARE * len(order))])
        for name, predict in methods.items():
            probability = predict(features[train], response[train], features[test])
            own = np.where(response[test] == 1, probability, 1 - probability)
            losses[name].append(float(-np.mean(np.log(own))))
    MissingLogisticRegression().fit(features, response)
    began = time.perf_counter()
    MissingLogisticRegression().fit(features, response)
    seconds = time.perf_counter() - began
    return HoldOut(title, {name: np.array(values) for name, values in losses.items()}, seconds)


def _model(features: np.ndarray, response: np.ndarray, test: np.ndarray, indicators: bool = False) -> np.ndarray:
    model = MissingLogisticRegression(missing_indicators=indicators).fit(features, response)
    return model.predict_proba(test)[:, 1]


def _filled_with_means(features: np.ndarray, response: np.ndarray, test: np.ndarray) -> np.ndarray:
    means = np.nanmean(features, axis=0)
    return _logistic_regression(_filled(features, means), response, _filled(test, means))


def _filled_with_indicators(features: np.ndarray, response: np.ndarray, test: np.ndarray) -> np.ndarray:
    """Beside the means an indicator of each column with 1% to 99% missing, equal ones once."""
    means, missing = np.nanmean(features, axis=0), np.isnan(features)
    often = np.flatnonzero((missing.mean(axis=0) >= 0.01) & (missing.mean(axis=0) <= 0.99))
    often = often[np.unique(missing[:, often], axis=1, return_index=True)[1]]
    wide = [np.concatenate([_filled(x, means), np.isnan(x)[:, often]], axis=1) for x in (features, test)]
    return _logistic_regression(wide[0], response, wide[1])


def _complete_cases(features: np.ndarray, response: np.ndarray, test: np.ndarray) -> np.ndarray:
    """Trained on the rows without missing entries; those of the others are the means when it predicts."""
    complete = ~np.isnan(features).any(axis=1)
    means = np.nanmean(features, axis=0)
    return _logistic_regression(features[complete], response[complete], _filled(test, means))


def _filled(features: np.ndarray, means: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(features), means, features)


def _logistic_regression(features: np.ndarray, response: np.ndarray, test: np.ndarray) -> np.ndarray:
    """Without a penalty, as the model is without one; in standardised columns."""
    from sklearn.linear_model import LogisticRegression

    centre, scale = features.mean(axis=0), features.std(axis=0)
    with warnings.catch_warnings():
        # scikit-learn releases disagree on how "no penalty" is spelt, and warn of the other spelling.
        warnings.simplefilter("ignore", FutureWarning)
        model = LogisticRegression(C=np.inf, max_iter=1000).fit((features - centre) / scale, response)
    return model.predict_proba((test - centre) / scale)[:, 1]
