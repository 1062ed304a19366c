"""The certificate as an object: JSON and back, what it prints, and what it refuses."""

import dataclasses
import io
import json
import math

import numpy as np
import pytest
from rich.console import Console

from provi.certificates.bounds import GapBound
from provi.certificates.certificate import Assumption, Certificate, Counterexample, at_confidence
from provi.certificates.distance.bound import EvidenceBracket, PosteriorBound, least_content

BOUNDS = (
    GapBound("strong convexity (a)", math.inf, "proven", detail="no positive curvature bound"),
    GapBound("linearisation (b)", 0.02, "proven"),
    GapBound("in the metric of q", 0.01, "conditional", 0.99, 4096, "the curvature [not verified]"),
)
FULL = Certificate(
    status="proven",
    gap=0.02,
    assumptions=(
        Assumption("potential is convex", True, "proven", "Gaussian prior"),
        Assumption("smoothness M", None, "unknown", "not smooth: [a-z] is unbounded"),
        Assumption("strong convexity mu", 0.25, "declared", "by the user"),
    ),
    confidence=0.99,
    bounds=BOUNDS,
    distance=PosteriorBound(0.3, (0.1, 0.2, 0.3, 0.4, 0.4, 0.9, 0.45), 0.99, 256, "statistical", 0.2, None, (1.0,) * 7),
    elbo=(-12.3456, 1e-6),
    theorem="Theorem 8",
    a_priori_bound=1.5,
    a_priori_metric="f(w) - f*",
    notes=("a note [with brackets]",),
    names=("theta[age]", "z[a,b]", "c", "d", "e", "vague", "f"),
    num_gradients=17,
)
FOUND = Counterexample(np.array([0.5, -1.0]), np.array([1.0, 0.0]), -0.3, 0.0)
REFUSED = Certificate(
    status="none",
    gap=None,
    assumptions=(Assumption("potential is convex", False, "violated", str(FOUND)),),
    bounds=(BOUNDS[0],),
    counterexample=FOUND,
)


@pytest.mark.parametrize("certificate", [FULL, REFUSED], ids=["full", "refused"])
def test_json_round_trip(certificate):
    text = certificate.to_json()
    back = Certificate.from_dict(json.loads(text))
    assert back.to_json() == text
    assert dataclasses.replace(back, counterexample=None) == dataclasses.replace(certificate, counterexample=None)
    assert back.bounds[0].value == math.inf and "Infinity" not in text and "NaN" not in text
    if certificate.counterexample is not None:
        np.testing.assert_array_equal(back.counterexample.point, FOUND.point)
        np.testing.assert_array_equal(back.counterexample.direction, FOUND.direction)
        assert (back.counterexample.curvature, back.counterexample.claimed) == (-0.3, 0.0)
    assert str(back) == str(certificate)


def test_an_infinite_theorem_bound_survives_the_file():
    endless = dataclasses.replace(FULL, a_priori_bound=math.inf)
    back = Certificate.from_dict(json.loads(endless.to_json()))
    assert back.a_priori_bound is None and "Proven" in str(back)


def test_headline():
    assert FULL.headline == "Proven: within 0.02 nats of the best member of the family with confidence 0.99."
    sure = dataclasses.replace(FULL, confidence=None)
    assert sure.headline == "Proven: within 0.02 nats of the best member of the family."
    assert dataclasses.replace(FULL, status="conditional").headline.startswith("Conditional")
    assert REFUSED.headline == "Not certified: no bound on the gap."


def test_print_shows_every_part_and_leaves_brackets_alone():
    text = " ".join(str(FULL).split())
    parts = ("0.02", "linearisation (b)", "always", "KL(q || posterior)", "Theorem 8", "declared")
    for part in (*parts, "theta[age]", "z[a,b]", "... of 1 more", "at most 0.45 sd", "a note [with brackets]"):
        assert part in text, part
    assert "[not verified]" in text and "vague" not in text
    assert "[a-z]" in text
    narrow = Console(width=60, file=io.StringIO())
    FULL.print(narrow)
    assert "Proven" in narrow.file.getvalue()


def bounded(kl, status="proven"):
    """The certificate with another bound on the KL."""
    bound = PosteriorBound(kl, (9.0,) * 7, 0.99, 256, status, kl, None, (1.0,) * 7)
    return dataclasses.replace(FULL, distance=bound, elbo=None)


def test_three_lines_of_an_informative_bound():
    first, second, third = bounded(0.01).lines
    assert first == FULL.headline
    assert second == "KL(q || posterior) at most 0.01 nats (proven, confidence 0.99)."
    assert third == "Every 94% interval holds at least 90% of the posterior; no probability is off by more than 0.071."
    assert least_content(0.94, 0.01) > 0.9
    text = str(bounded(0.01))
    assert text.splitlines()[:3] == [first, second, third] and "content of any 50% interval" in text
    assert "mean and sd" not in text  # off by 9 sd says nothing


def test_the_lines_say_statistical():
    always = tuple(dataclasses.replace(bound, confidence=None) for bound in BOUNDS)
    _, second, third = dataclasses.replace(FULL, bounds=always).lines
    assert second == (
        "KL(q || posterior) at most 0.3 nats (statistical, confidence 0.99); log evidence in [-12.346, -12.045]."
    )
    assert third.startswith("Every 94% interval holds at least 60% of the posterior (statistical); no probability")
    # An ELBO from draws takes its own share of the confidence.
    assert FULL.lines[1].endswith("log evidence in [-12.346, -12.045] (statistical, confidence 0.98).")


