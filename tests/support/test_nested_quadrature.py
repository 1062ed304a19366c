"""The oracle of nested fits, against brute force and against itself refined."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from support.nested_quadrature import RandomIntercepts, conditional, half_normal, posterior, refined

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def _brute(model: RandomIntercepts, sd: float) -> float:
    """log Z by a tensor grid over the fixed effects and two groups' effects."""
    t = np.linspace(-8, 8, 81)
    weights = np.exp(-0.5 * t**2) / np.sqrt(2 * np.pi) * (t[1] - t[0])
    betas = [model.fixed_scale * t] * model.design.shape[1]
    total = 0.0
    for places in itertools.product(range(len(t)), repeat=len(betas)):
        beta = np.asarray([axis[i] for axis, i in zip(betas, places, strict=True)])
        eta = model.design @ beta
        product = np.prod(weights[list(places)])
        for group in range(2):
            own = model.group == group
            rows = model.log_likelihood(eta[own] + sd * t[:, None], model.y[own]).sum(axis=1)
            product *= weights @ np.exp(rows)
        total += product
    return float(np.log(total))


@pytest.mark.parametrize("family", ["bernoulli", "poisson"])
@pytest.mark.parametrize("slope", [False, True])
def test_evidence_is_that_of_a_tensor_grid(family, slope):
    rng = np.random.default_rng(0)
    y = (rng.random(6) < 0.6).astype(float) if family == "bernoulli" else rng.poisson(1.5, 6).astype(float)
    x = rng.normal(size=6) if slope else None
    model = RandomIntercepts(y, np.arange(6) % 2, x, family, fixed_scale=0.8)
    for sd in (0.2, 1.3):
        assert conditional(model, np.asarray([sd])).log_evidence[0] == pytest.approx(_brute(model, sd), abs=1e-9)


def _twelve_groups(y: np.ndarray | None = None) -> RandomIntercepts:
    rng = np.random.default_rng(1)
    x, group = rng.normal(size=120), np.arange(120) % 12
    eta = 0.3 + 0.8 * x + rng.normal(0, 0.7, 12)[group]
    drawn = (rng.random(120) < 1 / (1 + np.exp(-eta))).astype(float)
    return RandomIntercepts(drawn if y is None else y, group, x)


@pytest.mark.parametrize("separable", [False, True])
def test_refining_changes_nothing(separable):
    scales = np.exp(np.linspace(np.log(0.05), np.log(5.0), 2 if separable else 28))
    # All ones: every group is separable, and only the priors hold the effects.
    found, error = refined(_twelve_groups(np.ones(120) if separable else None), scales)
    print(f"log Z moves by {error:.1e}")
    assert error < 1e-8
    assert np.all(found.second > found.mean**2)


def test_a_tiny_scale_is_the_model_without_groups():
    model = _twelve_groups()
    alone = RandomIntercepts(model.y, np.zeros(120, int), model.x)
    pair = [conditional(x, np.asarray([5e-3])) for x in (model, alone)]
    assert pair[0].log_evidence[0] == pytest.approx(pair[1].log_evidence[0], abs=1e-3)
    np.testing.assert_allclose(pair[0].mean, pair[1].mean, atol=1e-3)


def test_the_posterior_of_the_scale_is_that_of_nuts():
    from provi_lab.mixed.problems import grouped_logistic

    record = json.loads((RESULTS / "mixed_references.json").read_text(encoding="utf-8"))
    reference = next(row for row in record["rows"] if row["problem"] == "logistic")["quantities"]
    table = grouped_logistic().table
    found = posterior(RandomIntercepts(table["y"], table["group"], table["x"]), half_normal(2.5))
    scale = reference["sd(group)"]
    # Four standard errors: seven false alarms in 100,000 a comparison.
    assert abs(found.scale_mean - scale["mean"]) < 4 * scale["mcse_mean"]
    assert abs(found.scale_sd - scale["sd"]) < 4 * scale["mcse_sd"]
    for p in (0.05, 0.5, 0.95):
        name = f"q{round(100 * p)}"
        assert abs(float(found.scale_quantile(np.asarray(p))) - scale[name]) < 4 * scale[f"mcse_{name}"]
    for mean, sd, name in zip(found.mean, found.sd, ("Intercept", "x"), strict=True):
        assert abs(mean - reference[name]["mean"]) < 4 * reference[name]["mcse_mean"]
        assert abs(sd - reference[name]["sd"]) < 4 * reference[name]["mcse_sd"]
    assert found.scale_cdf(found.scale_quantile(np.asarray([0.1, 0.9]))) == pytest.approx([0.1, 0.9], abs=1e-6)
