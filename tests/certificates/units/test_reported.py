"""`distance/bound.py`, `build.py` and `certificate.py`: what is derived from a bound, and what is said of it."""

import dataclasses
import math
import pickle
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, stats

from provi.certificates import build
from provi.certificates import certificate as reported
from provi.certificates.bounds import GapBound
from provi.certificates.build import Evidence
from provi.certificates.certificate import Assumption, Certificate, Counterexample
from provi.certificates.distance import bound as distances
from provi.certificates.distance.bound import Deferred, EvidenceBracket, PosteriorBound
from provi.families import Gaussian, LocationScale, StudentT
from provi.targets import LogDensity
from provi.targets.base import Constants, declared, estimated, proven, unknown, violated

SEGMENT = Counterexample(np.array([0.5, 1.0]), np.array([1.0, 0.0]), -0.25, 0.0)


def test_total_variation_is_the_smaller_of_two():
    for kl in (0.0, 0.01, 1.0, 3.0, 50.0):
        assert distances.total_variation(kl) == pytest.approx(min(math.sqrt(kl / 2), math.sqrt(1 - math.exp(-kl))))


def test_the_least_content_solves_data_processing():
    for a, kl in ((0.94, 0.1), (0.5, 0.02), (0.94, 2.0)):

        def missing(b, a=a, kl=kl):
            return a * math.log(a / b) + (1 - a) * math.log((1 - a) / (1 - b)) - kl

        truth = optimize.brentq(missing, 1e-12, a)
        found = distances.least_content(a, kl)
        assert truth - 1e-9 <= found <= truth + 1e-15 and missing(found) >= -1e-14
    assert distances.least_content(0.94, math.inf) == 0.0 and distances.least_content(0.94, 0.0) == pytest.approx(0.94)


def test_texts_are_rounded_to_the_safe_side():
    shares = [(0.8999, "89%"), (0.9, "90%"), (0.9019, "90.1%"), (0.999, "99.9%"), (0.555, "55%")]
    assert [distances.share_down(x) for x, _ in shares] == [text for _, text in shares]
    assert distances.rounded_down_text(-1.2341) == "-1.235" and distances.rounded_up_text(-1.2349) == "-1.234"
    assert distances.rounded_down_text(1.9999) == "1.999" and distances.rounded_up_text(1.0001) == "1.001"
    assert distances.rounded_down_text(-math.inf) == "-inf" and distances.rounded_up_text(math.inf) == "inf"
    bracket = EvidenceBracket(-3.0, -2.5, 0.99, "proven")
    assert bracket.width == 0.5 and bracket.ends == "log evidence in [-3.000, -2.500]"
    assert str(bracket) == "log evidence in [-3.000, -2.500] nats (proven, confidence 0.99)"
    given = EvidenceBracket(-3.0, math.inf, 0.99, "none", "on the nodes")
    assert (
        given.ends == "log evidence on the nodes at least -3.000" and str(given) == f"{given.ends} nats; no upper bound"
    )


def some_bound(kl=0.01, **more):
    return PosteriorBound(kl, (0.1, 0.3), 0.95, 1000, **{"estimate": 0.25, **more})


def test_a_deferred_bound_is_computed_once():
    calls = []
    found = Deferred(lambda: calls.append(1) or some_bound(), quick=False)
    assert found.slow and not found.known and not Deferred(lambda: None).slow
    assert found() is found() and len(calls) == 1 and found.known and not found.slow
    kept = pickle.loads(pickle.dumps(found))
    assert kept.known and kept.quick and kept() == some_bound()
    state = Deferred(lambda: some_bound(), quick=False).__getstate__()
    assert state == {"_function": None, "_found": some_bound(), "quick": True}


