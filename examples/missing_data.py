"""Logistic regression on a table with holes: the missing entries are integrated out, nothing is imputed."""

import numpy as np

from provi.models import MissingLogisticRegression

rng = np.random.default_rng(0)
truth = np.array([1.0, -1.5, 0.5])
X = rng.multivariate_normal(np.zeros(3), [[1, 0.7, 0], [0.7, 1, 0.3], [0, 0.3, 1]], size=1000)
y = (rng.random(1000) < 1 / (1 + np.exp(-X @ truth))).astype(int)
X[rng.random(1000) < 0.4, 1] = np.nan

model = MissingLogisticRegression().fit(X, y)
print(model.summary())
errors = (model.coef_[0] - truth) / model.standard_errors_[1:]
print("errors, in standard errors:", np.round(errors, 1))
print("P(y = 1) without the second column:", model.predict_proba([[0.5, np.nan, 1.0]])[0, 1].round(3))
