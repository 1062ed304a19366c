"""Logistic regression with missing covariates, with the scikit-learn interface: NaN is missing."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import expit
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from provi.core.arguments import check_count, double_precision
from provi.models.certified_estimator import validate_data
from provi.models.missing.conditional import Parameters
from provi.models.missing.estimation import LikelihoodFit
from provi.models.missing.imputation import draw_missing, log_odds
from provi.models.missing.reading import check_finite, match_labels, read_labels
from provi.models.missing.solving import read_options
from provi.models.missing.summary import CoefficientSummary


class MissingLogisticRegression(ClassifierMixin, LikelihoodFit, BaseEstimator):
    r"""$P(y = 1) = \sigma(\delta_0 + \delta'x)$, $x \sim N(\beta, \Omega)$: maximum likelihood from partly observed x.

    Entries that are NaN are missing (at random: whether an entry is missing may depend on what is observed, not on
    its own value). They are integrated out exactly; nothing is imputed. Complete data give ordinary logistic
    regression.

    **Arguments:**

    - `solver`: `"exact"`, EM with an exact E-step and Newton's method on the exact likelihood of the observed data;
      or with draws of the missing entries `"misso"` (Karimi et al.), `"mcem"`, `"saem"`.
    - `batch`: of `"misso"`, the share of the rows in (0, 1], or as an int the number of rows, refreshed in a step.
    - `surrogate`: of `"misso"`, what stands for the log-likelihood of the coefficients: `"newton"`, or a true
      majoriser, `"boehning"` or `"jaakkola"`.
    - `sampler`: `"metropolis"`, an independence chain a row, kept between visits; `"exact"`, independent draws.
    - `num_draws`: draws a row and visit: `"auto"`, a number, or a schedule of `provi.schedules`, a function of the
      pass.
    - `C`: adds $-|\delta|^2/(2C)$ to the log-likelihood, as in scikit-learn; infinite: maximum likelihood.
    - `rank`: None for any covariance of the columns; a number for $\Lambda\Lambda' + \Psi$ with as many factors and
      $\Psi$ diagonal: for many columns, more than rows even.
    - `missing_indicators`: whether indicators of missing entries enter the linear predictor, of columns with 1% to 99%
      missing: for data where it says something about y that an entry is missing.
    - `tol`: the fit ends when the log-likelihood is estimated to be within `tol` nats of its maximum: then every
      parameter is within $\sqrt{2\,\mathrm{tol}}$ standard errors of its value there. `max_iter`: passes at most.
    - `progress`: whether to show a bar. `random_state`: of draws.

    **Attributes:** `coef_`, `intercept_`; `indicator_features_`, the columns with indicators, and `indicator_coef_`;
    `coef_covariance_` and `standard_errors_`, by Louis's formula, intercept first, indicators last (with finite `C`,
    of the posterior under the prior $N(0, C)$); `mean_`, `covariance_` of the columns; `log_likelihood_`,
    $\log p(y, x_\mathrm{obs})$, and `conditional_log_likelihood_`, $\log p(y \mid x_\mathrm{obs})$, both given the
    indicators; `aic_`, `bic_`, `num_parameters_`; `gap_`, estimated, in nats; `n_iter_`, `converged_`;
    `monte_carlo_error_`, estimated distances of the coefficients from the maximum at the last check, of what remains
    and of the draws' noise, for the intercept a bound (0 for `"exact"`, which has no draws); `acceptance_`, of the
    chains; `separated_`; `classes_`, `n_features_in_`, `feature_names_in_`.

    Only two classes. A constant column has coefficient 0 and standard error NaN.
    """

    # scikit-learn's rule: the constructor takes anything and stores it, `fit` checks. Hence no types here.
    def __init__(
        self,
        solver: Any = "exact",
        *,
        batch: Any = 0.1,
        surrogate: Any = "newton",
        sampler: Any = "metropolis",
        num_draws: Any = "auto",
        C: Any = np.inf,
        rank: Any = None,
        missing_indicators: Any = False,
        tol: Any = 0.01,
        max_iter: Any = 1000,
        progress: Any = False,
        random_state: Any = None,
    ):
        self.solver = solver
        self.batch = batch
        self.surrogate = surrogate
        self.sampler = sampler
        self.num_draws = num_draws
        self.C = C
        self.rank = rank
        self.missing_indicators = missing_indicators
        self.tol = tol
        self.max_iter = max_iter
        self.progress = progress
        self.random_state = random_state

    @double_precision
    def fit(self, X: Any, y: Any) -> "MissingLogisticRegression":
        """Fit to the rows of X, NaN where missing, and their labels y, of any type."""
        checked: Any = validate_data(self, X, y, dtype=np.float64, ensure_all_finite=False)
        values, labels = checked
        options = read_options(self)
        found = self._learn(values, read_labels(labels), options, getattr(self, "feature_names_in_", None))
        self._warn(found, ConvergenceWarning)
        return self

    @double_precision
    def decision_function(self, X: Any) -> np.ndarray:
        r"""The log odds of $P(y = \mathrm{classes\_[1]} \mid x_\mathrm{obs})$, missing entries integrated out."""
        values = self._read(X)
        return log_odds(self._parameters(), self._columns.standardise(values))

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probabilities of the two `classes_` given the observed entries, exactly; a row may be all missing."""
        odds = self.decision_function(X)
        return expit(np.stack([-odds, odds], axis=1))

    def predict(self, X: Any) -> np.ndarray:
        """The more probable class given the observed entries."""
        odds = self.decision_function(X)
        return self.classes_[(odds > 0).astype(int)]

    def confidence_intervals(self, level: Any = 0.95) -> np.ndarray:
        """Wald's intervals, a row a coefficient, intercept first and indicators last: estimate -+ quantile x error."""
        check_is_fitted(self)
        return self._intervals(level)

    def summary(self, level: Any = 0.95) -> CoefficientSummary:
        """Coefficients, standard errors, tests, intervals and shares of missing entries: print it."""
        check_is_fitted(self)
        return self._summary(level)

    @double_precision
    def impute(
        self, X: Any, y: Any = None, *, n: int = 20, proper: bool = True, random_state: Any = None
    ) -> np.ndarray:
        """n copies (n, rows, p) of X with its missing entries drawn given the observed ones, and the labels if given.

        With `proper` each copy has parameters of its own, drawn from their large-sample distribution, as Rubin's
        rules for multiple imputation ask; otherwise all have the estimates.
        """
        values = self._read(X)
        signs = None if y is None else match_labels(y, self.classes_, len(values))
        Z = self._columns.standardise(values)
        key = jax.random.key(int(check_random_state(random_state).randint(2**31 - 1)))
        if proper and self._uncertainty is None:
            raise ValueError("The covariance of all parameters was not computed, for their number: set proper=False.")
        uncertainty = self._uncertainty if proper else None
        drawn = draw_missing(key, self._parameters(), uncertainty, Z, signs, check_count("n", n))
        # The observed entries are the user's own, to the last digit.
        return np.where(np.isnan(values), self._columns.restore(drawn), values)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        tags.input_tags.allow_nan = True
        return tags

    def _read(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        values: Any = validate_data(self, X, reset=False, dtype=np.float64, ensure_all_finite=False)
        check_finite(values, self._columns.names)
        return values

    def _parameters(self) -> Parameters:
        """In standard units, on the device."""
        return Parameters(*map(jnp.asarray, self._standardised))