def test_errors_in_deviations_of_q():
    assert some_bound(deviations=(0.5, 0.0)).relative_error == (pytest.approx(0.2), math.inf)
    assert some_bound().relative_error == () and some_bound(deviations=(-1.0, 0.1)).relative_error[0] == math.inf
    assert math.isnan(PosteriorBound(0.1, (), 0.9, 5).estimate) and some_bound().status == "statistical"


def test_what_is_worth_a_word():
    """Where 94% of q hold half of the posterior; no probability is off by a half from farther on."""
    last = 0.94 * math.log(0.94 / 0.5) + 0.06 * math.log(0.06 / 0.5)
    assert some_bound(0.9999 * last).informative and not some_bound(1.0001 * last).informative
    least = some_bound(0.02)
    assert least.content_words(0.5).startswith("Every 50% interval holds at least ")
    assert least.total_variation == pytest.approx(0.1) and least.content(0.9) == distances.least_content(0.9, 0.02)


def test_plain_data_and_back():
    whole = some_bound(
        status="proven", estimate=0.2, evidence=EvidenceBracket(-1.0, math.inf, 0.9, "none"), deviations=(1.0, 2.0)
    )
    data = reported._plain(whole)
    assert data["evidence"]["upper"] is None and PosteriorBound.from_dict(data) == whole
    data["coordinate_error"][0] = None
    assert PosteriorBound.from_dict({**data, "more": 3}).coordinate_error == (math.inf, 0.3)
    short = {"kl": 0.1, "coordinate_error": [0.2], "confidence": 0.9, "num_samples": 5, "estimate": None}
    assert PosteriorBound.from_dict(short).deviations == () and math.isnan(PosteriorBound.from_dict(short).estimate)


SHOWN, PRIOR = proven(True, "shown"), proven(0.5, "prior")


def constants(concave=SHOWN, strong=PRIOR):
    return Constants(concave, strong, unknown(""))


KNOWN = constants()


PROVEN, LOOSE = GapBound("p", 2.0, "proven"), GapBound("l", 3.0, "proven")
DRAWS, IF = GapBound("s", 0.1, "statistical", 0.99), GapBound("c", 0.01, "conditional", 0.9)


def test_the_verdict_is_the_smallest_of_the_best_status():
    assert build._verdict((LOOSE, DRAWS, PROVEN, IF), None) == ("proven", 2.0, None)
    infinite = dataclasses.replace(PROVEN, value=math.inf)
    assert build._verdict((infinite, IF, DRAWS), None) == ("statistical", 0.1, 0.99)
    assert build._verdict((infinite, IF), None) == ("conditional", 0.01, 0.9)
    assert build._verdict((infinite,), None) == build._verdict((PROVEN,), SEGMENT) == ("none", None, None)


def test_evidence_becomes_a_certificate():
    target = LogDensity(lambda z: -jnp.sum(z**2), 2)
    tails = Assumption("tails", 0.1, "estimated", "seen")

    def made(counterexample=None, **more):
        evidence = Evidence((PROVEN, DRAWS), some_bound(), counterexample, 77, **more)
        return build.build_certificate(target, Gaussian(2), constants(), evidence, lambda seed: certified())

    found = made(tails=tails, notes=("first",))
    assert (found.status, found.gap, found.confidence, found.num_gradients) == ("proven", 2.0, None, 77)
    assert found.bounds == (PROVEN, DRAWS) and found.kl == 0.01 and found.names == target.parameter_names
    assert found.assumptions[-1] is tails and len(found.assumptions) == 4 and len(made().assumptions) == 3
    assert found.notes[0] == "first" and "not jointly" in found.notes[1] and found.obstacle.startswith("q is too far")
    assert made(obstacle="too large").obstacle == "too large" and found.recompute(1) == certified()
    refuted = made(SEGMENT)
    assert (refuted.status, refuted.gap, refuted.distance, refuted.counterexample) == ("none", None, None, SEGMENT)


