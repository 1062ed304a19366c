"""The HTML report: well-formed, self-contained, escaped, accessible, with the right words and numbers."""

import dataclasses
import re

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pytest

import provi
from provi.certificates.bounds import GapBound, at_most
from provi.certificates.certificate import Assumption
from provi.diagnostics import importance_diagnostics
from provi.families import Gaussian
from provi.fit import choose
from provi.report.html.page import fingerprint, render_report
from provi.report.html.verdict import verdict
from provi.result import Posterior
from provi.result.fit import describe_call
from provi.runtime.record import History
from support.html_page import (
    Page,
    check_pictures,
    check_self_contained,
    check_structure,
    check_style,
    contrast,
    rgb,
    schemes,
)


@pytest.fixture(autouse=True)
def close_figures():
    before = plt.get_fignums()  # those of other tests
    yield
    assert plt.get_fignums() == before  # a report leaves no figure open


@pytest.fixture(scope="module")
def target():
    rng = np.random.default_rng(0)
    design = rng.normal(size=(120, 3))
    response = (rng.random(120) < 1 / (1 + np.exp(-design @ np.array([1.0, -1.0, 0.5])))).astype(int)
    return provi.targets.LogisticRegression(design, response, names=["age", "dose", "rate"])


@pytest.fixture(scope="module")
def proven(target):
    result = provi.fit(target)
    call = describe_call(target, result.posterior.family, tol=0.01, seed=0)
    return dataclasses.replace(result, target=target, call=call)


@pytest.fixture(scope="module")
def unknown(proven):
    """A conditional certificate, of a log density of which nothing was said."""
    detail = "convexity of the potential (unknown)"
    certificate = dataclasses.replace(
        proven.certificate,
        status="conditional",
        gap=0.007,
        confidence=0.99,
        bounds=(GapBound("in the metric of q", 0.007, "conditional", 0.99, 2000, detail),),
        assumptions=(Assumption("potential is convex", None, "unknown", "not declared"),),
        notes=("If the log density is known to be concave, pass log_concave=True.",),
        distance=None,
    )
    outcome = provi.Outcome.CONDITIONAL
    return dataclasses.replace(proven, certificate=certificate, outcome=outcome, target=None, call=None)


@pytest.fixture(scope="module")
def refused(proven):
    """The certificate of a standard normal under a density with two modes: none."""
    density = provi.targets.LogDensity(lambda z: -2 * (z[0] ** 2 - 1) ** 2 - 0.5 * z[1] ** 2, dim=2)
    family = Gaussian(2)
    point = family.point(np.zeros(2), 1.0, jnp.float64)
    posterior, certificate = Posterior(family, point, ("a", "b")), choose(density, family).certificate(point)
    outcome = provi.Outcome.GRADIENT_BUDGET
    changed = {"posterior": posterior, "certificate": certificate, "outcome": outcome, "target": None, "call": None}
    return dataclasses.replace(proven, **changed)


@pytest.fixture(scope="module")
def source(proven):
    return render_report(proven, title="A title")


def test_page_is_well_formed_self_contained_and_accessible(source):
    page = check_self_contained(source)
    check_structure(page)
    check_pictures(page, 7)  # with the calibration curve and the influential rows
    check_style(source)
    assert "A title" in page.text("h1") and "nats – A title" in page.text("title")
    assert len(source.encode()) < 300_000


def test_contrast_of_every_pair_of_colours_in_light_and_dark(source):
    for colours in schemes(source):
        value = {name: rgb(colour) for name, colour in colours.items()}
        for name in ("ink", "muted", "link", "good", "warn", "bad"):
            for back in ("paper", "card"):
                assert contrast(value[name], value[back]) >= 4.5, (name, back)
        for name in ("good", "warn", "bad"):
            for text in ("ink", name):
                assert contrast(value[text], value[f"{name}-back"]) >= 4.5, (text, name)
        for k in range(6):  # lines and marks need 3
            assert contrast(value[f"plot-{k}"], value["card"]) >= 3, k
        for k in range(2):  # numbers on the deepest squares of the correlation matrix
            assert contrast(value["ink"], 0.5 * value[f"plot-{k}"] + 0.5 * value["card"]) >= 4.5, k


