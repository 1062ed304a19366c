"""Bayesian logistic regression with a proof of how good the approximation is: summary, certificate, picture, report."""

from pathlib import Path

import provi
from provi.data import breast_cancer

data = breast_cancer()
target = provi.targets.LogisticRegression(data.features[:, :6], data.response, names=data.names[:6])
fit = provi.fit(target, tol=0.01)

print(fit.posterior.summary())
print(fit.certificate.headline)

out = Path("out")
out.mkdir(exist_ok=True)
fit.plot().savefig(out / "logistic_certificate.png")
fit.report(out / "logistic_certificate.html", title="Breast cancer, six columns")
