"""What the pictures of a fit show, read back from the figures."""

import dataclasses
from types import SimpleNamespace

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pytest
from scipy import stats

import provi
from provi.certificates.bounds import GapBound
from provi.certificates.certificate import Certificate
from provi.certificates.distance.bound import PosteriorBound
from provi.diagnostics.noise_audit import EstimatorNoise, NoiseAudit
from provi.families import Gaussian, LocationScale, StudentT, Uniform
from provi.report.plots.posterior import plot_correlation_matrix, plot_intervals, plot_marginals, shortened
from provi.report.plots.run import plot_bound, plot_noise
from provi.result import Estimate, Fit, Posterior
from provi.runtime.record import FIELDS, History


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


def posterior(dim=2, base=None, names=None):
    family = Gaussian(dim) if base is None else LocationScale(dim, base)
    point = family.point(np.arange(dim, dtype=float), 2.0, jnp.float64)
    return Posterior(family, point, tuple(names or (f"z[{k}]" for k in range(dim))))


def made_fit(elbos=(-30.0, -12.0, -10.5, -10.0), errors=(0.0, 0.0, 0.0, 0.0), gap=0.25, **certificate):
    history = History()
    for k, (elbo, error) in enumerate(zip(elbos, errors, strict=True)):
        values = {"step": k + 1, "gradient_evaluations": 10 * (k + 1), "elbo": elbo, "elbo_standard_error": error}
        history.append(**{**dict.fromkeys(FIELDS, 0.0), **values})
    return Fit(
        posterior=posterior(),
        elbo=Estimate(-10.0, errors[-1]),
        certificate=Certificate(
            **{"status": "none" if gap is None else "proven", "gap": gap, "assumptions": (), **certificate}
        ),
        outcome=provi.Outcome.COMPLETED,
        message="",
        history=history,
        num_steps=4,
        gradient_evaluations=40,
        seconds=1.0,
    )


def lines(axes):
    return {line.get_label(): np.asarray(line.get_ydata(), float) for line in axes.lines}


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_trace_has_the_certified_band_above_the_last_elbo():
    figure = made_fit().plot("trace")
    axes = figure.axes[0]
    np.testing.assert_array_equal(lines(axes)["in closed form"], [-30, -12, -10.5, -10])
    (band,) = axes.patches
    assert band.get_y() == -10.0 and band.get_height() == pytest.approx(0.25)
    assert "proven: the best is within 0.25" in legend(figure)
    assert not made_fit(gap=None).plot("trace").axes[0].patches


def test_trace_draws_the_theorem_or_says_that_it_is_off_the_picture():
    near = made_fit(theorem="T", a_priori_bound=0.5, a_priori_metric="gap").plot("trace")
    assert [-9.5, -9.5] in [list(line.get_ydata()) for line in near.axes[0].lines]
    far = made_fit(theorem="T", a_priori_bound=500.0, a_priori_metric="gap").plot("trace")
    assert "theorem: expected within 500 (off the picture)" in legend(far)
    assert far.axes[0].get_ylim()[1] < 0
    other = made_fit(theorem="T", a_priori_bound=0.5, a_priori_metric="squared distance").plot("trace")
    assert not any("theorem" in words for words in legend(other))


def test_the_bracket_of_the_evidence_stands_above_the_run():
    distance = PosteriorBound(0.5, (), 0.99, 100, "proven")
    fit = made_fit(distance=distance, bounds=(GapBound("a", 0.25, "proven"),))
    words = legend(fit.plot("trace"))
    assert "proven: log evidence in [−10.000, −9.500]" in words
    figure = fit.plot("bound")
    curve = next(values for name, values in lines(figure.axes[0]).items() if name.startswith("KL to the posterior"))
    np.testing.assert_allclose(curve, [20.5, 2.5, 1.0, 0.5])
    wide = made_fit(distance=dataclasses.replace(distance, kl=500.0))
    assert any(text.endswith("(off the picture)") and "log evidence" in text for text in legend(wide.plot("trace")))


