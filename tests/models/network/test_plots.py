"""The pictures of Bayesian networks: what is drawn are the numbers, and the user's settings come back."""

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
from scipy.stats import binomtest

from provi.models.network import predictive as metrics
from provi.models.network.plots import plot_reliability, plot_rotation_entropy, plot_training
from provi.report.style import save_figure

RNG = np.random.default_rng(1)
TABLE = RNG.dirichlet(np.full(3, 0.4), size=200)
LABELS = np.array([RNG.choice(3, p=row) for row in TABLE])


@pytest.fixture(autouse=True)
def close_figures():
    settings = dict(matplotlib.rcParams)
    yield
    plt.close("all")
    assert dict(matplotlib.rcParams) == settings


def test_reliability_shows_the_bins_with_exact_intervals(tmp_path):
    figure = plot_reliability(TABLE, LABELS, 10)
    found, (upper, lower) = metrics.calibration(TABLE, LABELS, 10), figure.axes
    used = found.count > 0
    points = upper.containers[0]
    np.testing.assert_allclose(points.lines[0].get_xdata(), found.confidence[used])
    np.testing.assert_allclose(points.lines[0].get_ydata(), found.accuracy[used])
    for segment, hits, count in zip(
        points.lines[2][0].get_segments(), found.accuracy[used] * found.count[used], found.count[used], strict=True
    ):
        exact = binomtest(round(hits), count).proportion_ci(0.9, method="exact")
        np.testing.assert_allclose(segment[:, 1], [exact.low, exact.high], atol=1e-9)
    np.testing.assert_allclose([bar.get_height() for bar in lower.patches], found.count / 200)
    assert f"{found.expected_error:.2g}" in upper.get_title(loc="left")
    assert save_figure(figure, tmp_path / "reliability.png").stat().st_size > 10_000


def test_rotation_shows_medians_and_quantiles():
    degrees, values = np.array([0, 45, 90]), RNG.gamma(2.0, size=(3, 50))
    figure = plot_rotation_entropy(degrees, {"one": values, "half": values / 2}, num_classes=10)
    lines = figure.axes[0].get_lines()
    np.testing.assert_allclose(lines[0].get_ydata(), np.median(values, axis=1))
    np.testing.assert_allclose(lines[1].get_ydata(), np.median(values, axis=1) / 2)
    np.testing.assert_allclose(lines[2].get_ydata(), np.log(10))
    band = figure.axes[0].collections[0].get_paths()[0].vertices
    at_45 = band[band[:, 0] == 45, 1]
    np.testing.assert_allclose([at_45.min(), at_45.max()], np.quantile(values[1], [0.1, 0.9]))
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["one", "half", "log 10: knows nothing"]


def test_training_shows_mean_and_spread_over_seeds():
    epochs, values = np.arange(1, 6), 1 + RNG.random((4, 5))
    figure = plot_training({"several": (epochs, values), "one": (epochs, 20 * values[0])})
    axes = figure.axes[0]
    np.testing.assert_allclose(axes.get_lines()[0].get_ydata(), values.mean(axis=0))
    np.testing.assert_allclose(axes.get_lines()[1].get_ydata(), 20 * values[0])
    band = axes.collections[0].get_paths()[0].vertices
    at_3 = band[band[:, 0] == 3, 1]
    np.testing.assert_allclose(np.ptp(at_3), 2 * values[:, 2].std(ddof=1))
    assert len(axes.collections) == 1 and axes.get_yscale() == "log"
    assert plot_training({"one": (epochs, values[0])}).axes[0].get_yscale() == "linear"


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="entropies has length 2"):
        plot_rotation_entropy([0, 45, 90], np.ones((2, 5)))
    with pytest.raises(ValueError, match="curves\\['a'\\] must be epochs"):
        plot_training({"a": ([1, 2], [1.0, 2.0, 3.0])})
    with pytest.raises(ValueError, match="Between 1 and 6 curves"):
        plot_training({})
