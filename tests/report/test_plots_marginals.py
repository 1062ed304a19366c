"""Marginals and reference draws in the model's own space, against closed forms and the summary's numbers."""

import dataclasses
from types import SimpleNamespace

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pytest
from scipy import stats

from provi.certificates.distance.bound import PosteriorBound
from provi.families import Gaussian
from provi.report.plots.marginals import model_marginals, reference_columns
from provi.report.plots.posterior import plot_intervals, plot_marginals
from provi.result import Posterior
from provi.result.summary import Summary, summarise_model_space
from support.statistics import assert_mean

MEAN, COVARIANCE = np.array([0.3, 1.0, -2.0]), np.array([[0.25, 0.1, 0.0], [0.1, 1.0, -0.3], [0.0, -0.3, 4.0]])


class Model:
    """A constant, a scale whose logarithm is free, and a vector."""

    dim = 3
    constrained_names = ("constant", "scale", "w[0]", "w[1]")
    parameter_variables = None

    def constrain(self, z):
        z = np.asarray(z)
        return {"constant": np.ones(z.shape[:-1]), "scale": np.exp(z[..., 0]), "w": z[..., 1:]}


@pytest.fixture(scope="module")
def posterior():
    family = Gaussian(3)
    point = family.point_from_covariance(MEAN, COVARIANCE, jnp.float64)
    return Posterior(family, point, ("log(scale)", "w[0]", "w[1]"), Model())


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


def test_free_coordinates_are_exact_and_the_rest_is_drawn(posterior):
    marginals = model_marginals(posterior, 12)
    assert marginals.names == Model.constrained_names and marginals.total == 4
    np.testing.assert_array_equal(marginals.coordinate, [-1, -1, 1, 2])
    exact = stats.norm(MEAN[1:], np.sqrt(np.diag(COVARIANCE)[1:]))
    np.testing.assert_allclose(marginals.mean[2:], MEAN[1:])
    np.testing.assert_allclose(marginals.interval(0.5)[2:].T, [exact.ppf(0.25), exact.ppf(0.75)])
    law, draws = stats.lognorm(0.5, scale=np.exp(0.3)), marginals.draws[:, 1]
    assert_mean(draws, law.mean())
    for low, high in (marginals.interval(0.94)[1], marginals.interval(0.5)[1]):
        for end, level in ((low, law.cdf(low)), (high, law.cdf(high))):
            assert_mean((draws <= end).astype(float), level)  # a quantile of the draws is one of the law


def test_pictures_and_tables_show_the_same_numbers(posterior):
    free = Summary(posterior.names, posterior.mean, posterior.standard_deviation, posterior.interval(0.94), 0.94)
    table, marginals = summarise_model_space(posterior, free), model_marginals(posterior, 12)
    assert table.names == marginals.names
    np.testing.assert_allclose(marginals.mean, table.mean, rtol=1e-12)
    np.testing.assert_allclose(marginals.interval(0.94), table.interval, rtol=1e-12)


def test_without_a_target_all_is_free():
    family = Gaussian(2)
    posterior = Posterior(family, family.point(np.zeros(2), 1.0, jnp.float64), ("a", "b"))
    marginals = model_marginals(posterior, 1)
    assert marginals.names == ("a",) and marginals.total == 2 and marginals.draws is None
    draws = np.random.default_rng(0).normal(size=(4, 50))
    columns = reference_columns({"b": draws, "lp": draws}, posterior, 12)
    np.testing.assert_array_equal(columns[:, 1], draws.ravel())
    assert np.isnan(columns[:, 0]).all()


