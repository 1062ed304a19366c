"""What estimators that hold a `provi.Fit` share: how it is stored and pickled, and the predictions of two classes."""

import dataclasses
import pickle
from abc import abstractmethod
from typing import Any

import numpy as np
from scipy.special import expit
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted
from sklearn.utils.validation import validate_data as validate

from provi.core.arguments import double_precision
from provi.core.frames import check_unmasked
from provi.result import Fit
from provi.result.predictors import label_log_odds
from provi.targets.likelihoods import AbstractLikelihood, BernoulliLogit, BernoulliProbit


class AbstractCertifiedEstimator(BaseEstimator):
    """An estimator with `fit_`, `elbo_`, `certificate_` and `likelihood_`; pickled without the target."""

    likelihood_: AbstractLikelihood

    @abstractmethod
    def predict_latent(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of the latent number at each row of X."""

    def _store_fit(self, found: Fit, likelihood: AbstractLikelihood, remedy: str) -> None:
        """Keep a fit; one without a finite ELBO is an error that names the `remedy`."""
        if not np.isfinite(float(found.elbo)):
            raise ValueError(f"The ELBO is not finite ({found.message}): {remedy}.")
        self.likelihood_, self.fit_ = likelihood, found
        self.elbo_, self.certificate_ = float(found.elbo), found.certificate

    def __getstate__(self):
        state: Any = super().__getstate__()
        if "fit_" in state:
            # What computes a certificate again holds the data, and cannot be pickled; the target holds them, too.
            certificate = dataclasses.replace(self.certificate_, recompute=None)
            posterior = dataclasses.replace(self.fit_.posterior, target=None)
            found = dataclasses.replace(self.fit_, certificate=certificate, target=None, posterior=posterior)
            state = {**state, "fit_": found, "certificate_": certificate}
        return {"pickled": pickle.dumps(state)}

    @double_precision
    def __setstate__(self, state):
        # In double precision: JAX unpickles arrays as float32 for a user who has not enabled 64 bits.
        super().__setstate__(pickle.loads(state["pickled"]))


class AbstractBinaryClassifier(ClassifierMixin, AbstractCertifiedEstimator):
    """Predictions of two classes from a latent number with a Gaussian distribution, and a likelihood of labels 0 and 1.

    All are averages over that distribution, and none the probability at its mean. With one class in y the model is
    fitted to equal labels, and predicts that class.
    """

    classes_: np.ndarray

    def decision_function(self, X: Any) -> np.ndarray:
        """The log-odds of the predictive probability of `classes_[1]`; the latent number is in `predict_latent`."""
        mean, variance = self.predict_latent(X)
        return label_log_odds(self.likelihood_, mean, variance)

    def predict_proba(self, X: Any) -> np.ndarray:
        """The predictive probabilities, a column for each of `classes_`: averages over the posterior."""
        odds = self.decision_function(X)
        if len(self.classes_) == 1:
            return np.ones((len(odds), 1), odds.dtype)
        return expit(np.stack([-odds, odds], axis=1))

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """The logarithms of `predict_proba`, also where a probability is too small for a floating-point number."""
        odds = self.decision_function(X)
        if len(self.classes_) == 1:
            return np.zeros((len(odds), 1), odds.dtype)
        return -np.logaddexp(0, np.stack([odds, -odds], axis=1))

    def predict(self, X: Any) -> np.ndarray:
        """The more probable class."""
        check_is_fitted(self)
        if isinstance(self.likelihood_, BernoulliLogit | BernoulliProbit):
            score = self.predict_latent(X)[0]  # of the same sign as the log-odds, by symmetry, and without an integral
        else:
            score = self.decision_function(X)
        return self.classes_[np.where(score > 0, len(self.classes_) - 1, 0)]

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags


def read_two_classes(labels: Any, model: str) -> tuple[np.ndarray, np.ndarray]:
    """The classes in sorted order, at most two, and y as 1.0 for the last one and 0.0 for the other."""
    check_classification_targets(labels)
    classes = np.unique(labels)
    if len(classes) > 2:
        raise ValueError(
            f"Only binary classification is supported. The type of the target is {type_of_target(labels)}, with "
            f"{len(classes)} classes: wrap the model, sklearn.multiclass.OneVsRestClassifier({model}())."
        )
    return classes, (labels == classes[-1]).astype(float)


def validate_data(estimator: Any, X: Any, y: Any = "no_validation", **options: Any) -> Any:
    """scikit-learn's function of this name, which would drop the mask of a masked array in silence."""
    check_unmasked("X", X)
    check_unmasked("y", y)
    return validate(estimator, X, y, **options)