def test_numbers_are_those_of_the_fit(proven, source, target):
    page = Page(source)
    text = page.text()
    family, point = proven.posterior.family, proven.posterior.point
    found = importance_diagnostics(target, family, point, num_draws=2000)
    assert f"{found.pareto_k:.2g}".replace("-", "−") in text
    for mean, deviation in zip(proven.posterior.mean, proven.posterior.standard_deviation, strict=True):
        assert f"{mean:#.4g}".replace("-", "−") in text and f"{deviation:#.4g}" in text
    assert f"{at_most(proven.certificate.gap)} nats better" in text
    correlation = np.corrcoef(proven.posterior.sample(200_000, seed=0).T)[0, 1]  # the pictures' order: age, dose
    shown = re.search(r"age</bdi>.{0,90}dose</bdi>.{0,150}?<bdi>(.\d\.\d+|\d\.\d+)</bdi>", source, re.S)
    assert shown is not None
    # Standard deviation 1/sqrt(200000) = 0.0022 and rounding 0.0005: an alarm rate below 1e-6.
    assert abs(float(shown[1].replace("−", "-")) - correlation) < 0.012
    for row in proven.certificate.assumptions:
        assert row.statement in text and row.reason in text
    for words in ("provi.fit(", "tol=0.01", "seed=0", fingerprint(target), "jax", "Python", "numpy", "seconds"):
        assert words in text, words


def test_pages_of_the_verdicts(proven, unknown, refused):
    assert verdict(proven).title.startswith("Certified within") and verdict(proven).level == "certified"
    assert any("An assumption fails" in reason and "curvature" in reason for reason in verdict(refused).reasons)
    cases = ((unknown, "conditional", "Conditionally certified"), (refused, "none", "Not certified"))
    for fit, level, title in cases:
        page = check_self_contained(render_report(fit))
        check_structure(page)
        assert title in page.text("h2") and "What to do next" in page.text("h3")
        assert any(attributes.get("class") == f"verdict {level}" for attributes, _ in page.all("section"))
        assert "k-hat was not computed" in page.text() and "The call was not recorded" in page.text()
    assert "In free coordinates, as the target is not known" in page.text()  # that of `refused`


def test_the_page_is_in_the_models_own_space_and_warns_of_a_bad_family(proven):
    """scale ~ Gamma(3, 1), slope ~ N(0, 1): a q that is far too narrow has heavy weights, whatever is proven of it."""
    density = provi.targets.LogDensity(
        lambda p: 2 * jnp.log(p["scale"]) - p["scale"] - 0.5 * p["slope"] ** 2,
        {"scale": 1.0, "slope": 0.0},
        constraints={"scale": "positive"},
    )
    family = Gaussian(2)
    point = family.point(np.array([1.0, 0.0]), 0.2, jnp.float64)
    posterior = Posterior(family, point, density.parameter_names)
    reference = {"scale": np.random.default_rng(0).gamma(3.0, size=(4, 50)), "lp": np.ones((4, 50))}
    fit = dataclasses.replace(proven, posterior=posterior, target=density)
    source = render_report(fit, reference=reference)
    page = check_self_contained(source)
    check_structure(page)
    check_pictures(page, 5)
    summary = fit.posterior.summary(0.94)
    assert summary.names == ("scale", "slope") and page.text("th").count("log(scale)") == 1  # a correlation's
    assert f"{summary.mean[0]:#.4g}" in page.text("td") and "From 10,000 draws: scale." in page.text()
    assert "Of the free coordinates" in page.text() and "the reference draws" in page.text("figcaption")
    assert fit.posterior.latest_diagnosis.num_draws == 10_000  # a bad k-hat is looked at again
    assert ("caution" in source) and "the family does not fit" in page.text("h2")
    assert '<p class="warning"><strong>Warning.' in source
    assert "but the best one is not the posterior: k-hat is" in page.text("p")
    assert "fit.sample_exact()" in page.text("li")