def test_a_wide_band_does_not_press_the_run_into_a_line():
    figure = made_fit(gap=500.0).plot("trace")
    assert "proven: the best is within 500 (off the picture)" in legend(figure)
    assert figure.axes[0].get_ylim()[1] < 0


@pytest.mark.parametrize("first", [-30.0, -10.3, -3e7])
def test_logarithms_are_plain_numbers_that_do_not_overlap(first):
    figure = made_fit((first, -10.2, -10.1, -10.0)).plot("bound")
    figure.canvas.draw()
    axes = figure.axes[0]
    labels = [label for label in axes.get_yticklabels(which="both") if label.get_text()]
    low, high = axes.get_window_extent().intervaly
    boxes = sorted(tuple(label.get_window_extent().intervaly) for label in labels)
    boxes = [box for box in boxes if low <= np.mean(box) <= high]
    assert len(boxes) >= 2 and all(a[1] < b[0] for a, b in zip(boxes, boxes[1:], strict=False))
    assert not any("$" in label.get_text() for label in labels)


def test_a_run_without_a_finite_elbo_is_drawn_and_has_no_gap():
    fit = dataclasses.replace(made_fit(gap=None), elbo=Estimate(np.nan, np.nan))
    assert "final: not finite" in legend(fit.plot("trace"))
    with pytest.raises(ValueError, match="not finite"):
        fit.plot("bound")
    empty = dataclasses.replace(fit, history=History()).plot()
    assert empty.axes[0].get_title(loc="left") == "The run recorded no finite ELBO"


def test_bound_is_the_difference_of_elbos_and_the_gap():
    axes = made_fit().plot("bound").axes[0]
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [20.25, 2.25, 0.75, 0.25])
    np.testing.assert_allclose(axes.lines[1].get_ydata(), [20, 2, 0.5, np.nan])
    assert axes.get_yscale() == "log"


def test_bound_of_estimated_elbos_has_two_standard_errors():
    axes = made_fit(errors=(0.3, 0.3, 0.3, 0.4)).plot("bound").axes[0]
    noise = 2 * np.hypot(0.4, [0.3, 0.3, 0.3, 0.4])
    np.testing.assert_allclose(axes.lines[0].get_ydata(), np.array([20, 2, 0.5, 0]) + noise + 0.25)
    np.testing.assert_allclose(axes.lines[1].get_ydata(), [20 - noise[0], 2 - noise[1], np.nan, np.nan])


def test_bound_against_run_draws_the_curve_of_the_theorem():
    fit = made_fit(theorem="T", a_priori_bound=7.0, a_priori_metric="gap")
    curve = lines(plot_bound(fit).axes[0])["theorem: expected gap at most"]
    np.testing.assert_array_equal(curve, 7.0)
    planned = dataclasses.replace(fit, guarantee=SimpleNamespace(curve=lambda steps: 28.0 / steps))
    figure = planned.plot("bound")
    np.testing.assert_allclose(lines(figure.axes[0])["theorem: expected gap at most"], 28.0 / np.arange(1, 5))
    assert figure.axes[0].get_ylim()[1] > 28


@pytest.mark.parametrize(
    ("base", "law"),
    [
        (None, stats.norm()),
        (StudentT(5.0), stats.t(5, scale=np.sqrt(3 / 5))),
        (Uniform(), stats.beta(1.5, 1.5, loc=-2.0, scale=4.0)),  # a disc of radius sqrt(d + 2)
    ],
)
def test_marginal_densities_are_exact(base, law):
    q = posterior(2, base)
    for k, axes in enumerate(plot_marginals(q).axes):
        x, density = axes.lines[0].get_data()
        # By finite differences between quantiles; the edge of the disc has an infinite slope.
        np.testing.assert_allclose(density, law.pdf((x - k) / 2) / 2, atol=2e-3 * law.pdf(0), rtol=0.01)