def test_the_assumptions():
    rows = build._assumptions(constants(), None)
    assert [(row.value, row.status) for row in rows] == [(True, "proven"), (0.5, "proven"), (None, "unknown")]
    refuted = build._assumptions(constants(), SEGMENT)[0]
    assert (refuted.value, refuted.status, refuted.reason) == (False, "violated", str(SEGMENT))
    kurtosis = build._kurtosis(Gaussian(2))
    assert (kurtosis.value, kurtosis.status) == (3.0, "proven")
    heavy = build._kurtosis(LocationScale(2, StudentT(3.0)))
    assert (heavy.value, heavy.status) == (None, "violated") and heavy.reason


def notes(constants=KNOWN, family=None, status="proven", bounds=(), distance=None, found=None):
    return build._notes(constants, family, status, bounds, distance, found)


def test_the_notes():
    family = Gaussian(2)
    none = notes(found=SEGMENT)
    assert len(none) == 1 and none[0].startswith("No certificate") and none == notes(constants(violated(False, "")))
    assert (
        notes() == ()
        and len(notes(constants(unknown("")))) == 1
        and "log_concave=True" in notes(constants(unknown("")))[0]
    )
    assert notes(constants(declared(True))) == () and len(notes(constants(estimated(True, "")))) == 1
    assert "larger budget" in notes(family=family, status="none")[0] and notes(status="none") == ()
    assert "asymptotic" in notes(status="statistical")[0]
    both = notes(bounds=(PROVEN, DRAWS), distance=some_bound())
    assert "not jointly" in both[0] and notes(bounds=(PROVEN,), distance=some_bound()) == () == notes(bounds=(DRAWS,))
    low = Gaussian(3, "low_rank", rank=1)
    assert "against all Gaussians" in notes(family=low)[0] and notes(family=family) == ()


def test_the_obstacle():
    def obstacle(held=KNOWN, family=None, found=None):
        return build._obstacle(held, family, found)

    assert obstacle(found=SEGMENT) == obstacle(constants(violated(False, ""))) == "the target is not log-concave"
    assert "which student_t" in obstacle(family=LocationScale(2, StudentT(4.0)))
    far = "q is too far from the posterior"
    assert obstacle().startswith(far) and obstacle(family=Gaussian(2)).startswith(far)
    assert obstacle(constants(strong=declared(0.1))).startswith(far)
    for strong in (proven(0.0, ""), estimated(0.5, ""), unknown("")):
        assert obstacle(constants(strong=strong)).startswith("it needs strong convexity")
    assert obstacle(constants(unknown(""), unknown(""))).startswith("it needs log-concavity")


def certified(**more):
    held = dict(status="proven", gap=2.0, assumptions=(Assumption("convex", True, "proven", "shown"),), confidence=None,
                bounds=(PROVEN,), distance=None, counterexample=None, notes=(),
                names=("a", "b"), num_gradients=5)  # fmt: skip
    return Certificate(**{**held, **more})


def test_guarantees_are_for_runs_without_rejected_steps():
    family, curve = Gaussian(2), []
    guarantee = SimpleNamespace(
        assumptions=(("smooth", "declared"),), theorem="Theorem 3", metric="gap",
        curve=lambda steps: curve.append(steps.tolist()) or np.array([0.75, 0.1]),
    )  # fmt: skip
    add = getattr(build.with_guarantee, "__wrapped__", build.with_guarantee)
    plain = certified()
    assert add(plain, family, None, 5, 0) is plain and add(plain, family, guarantee, 0, 0) is plain
    noted = add(plain, family, guarantee, 5, 1)
    assert noted.theorem is None and "1 non-finite step(s)" in noted.notes[0]
    found = add(plain, family, guarantee, 1, 0)
    assert (found.theorem, found.a_priori_bound, found.a_priori_metric) == ("Theorem 3", 0.75, "gap") and curve == [[1]]
    assert [row.statement for row in found.assumptions] == ["convex", "kurtosis of the base (normal)", "smooth"]