ATTACKS = (
    "<script>alert(1)</script>",
    "\"><img src=x onerror=alert(1)>'",
    "</style></svg></title><svg onload=alert(1)>",
    "{{ 7 * 191 }}{% raw %}",
    "]]><!-- -->&lt;b&gt;&amp;",
    "$\\frac{1$ größe 日本語 🙂",
    'id="trace-figure_1" url(#x) #0072b2',
    "a\x00b\x1b[31m\ud800\ufffe\u202ec",
)


def test_strings_of_users_are_escaped(proven):
    family = Gaussian(len(ATTACKS))
    factor = np.tri(len(ATTACKS))
    point = family.point_from_covariance(np.zeros(len(ATTACKS)), factor @ factor.T, jnp.float64)
    everything = "".join(ATTACKS)
    certificate = dataclasses.replace(
        proven.certificate,
        assumptions=tuple(Assumption(attack, None, attack, attack) for attack in ATTACKS),
        notes=ATTACKS,
        theorem=everything,
        a_priori_bound=1.0,
        a_priori_metric="gap",
    )
    posterior = Posterior(family, point, ATTACKS)
    changed = {"posterior": posterior, "certificate": certificate, "message": everything, "call": everything}
    source = render_report(dataclasses.replace(proven, **changed, target=None), title=everything)
    page = check_self_contained(source)
    check_structure(page)
    check_pictures(page, 6)
    source.encode("utf-8")
    assert not set(source) & set("\x00\x1b\ufffe")
    assert "1337" not in page.text()  # 7 * 191: nothing is evaluated
    for attack in ATTACKS[:-1]:
        for tag in ("h1", "title", "code", "th", "td", "li"):
            assert attack in page.text(tag), (tag, attack)
        assert attack[:14] in page.text("text"), attack  # of long labels the middle is left out


def test_a_large_posterior_stays_below_a_megabyte(proven):
    dim = 300
    factor = np.random.default_rng(0).normal(size=(dim, 5))
    family = Gaussian(dim)
    point = family.point_from_covariance(np.zeros(dim), np.eye(dim) + factor @ factor.T, jnp.float64)
    posterior = Posterior(
        family, point, tuple(f"a name that is as long as names may be, {k} " * 20 for k in range(dim))
    )
    fit = dataclasses.replace(proven, posterior=posterior, target=None)
    source = render_report(fit)
    page = check_self_contained(source)
    check_structure(page)
    assert len(source.encode()) < 1_000_000
    assert "the first 200 of 300 parameters" in page.text() and "Marginals 21 to 40 of 300" in page.text("svg")


def test_fits_without_history_correlations_or_certificate_bounds(proven, target):
    family = Gaussian(3, "diagonal")
    posterior = Posterior(family, family.point(np.zeros(3), np.ones(3), jnp.float64), ("a", "a", ""))
    certificate = dataclasses.replace(proven.certificate, gap=None, status="none", bounds=(), distance=None)
    fit = dataclasses.replace(proven, posterior=posterior, certificate=certificate, history=History())
    page = check_self_contained(render_report(fit, num_draws=0, check=False))
    check_structure(page)
    check_pictures(page, 2)
    assert "Does the model fit?" not in page.text()
    for words in ("zero by construction", "nothing to draw", "No bound on the gap was computed", "num_draws is 0"):
        assert words in page.text(), words


def test_the_file_is_written_where_it_should_be_and_the_call_is_kept(proven, tmp_path):
    path = proven.report(tmp_path / "new" / "report.html", num_draws=50)
    assert path == tmp_path / "new" / "report.html"
    assert Page(path.read_text("utf-8")).text("h1") == "Report of a variational fit"
    proven.save(tmp_path / "fit.safetensors")
    assert provi.load(tmp_path / "fit.safetensors").call == proven.call
    with pytest.raises(ValueError, match="num_draws"):
        proven.report(path, num_draws=-1)