@pytest.mark.parametrize(
    ("certificate", "words"),
    [
        (bounded(0.95), "more data, a stronger prior or a richer family would help; fit.diagnose() estimates"),
        (bounded(2.4, "statistical"), "intervals hold of the posterior: more data"),
    ],
    ids=["proven", "statistical"],
)
def test_what_a_wide_bound_cannot_say_is_not_printed(certificate, words):
    text = " ".join(str(certificate).split())
    assert words in text
    for vacuous in ("probability is off", "error of any posterior", "interval holds", "content of", "mean and sd"):
        assert vacuous not in text, vacuous
    assert "at most 1 " not in text


def test_without_a_bound_one_sentence_says_why():
    missing = dataclasses.replace(REFUSED, obstacle="the target is not log-concave")
    why = "No bound on KL(q || posterior): the target is not log-concave."
    assert missing.lines == (REFUSED.headline, why) and str(missing).count("No bound on KL") == 1
    held = dataclasses.replace(missing, elbo=(-3.0, 0.0))
    assert held.lines[1] == f"{why} Log evidence at least -3.000 (confidence 0.99)."
    assert Certificate.from_dict(json.loads(held.to_json())).evidence == held.evidence
    assert held.evidence == EvidenceBracket(-3.0, math.inf, 0.99, "none")
    assert REFUSED.lines[1] == "No bound on KL(q || posterior)."


def test_certificates_of_older_files_load():
    data = json.loads(FULL.to_json())
    del data["evidence"], data["elbo"], data["obstacle"], data["posterior"]["deviations"]
    data["posterior"]["total_variation"] = 0.39
    data["posterior"]["estimate"] = None
    old = Certificate.from_dict(data)
    assert math.isnan(old.posterior.estimate) and old.evidence is None
    assert old.posterior.relative_error == () and "mean and sd" not in str(old)


def test_print_of_a_refusal_names_the_counterexample():
    text = " ".join(str(REFUSED).split())
    assert "Not certified" in text and "violated" in text and "-0.3" in text


def test_conditional_gap_stands_beside_a_proven_one():
    assert FULL.conditional_gap == 0.01
    assert REFUSED.conditional_gap is None
    unusable = GapBound("x", math.inf, "conditional")
    assert dataclasses.replace(FULL, bounds=(unusable,)).conditional_gap is None


def test_verify_calls_recompute_with_the_seed():
    seen = []
    alive = dataclasses.replace(FULL, elbo=None, recompute=lambda seed: seen.append(seed) or REFUSED)
    assert alive.verify(7) is REFUSED and seen == [7]
    assert dataclasses.replace(alive, elbo=FULL.elbo) == FULL  # the function is not part of the statement


def test_a_certificate_computed_again_keeps_the_elbo():
    alive = dataclasses.replace(FULL, recompute=lambda seed: bounded(0.1))
    assert alive.verify(7).elbo == FULL.elbo and alive.verify(7).evidence.width > 0.1


def test_a_q_in_no_family_has_no_gap_but_a_distance():
    alone = dataclasses.replace(bounded(0.01), status="none", gap=None, bounds=())
    assert alone.headline == "No gap, as q is in no family."
    assert dataclasses.replace(alone, distance=None).headline.startswith("Not certified")


def test_verify_after_loading_says_what_to_do():
    back = Certificate.from_dict(FULL.to_dict())
    with pytest.raises(ValueError, match=r"provi\.certify\(target, fit, seed=\.\.\.\)"):
        back.verify(0)


def test_at_confidence_lowers_every_level_and_raises_none():
    lowered = at_confidence(FULL, 0.9)
    assert lowered.confidence == 0.9 and lowered.posterior.confidence == 0.9
    assert [bound.confidence for bound in lowered.bounds] == [None, None, 0.9]
    assert at_confidence(FULL, 0.999) == FULL
    assert at_confidence(dataclasses.replace(FULL, confidence=None), 0.9).confidence is None


def test_rows_that_stand_for_several_hold_of_all_of_them():
    """Five are listed; of the rest the largest bound below a half, and the number of those without one."""
    errors = (0.3, 0.1, 0.45, 0.2, 0.11, 0.123, 0.4321, 0.05, 0.7, math.inf, 0.31)
    bound = PosteriorBound(0.01, errors, 0.99, 256, "proven", 0.01, None, (1.0,) * len(errors))
    names = tuple(f"z{i}" for i in range(len(errors)))
    rows = dataclasses.replace(FULL, names=names, distance=bound, elbo=None).distance_rows()
    assert rows[-2] == ("... of 4 more", "at most 0.44 sd")
    assert rows[-1] == ("... of the other 2", "not known to within 0.5 sd")
    assert sum(quantity.startswith("mean and sd of") for quantity, _ in rows) == 5
    none = dataclasses.replace(FULL, names=names, distance=dataclasses.replace(bound, coordinate_error=(9.0,) * 11))
    assert not any("other" in quantity for quantity, _ in none.distance_rows())