def test_a_withdrawn_certificate_keeps_the_facts():
    found = build.withdrawn(
        certified(theorem="x", a_priori_bound=1.0, a_priori_metric="y", opening="o", proviso="p"), "it is", "it is not"
    )
    assert (found.status, found.gap, found.confidence, found.bounds, found.distance) == ("none", None, None, (), None)
    assert (found.theorem, found.a_priori_bound, found.a_priori_metric, found.opening, found.proviso) == (
        None,
        None,
        None,
        "",
        "",
    )
    assert found.assumptions[0] == Assumption("it is", False, "violated", "it is not") and len(found.assumptions) == 2
    assert found.notes == ("No certificate: it is not.",) and found.obstacle == "it is not"


def test_gaps_of_each_status():
    found = certified(bounds=(PROVEN, LOOSE, DRAWS, dataclasses.replace(DRAWS, value=0.05), IF))
    assert (found.statistical_gap, found.conditional_gap) == (0.05, 0.01)
    assert certified().statistical_gap is None and certified().conditional_gap is None
    infinite = certified(bounds=(dataclasses.replace(DRAWS, value=math.inf), dataclasses.replace(IF, value=math.inf)))
    assert infinite.statistical_gap is None and infinite.conditional_gap is None


def test_the_headline():
    assert certified(opening="Said.").headline == "Said."
    assert certified().headline == "Proven: within 2 nats of the best member of the family."
    assert certified(confidence=0.99).headline.endswith("family with confidence 0.99.")
    for value, named in ((0.66, True), (0.67, False)):
        other = certified(bounds=(PROVEN, dataclasses.replace(DRAWS, value=value)))
        assert ("Statistical, not proven" in other.headline) == named
    below = certified(status="statistical", gap=2.0, bounds=(DRAWS,))
    assert below.headline.startswith("Statistical") and "not proven" not in below.headline
    assert certified(status="other").headline.startswith("Conditional")
    assert certified(gap=None).headline == "Not certified: no bound on the gap."
    assert certified(gap=None, bounds=(), distance=some_bound()).headline.startswith("No gap, as q is in no family")
    assert certified(gap=None, bounds=()).headline == certified(gap=None, distance=some_bound()).headline


def test_the_distance_line():
    assert certified().distance_line == "No bound on KL(q || posterior)."
    assert certified(obstacle="why").distance_line == "No bound on KL(q || posterior): why."
    lower = certified(elbo=(-3.0, 0.0))
    assert lower.distance_line.endswith("Log evidence at least -3.000 (confidence 0.99).")
    assert (
        certified(distance=some_bound()).distance_line
        == "KL(q || posterior) at most 0.01 nats (statistical, confidence 0.95)."
    )
    proviso = certified(distance=some_bound(), proviso="on the nodes")
    assert proviso.distance_line.startswith("KL(q || posterior) on the nodes at most")
    same = certified(distance=some_bound(status="proven"), elbo=(-3.0, 0.0)).distance_line
    assert same.endswith("log evidence in [-3.000, -2.990].")
    other = certified(distance=some_bound(status="proven"), elbo=(-3.0, 0.1), bounds=(DRAWS,)).distance_line
    assert other.endswith("(statistical, confidence 0.9).")
    assert certified(distance=some_bound()).lines[1:] == (
        certified(distance=some_bound()).distance_line,
        certified(distance=some_bound()).content_line,
    )
    assert len(certified().lines) == 2


def test_the_line_of_contents():
    assert certified().content_line == ""
    wide = certified(distance=some_bound(3.0)).content_line
    assert wide.startswith("That is too wide")
    for status, aside in (("proven", False), ("statistical", True)):
        found = certified(distance=some_bound(0.01, status=status))
        assert (
            found.content_line.startswith("Every 94% interval holds at least")
            and ("(statistical)" in found.content_line) == aside
        )
        assert found.content_line.endswith("no probability is off by more than 0.071.")
    assert " on the nodes" in certified(distance=some_bound(), proviso="on the nodes").content_line


