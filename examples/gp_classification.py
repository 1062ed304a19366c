"""A Gaussian-process classifier with a certificate, and where it is uncertain."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from provi.models import GPClassifier

rng = np.random.default_rng(0)
angle, ring = rng.uniform(0, 2 * np.pi, 120), np.repeat([1.0, 2.2], 60)
X = np.stack([ring * np.cos(angle), ring * np.sin(angle)], axis=1) + rng.normal(scale=0.35, size=(120, 2))
y = np.where(ring > 1.5, "outer", "inner")
train, test = np.arange(120) % 4 > 0, np.arange(120) % 4 == 0

model = GPClassifier(length_scale=1.0, amplitude=2.0, optimise_hyperparameters=True).fit(X[train], y[train])
print(f"length scale {model.kernel_.length_scale:.2f}, ELBO {model.elbo_:.2f} nats")
print(model.certificate_.headline)
print(f"right on {model.score(X[test], y[test]):.0%} of the points that were held out")

line = np.linspace(-4, 4, 60)
grid = np.stack(np.meshgrid(line, line), axis=-1).reshape(-1, 2)
plt.contourf(line, line, model.predict_proba(grid)[:, 1].reshape(60, 60), 12)
plt.colorbar(label="P(outer)")
plt.scatter(*X.T, c=y == "outer", cmap="gray", edgecolors="black", s=15)
Path("out").mkdir(exist_ok=True)
plt.savefig("out/gp_classification.png")
