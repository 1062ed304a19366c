"""Certify approximations that ProVI did not make: Laplace's by SciPy, and a mean field cut out of it."""

import numpy as np
from scipy.optimize import minimize

import provi
from provi.data import breast_cancer

data = breast_cancer()
X, y = data.features[:, :6], data.response
target = provi.targets.LogisticRegression(X, y)  # prior N(0, 1)


def potential(z):
    """-log p(y, z) and its gradient."""
    logits = X @ z
    value = np.sum(np.logaddexp(0, logits) - y * logits) + 0.5 * z @ z
    return value, X.T @ (1 / (1 + np.exp(-logits)) - y) + z


mode = minimize(potential, np.zeros(6), jac=True).x
p = 1 / (1 + np.exp(-X @ mode))
hessian = X.T @ (X * (p * (1 - p))[:, None]) + np.eye(6)

certificates = {
    "Laplace": provi.certify(target, (mode, np.linalg.inv(hessian))),
    "its diagonal, as a mean field": provi.certify(target, (mode, 1 / np.diag(hessian))),
    "a guess": provi.certify(target, (np.zeros(6), 0.1 * np.eye(6))),
}
for name, certificate in certificates.items():
    print(f"{name}: {certificate.headline}")