def test_the_bracket_of_the_evidence():
    quantile = stats.norm.isf(0.05)
    found = certified(distance=some_bound(0.5, status="proven"))
    bracket = reported.evidence_bracket(found, -3.0, 0.1)
    assert (bracket.lower, bracket.upper) == pytest.approx((-3 - quantile * 0.1, -3 + quantile * 0.1 + 0.5))
    assert (bracket.confidence, bracket.status) == (0.95, "proven")
    drawn = reported.evidence_bracket(
        certified(distance=some_bound(0.5, status="proven"), bounds=(PROVEN, DRAWS)), -3.0, 0.1
    )
    assert (drawn.lower, drawn.upper) == (bracket.lower, bracket.upper)
    assert (drawn.confidence, drawn.status) == (pytest.approx(0.9), "statistical")
    unbounded = reported.evidence_bracket(certified(distance=some_bound(0.5), bounds=()), -3.0, 0.1)
    assert unbounded.status == "statistical" and unbounded.confidence == pytest.approx(0.9)
    low = reported.evidence_bracket(
        certified(distance=dataclasses.replace(some_bound(), confidence=0.3), bounds=(DRAWS,)), 0.0, 0.0
    )
    assert low.confidence == 0.0
    alone = reported.evidence_bracket(certified(proviso="given"), -3.0, 0.1)
    assert (alone.lower, alone.upper, alone.status, alone.given) == (
        pytest.approx(-3 - stats.norm.isf(0.01) * 0.1),
        math.inf,
        "none",
        "given",
    )
    own = EvidenceBracket(-1.0, 1.0, 0.9, "proven")
    assert reported.evidence_bracket(certified(distance=some_bound(evidence=own)), -3.0, 0.1) is own
    assert certified(distance=some_bound(evidence=own)).evidence is own and certified().evidence is None


def test_a_lower_confidence_is_that_of_all():
    found = reported.at_confidence(certified(bounds=(PROVEN, DRAWS), confidence=0.9, distance=some_bound()), 0.93)
    assert [row.confidence for row in found.bounds] == [None, 0.93] and found.confidence == 0.9
    assert found.posterior.confidence == 0.93 and reported.at_confidence(certified(), 0.5).distance is None
    kept = reported.at_confidence(certified(distance=Deferred(lambda: None)), 0.5)
    assert kept.confidence is None and kept.posterior is None


def test_plain_values_and_content():
    assert reported._plain((1.0, math.inf, np.array([1, 2]), "x", math.nan)) == [1.0, None, [1, 2], "x", None]
    found = certified(distance=some_bound())
    assert found.content(0.5) == distances.least_content(0.5, 0.01) and certified().content() == 0.0
    assert found.content() == distances.least_content(
        0.94, 0.01
    ) and found.total_variation == distances.total_variation(0.01)
    for wrong in (0.0, 1.0):
        with pytest.raises(ValueError, match="probability"):
            found.content(wrong)
    with pytest.raises(ValueError, match="read from a file"):
        found.verify(1)
    asked = []
    again = certified(recompute=lambda seed: asked.append(seed) or certified(gap=1.0), elbo=(1.0, 0.0)).verify(3)
    assert (again.gap, again.elbo, asked) == (1.0, (1.0, 0.0), [3])
    assert certified(recompute=lambda seed: certified(gap=1.0)).verify(3).elbo is None
    infinite = certified(
        bounds=(dataclasses.replace(PROVEN, value=math.inf),),
        counterexample=SEGMENT,
        distance=some_bound(),
        elbo=(1.0, 0.0),
    )
    back = Certificate.from_dict(infinite.to_dict())
    assert back.bounds[0].value == math.inf and back.posterior == some_bound()
    assert (
        np.array_equal(back.counterexample.point, SEGMENT.point)
        and back.elbo == (1.0, 0.0)
        and back.names == ("a", "b")
    )
    assert Certificate.from_dict(certified().to_dict()).posterior is None