def test_reference_draws_stand_beside_the_marginals():
    draws = np.random.default_rng(0).normal([5.0, 1.0], 1.0, (1000, 2))
    figure = made_fit().plot("marginals", reference=draws)
    assert sorted(legend(figure)) == ["approximation", "reference"]
    (steps,) = (patch.get_data() for patch in figure.axes[0].patches)
    np.testing.assert_allclose(steps.edges[[0, -1]], np.quantile(draws[:, 0], [0.005, 0.995]))
    assert np.sum(steps.values * np.diff(steps.edges)) == pytest.approx(0.99)
    axes = plot_intervals(posterior(), draws).axes[0]
    np.testing.assert_allclose(axes.lines[1].get_xdata(), draws.mean(axis=0))
    ends = np.array(axes.collections[1].get_segments())[:, :, 0]
    np.testing.assert_allclose(ends, np.quantile(draws, [0.03, 0.97], axis=0).T)
    assert legend(made_fit().plot(reference=draws)) == ["approximation", "reference"]


def test_intervals_are_those_of_the_posterior_and_at_most_forty():
    q = posterior(50)
    axes = plot_intervals(q).axes[0]
    np.testing.assert_allclose(np.array(axes.collections[0].get_segments())[:, :, 0], q.interval(0.94)[:40])
    np.testing.assert_allclose(np.array(axes.collections[1].get_segments())[:, :, 0], q.interval(0.5)[:40])
    assert axes.get_title(loc="left") == "Marginals 1 to 40 of 50"


def test_correlations_choose_the_strongest_and_write_small_ones_out():
    matrix = np.eye(30)
    matrix[0, 29] = matrix[29, 0] = -0.8
    axes = plot_correlation_matrix(matrix, [f"p{k}" for k in range(30)]).axes[0]
    shown = [text.get_text().split()[-1] for text in axes.get_yticklabels()]
    assert len(shown) == 24 and {"p0", "p29"} <= set(shown)
    small = plot_correlation_matrix([[1, -0.004], [-0.004, 1]], ["a", "$b$"]).axes[0]
    assert {text.get_text() for text in small.texts} == {"0.00"}
    assert not any(text.get_parse_math() for text in small.get_yticklabels())


def test_noise_shows_variances_errors_and_bounds():
    rows = (EstimatorNoise("energy", 4.0, 0.5, 5.0, 0.5, 80.0), EstimatorNoise("entropy", 0.2, 0.1, 0.3, 0.1, None))
    axes = plot_noise(NoiseAudit(100, rows, ("entropy",), 20.0, ())).axes[0]
    np.testing.assert_array_equal(axes.lines[0].get_xdata(), [4.0, 0.2])
    np.testing.assert_allclose(np.array(axes.collections[0].get_segments())[:, :, 0], [[3, 5], [0, 0.4]])
    np.testing.assert_array_equal(axes.lines[-1].get_xdata(), [80.0])
    assert [text.get_text() for text in axes.get_yticklabels()] == ["energy", "entropy"]


def test_noise_of_a_fit_is_measured_at_its_point():
    target = provi.targets.Gaussian(np.zeros(2), np.eye(2))
    axes = dataclasses.replace(made_fit(), target=target).plot("noise").axes[0]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["energy", "entropy", "sticking the landing"]


def test_labels_are_one_line_of_printable_characters():
    assert shortened("two\n lines", 20) == "two lines"
    assert shortened("a\x00b\u202ec\ud800", 20) == "a\ufffdb\ufffdc\ufffd"
    assert shortened("x" * 30 + "y", 10) == "x" * 6 + "…xxy"  # long names often differ at their ends
    assert shortened("👩\u200d👧", 10) == "👩\u200d👧"


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: made_fit().plot("pie"), "kind"),
        (lambda: made_fit().plot("noise"), "target"),
        (lambda: dataclasses.replace(made_fit(), history=History()).plot("trace"), "budget"),
        (lambda: made_fit().plot("marginals", reference=np.ones((5, 3))), "reference"),
        (lambda: made_fit().plot("marginals", reference=np.ones((1, 2))), "reference"),
        (lambda: made_fit().plot("marginals", reference=np.full((5, 2), np.nan)), "reference"),
    ],
)
def test_wrong_arguments_are_named(wrong, words):
    with pytest.raises(ValueError, match=words):
        wrong()
