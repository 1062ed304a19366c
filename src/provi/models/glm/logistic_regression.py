"""Bayesian logistic regression with the scikit-learn interface and a certificate."""

from typing import Any

import numpy as np
from sklearn.utils.validation import validate_data

from provi.core.arguments import double_precision
from provi.models.certified_estimator import AbstractBinaryClassifier, read_two_classes
from provi.models.glm.estimator import AbstractGLM
from provi.targets.linear_model import AbstractLinearModel
from provi.targets.regressions import LogisticRegression as Target


class LogisticRegression(AbstractBinaryClassifier, AbstractGLM):
    r"""$P(y = 1) = \sigma(b + x'w)$ under a Gaussian prior: the best Gaussian approximation of the posterior.

    An estimator: `fit(X, y)`, `predict(X)`. The log density that it fits is `provi.targets.LogisticRegression`.

    **Arguments:**

    - `prior_scale`: the standard deviation of the coefficients w under the prior, one for all or one for each column.
      `prior_covariance`: in its place their variances or covariance matrix. `prior_mean`: a number, or one a column.
    - `fit_intercept`: whether there is a b. Its prior is N(0, `intercept_scale`^2), independent of w.
    - `tol`: the fit ends when the ELBO is proven to be within `tol` nats of the best Gaussian's.
    - `progress`: whether to show a bar. `random_state`: of the fit, where it draws random numbers.

    **Attributes:** `classes_`; `coef_`, (1, columns), and `intercept_`, (1,), the posterior means, and `coef_sd_` and
    `intercept_sd_` the standard deviations; `elbo_`, a lower bound on the log evidence, in nats; `certificate_`, what
    is proven about it; `fit_`, the `provi.Fit` with the posterior; `n_iter_`, steps of the fit;
    `n_features_in_`, `feature_names_in_`.

    The posterior has a full covariance up to 1000 columns, and with fewer than 5000 rows, if there are more columns
    than rows; otherwise a diagonal one. Scale the columns: the prior is the same for all.

    Only two classes: wrap it in `sklearn.multiclass.OneVsRestClassifier` for more. With one class in y it is fitted to
    equal labels, and predicts that class.
    """

    @double_precision
    def fit(self, X: Any, y: Any) -> "LogisticRegression":
        """Fit to the rows of X and their labels y, of any type."""
        values, labels = validate_data(self, X, y, dtype=[np.float64, np.float32])
        classes, response = read_two_classes(labels, type(self).__name__)
        mean, deviation = self._fit_target(values, response)
        self.classes_ = classes
        self.intercept_, self.coef_ = mean[:1], mean[None, 1:]
        self.intercept_sd_, self.coef_sd_ = deviation[:1], deviation[None, 1:]
        return self

    def _target(self, X: np.ndarray, y: np.ndarray, **prior: Any) -> AbstractLinearModel:
        return Target(X, y, **prior)