def test_rows_of_the_distance():
    names = tuple("abcdefgh")
    bound = PosteriorBound(
        0.01, (0.1, 0.2, 0.3, 0.15, 0.1, 0.49, 0.4, 0.5), 0.95, 1000, "proven", 0.005, deviations=(1.0,) * 8
    )
    rows = certified(distance=bound, names=names, elbo=(-3.0, 0.0)).distance_rows()
    words = [name for name, _ in rows]
    assert rows[0] == ("KL(q || posterior), nats", "at most 0.01, proven")
    assert rows[1] == ("what it bounds, estimated from 1,000 draws", "0.005")
    assert rows[2] == ("log evidence, nats", "in [-3.000, -2.990]")
    assert rows[3][1].startswith("at most 0.071") and words[4:6] == [
        "content of any 50% interval",
        "content of any 94% interval",
    ]
    assert words[6:11] == [f"mean and sd of {name} are off by" for name in "abcde"]
    assert rows[11] == ("... of 2 more", "at most 0.49 sd") and rows[12] == (
        "... of the other 1",
        "not known to within 0.5 sd",
    )
    few = certified(
        distance=dataclasses.replace(bound, deviations=(1.0,) * 5, kl=9.0, estimate=math.nan), names=names
    ).distance_rows()
    assert [name for name, _ in few][0] == words[0] and len(few) == 1 + 5
    none = certified(distance=dataclasses.replace(bound, deviations=(0.1,) * 8), names=names).distance_rows()
    assert not any("other" in name for name, _ in none) and certified().distance_rows() == ()


def test_tables_and_what_stands_below():
    found = certified(bounds=(PROVEN, dataclasses.replace(DRAWS, value=math.inf)), distance=some_bound(), notes=("n",),
                      assumptions=(Assumption("convex", True, "proven", "r"), Assumption("mu", 0.51234, "odd", "r"),
                                   Assumption("M", None, "unknown", "r")))  # fmt: skip
    gaps, posterior, ledger = found.tables()
    assert [list(column.cells) for column in gaps.columns][1:4] == [
        ["2", "-"],
        ["[green]proven[/]", "[cyan]statistical[/]"],
        ["always", "0.99"],
    ]
    assert list(ledger.columns[1].cells) == ["True", "0.5123", ""] and list(ledger.columns[2].cells)[1:] == [
        "odd",
        "[dim]unknown[/]",
    ]
    assert posterior.title.endswith("confidence 0.95") and len(certified(bounds=()).tables()) == 1
    assert found._after() == ["- n"] and certified(theorem="T")._after() == []
    promised = certified(theorem="T", a_priori_bound=0.5, a_priori_metric="gap")._after()
    assert promised == ["T: expected gap <= 0.5, a priori"] and certified(a_priori_bound=0.5)._after() == []
    assert "- n" in str(found) and found.headline in str(found)


def test_what_was_declared_and_refuted():
    refuted = certified(counterexample=SEGMENT)
    reported.check_declared(constants(), refuted)
    reported.check_declared(constants(declared(True)), certified())
    for held, words in (
        (constants(declared(True)), "(log_concave)"),
        (constants(strong=declared(0.1)), "(strong_convexity)"),
    ):
        with pytest.raises(reported.RefutedDeclarationError) as caught:
            reported.check_declared(held, refuted, fit="a fit")
        assert words in str(caught.value) and "`fit` of this error" in str(caught.value)
        assert (caught.value.fit, caught.value.certificate, caught.value.counterexample) == ("a fit", refuted, SEGMENT)
    assert "at least 0" in str(SEGMENT) and "strong_convexity = 0.5" in str(dataclasses.replace(SEGMENT, claimed=0.5))