def test_references_by_variable_and_by_free_coordinate_are_the_same(posterior):
    z = np.random.default_rng(0).normal(size=(60, 3))
    wanted = np.column_stack([np.ones(60), np.exp(z[:, 0]), z[:, 1:]])
    np.testing.assert_allclose(reference_columns(z, posterior, 12), wanted)
    values = Model().constrain(z)
    np.testing.assert_allclose(reference_columns(values, posterior, 12), wanted)
    chains = {name: value.reshape(4, 15, *value.shape[1:]) for name, value in values.items()} | {"lp": np.ones((4, 15))}
    np.testing.assert_allclose(reference_columns(chains, posterior, 12), wanted)
    np.testing.assert_allclose(reference_columns(SimpleNamespace(posterior=chains), posterior, 12), wanted)
    np.testing.assert_allclose(reference_columns(values, posterior, 2), wanted[:, :2])
    some = reference_columns({"w": values["w"], "scale": values["scale"]}, posterior, 12)
    np.testing.assert_allclose(some[:, 1:], wanted[:, 1:])
    assert np.isnan(some[:, 0]).all()
    single = reference_columns({"w[1]": z[:, 2]}, posterior, 12)
    np.testing.assert_allclose(single[:, 3], z[:, 2])


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ({"other": np.ones(5)}, "none of the model's variables: constant, scale, w"),
        ({"w": np.ones((5, 3))}, r"reference\['w'\] has shape \(5, 3\)"),
        ({"w": np.ones((2, 2, 5, 2))}, r"\(chains, draws, ...\)"),
        ({"w": np.ones((5, 2)), "scale": np.ones(6)}, "as many of each"),
        ({"scale": np.ones(1)}, "two or more"),
        ({"scale": [1.0, np.nan]}, r"reference\['scale'\] has 1 entries"),
        (np.ones((5, 4)), "3 free coordinates"),
    ],
)
def test_wrong_references_are_named(posterior, reference, words):
    with pytest.raises(ValueError, match=words):
        reference_columns(reference, posterior, 12)


def test_densities_are_lines_where_exact_and_steps_where_drawn(posterior):
    reference = {"scale": np.random.default_rng(0).lognormal(size=400)}
    figure = plot_marginals(posterior, reference)
    shown = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_title(loc="left") for axes in shown] == list(Model.constrained_names)
    constant, scale, first, _ = shown
    np.testing.assert_array_equal(constant.lines[0].get_xdata(), 1.0)
    reference_steps, own = (patch.get_data() for patch in scale.patches)
    for steps in (reference_steps, own):
        np.testing.assert_allclose(np.sum(steps.values * np.diff(steps.edges)), 0.99, atol=0.005)
    draws = posterior.sample(10_000, 0)[:, 0]
    np.testing.assert_allclose(own.edges[[0, -1]], np.quantile(np.exp(draws), [0.005, 0.995]))
    x, density = first.lines[0].get_data()
    np.testing.assert_allclose(density, stats.norm.pdf(x, 1.0, 1.0), atol=1e-3)
    assert not first.patches  # the reference has none of it
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["approximation", "reference"]


def test_the_band_holds_what_data_processing_allows(posterior):
    """Posteriors with a KL of exactly K, shifted or stretched, have each bin within the band."""
    kl = 0.02
    near = dataclasses.replace(posterior, distance=PosteriorBound(kl, (), 0.99, 100, "proven"))
    marginals = model_marginals(near, 12)
    assert marginals.band(1) is None  # known by draws
    edges, low, high = marginals.band(2)
    law = stats.norm(MEAN[1], np.sqrt(COVARIANCE[1, 1]))
    density = np.diff(law.cdf(edges)) / np.diff(edges)
    assert (low < density).all() and (density < high).all() and len(low) == len(edges) - 1
    for other in (stats.norm(MEAN[1] + np.sqrt(2 * kl), 1.0), stats.norm(MEAN[1] - np.sqrt(2 * kl), 1.0)):
        shifted = np.diff(other.cdf(edges)) / np.diff(edges)
        assert (low <= shifted).all() and (shifted <= high).all()
    labels = [text.get_text() for text in plot_marginals(near).legends[0].get_texts()]
    assert "posterior, proven, 99%" in labels
    far = dataclasses.replace(posterior, distance=PosteriorBound(0.3, (), 0.99, 100, "proven"))
    assert model_marginals(far, 12).band(2) is None and not plot_marginals(far).legends


def test_intervals_are_in_the_models_space(posterior):
    figure = plot_intervals(posterior, {"w": np.random.default_rng(0).normal(size=(300, 2))})
    axes = figure.axes[0]
    assert [text.get_text() for text in axes.get_yticklabels()] == list(Model.constrained_names)
    ends = np.array(axes.collections[0].get_segments())[:, :, 0]
    np.testing.assert_allclose(ends, model_marginals(posterior, 12).interval(0.94))
    low, high = axes.get_xlim()
    assert low < ends.min() and high > ends.max()
