"""The verdict on top of a report: its words for what is proven, conditional or not, and what to do next."""

import dataclasses
import math

import jax.numpy as jnp
import numpy as np
import pytest

import provi
from provi.certificates.bounds import GapBound
from provi.certificates.certificate import Assumption, Certificate
from provi.certificates.distance.bound import PosteriorBound
from provi.diagnostics.importance import ImportanceDiagnostics
from provi.diagnostics.pareto import tail_advice
from provi.families import Gaussian, LocationScale, StudentT
from provi.report.html.verdict import answers, estimate_words, family_words, verdict
from provi.result import Estimate, Fit, Posterior
from provi.runtime.record import History

CONVEX = Assumption("potential is convex (log-concave target)", True, "proven", "Gaussian prior")
BENT = Assumption(
    "potential is convex (log-concave target)",
    False,
    "violated",
    "curvature -0.1 found at [3.177149 0.166346 -0.375215 1.164346], where at least 0 was claimed",
)


def made_fit(gap=0.007, status="proven", outcome=provi.Outcome.TOLERANCE, *, elbo=-10.0, scale="triangular", **row):
    family = Gaussian(2, scale)
    found = {"status": status, "gap": gap, "assumptions": (CONVEX,), **row}
    return Fit(
        posterior=Posterior(family, family.point(np.zeros(2), 1.0, jnp.float64), ("a", "b")),
        elbo=Estimate(elbo, 0.1),
        certificate=Certificate(**found),
        outcome=outcome,
        message="",
        history=History(),
        num_steps=1,
        gradient_evaluations=1,
        seconds=1.0,
    )


def diagnosis(tail, num_draws=10_000, error=0.3):
    """What draws found, with k-hat `tail` and a total variation of `error`."""
    blank = {field.name: 0.0 for field in dataclasses.fields(ImportanceDiagnostics)}
    found = {"num_draws": num_draws, "pareto_k": tail, "notes": (), "wrong": (), "unknown": False}
    found["advice"] = tail_advice(tail, num_draws, error, hints=("do this",))
    return ImportanceDiagnostics(**{**blank, **found, "total_variation": error})


def test_a_proven_bound_and_a_good_tail_need_no_more_words():
    good = diagnosis(0.3, error=0.02)
    found = verdict(made_fit(), good)
    assert (found.level, found.title) == ("certified", "Certified within 0.007 nats")
    assert found.sentence.startswith("It is proven: no Gaussian with full covariance is more than 0.007 nats better")
    assert found.warning is None and found.next_steps == ()
    assert "k-hat 0.30: good" in estimate_words(made_fit(), good)


@pytest.mark.parametrize(("tail", "num_draws"), [(0.9, 10_000), (0.69, 1000)])
def test_a_bad_tail_is_said_beside_a_proven_bound(tail, num_draws):
    fit, draws = made_fit(scale="diagonal"), diagnosis(tail, num_draws)
    found = verdict(fit, draws)
    assert (found.level, found.title) == ("caution", "Certified within 0.007 nats, but the family does not fit")
    assert "Within 0.007 nats of the best Gaussian with independent" in str(found.warning)
    assert "but the best one is not the posterior: k-hat is" in str(found.warning)
    assert found.next_steps == ("Mend the family or the model: do this.",)
    assert "k-hat" not in estimate_words(fit, draws)  # said once


def test_an_error_that_weights_can_mend_is_warned_of_and_a_small_one_is_not():
    found = verdict(made_fit(), diagnosis(0.6, error=0.3))
    assert found.level == "certified" and "usable" in str(found.warning) and "off by 0.3" in str(found.warning)
    thin = diagnosis(0.9, error=0.02)
    assert verdict(made_fit(), thin).warning is None and "what q misses is thin" in estimate_words(made_fit(), thin)


def test_an_unknown_tail_is_no_bad_one():
    for tail in (math.nan, -math.inf):
        assert verdict(made_fit(), diagnosis(tail)).level == "certified"


def test_a_wide_bound_is_not_praised():
    early = verdict(made_fit(20.4, outcome=provi.Outcome.GRADIENT_BUDGET), diagnosis(5.0))
    assert early.level == "caution" and early.title == "Not certified: the bound of 20.4 nats is too wide"
    assert early.next_steps == ("Give it a larger budget: the run may not have converged.",)
    assert "This approximation is not the posterior" in str(early.warning)
    assert verdict(made_fit(85290.0, outcome=provi.Outcome.COMPLETED)).title.endswith("85,300 nats is too wide")
    asked = verdict(made_fit(20.4))  # by a tolerance as wide as that
    assert asked.level == "caution" and asked.title == "Certified within 20.4 nats, which is wide"


def test_a_conditional_bound_names_its_condition_and_the_remedy():
    note = "If the log density is known to be concave, pass log_concave=True."
    bound = GapBound("in the metric of q", 0.007, "conditional", 0.99, 2000, "convexity of the potential (unknown)")
    certificate = {"confidence": 0.99, "bounds": (bound,), "notes": (note,)}
    found = verdict(made_fit(status="conditional", outcome=provi.Outcome.CONDITIONAL, **certificate), diagnosis(0.9))
    assert (found.level, found.title) == ("conditional", "Conditionally certified")
    assert found.sentence.startswith("If an assumption holds that was not verified, no Gaussian")
    assert found.sentence.endswith("with confidence 99%.")
    assert "The bound in the metric of q assumes: convexity of the potential (unknown)." in found.reasons
    assert found.next_steps[0] == note and found.warning is not None


def test_why_there_is_no_bound_and_what_would_give_one():
    notes = ("No certificate: every bound needs a log-concave target.",)
    fit = made_fit(None, "none", provi.Outcome.GRADIENT_BUDGET, assumptions=(BENT,), notes=notes)
    found = verdict(fit)
    assert (found.level, found.title) == ("none", "Not certified") and notes[0] in found.reasons
    assert any("curvature -0.1 found at a point (see below), where" in reason for reason in found.reasons)
    assert [words.split()[0] for words in found.next_steps] == ["Give", "No"]
    tails = Assumption("draws reach what matters", 1.0, "violated", "100% beyond")
    found = verdict(made_fit(None, "none", assumptions=(tails,), notes=("A larger budget would give a bound.",)))
    assert found.next_steps == ("A larger budget would give a bound.",)
    assert "An assumption fails: draws reach what matters (100% beyond)." in found.reasons


BOUND = PosteriorBound(0.01, (0.1, 0.2), 0.99, 256, "proven", 0.008, None, (1.0, 1.0))


def test_the_three_answers_of_an_informative_bound():
    best, distance, content = answers(made_fit(distance=BOUND, bounds=(GapBound("a", 0.007, "proven"),)))
    assert (best.question, best.value) == ("How far from the best Gaussian?", "at most 0.007 nats")
    assert (distance.value, distance.status) == ("at most 0.01 nats", "proven")
    assert "confidence 99%" in distance.words and "Log evidence in [−10.233, −9.757]." in distance.words
    assert (content.value, content.status) == ("at least 90%", "proven")
    assert "No posterior probability is off by more than 0.071" in content.words


def test_a_statistical_answer_says_so():
    loose = dataclasses.replace(BOUND, status="statistical")
    _, distance, content = answers(made_fit(distance=loose))
    assert distance.status == content.status == "statistical"


def test_a_wide_bound_and_a_missing_one_say_what_would_help_and_no_more():
    wide = dataclasses.replace(BOUND, kl=2.4)
    content = answers(made_fit(distance=wide))[2]
    assert (content.value, content.status) == ("too wide to say", None)
    assert content.words.startswith("More data, a stronger prior") and "probability" not in content.words
    best, distance = answers(made_fit(None, "none", obstacle="the target is not log-concave"))
    assert best.value == distance.value == "no bound"
    assert distance.words == "The target is not log-concave. Log evidence at least −10.233."


def test_families_have_names_for_people():
    family = LocationScale(2, StudentT(5.0), "diagonal")
    posterior = Posterior(family, family.point(np.zeros(2), 1.0, jnp.float64), ("a", "b"))
    words = family_words(dataclasses.replace(made_fit(), posterior=posterior))
    assert words == "Student t distribution with independent coordinates (mean field)"


def test_runs_that_broke_say_so():
    broken = dataclasses.replace(made_fit(outcome=provi.Outcome.NONFINITE), message="at step 3")
    found = verdict(broken)
    assert any("did not finish" in reason and "at step 3" in reason for reason in found.reasons)
    assert found.next_steps[0].startswith("Look where the log density")
    assert verdict(made_fit(None, "none", elbo=math.nan)).next_steps[0].startswith("Look where the log density")
    assert "resume=True" in verdict(made_fit(outcome=provi.Outcome.INTERRUPTED)).next_steps[0]


def test_what_was_declared_or_estimated_is_said():
    rows = (
        Assumption("potential is convex", True, "declared", "declared by the user"),
        Assumption("draws reach what matters", 0.1, "estimated", "share beyond"),
    )
    found = verdict(made_fit(assumptions=rows, confidence=0.99))
    assert "with confidence 99%" in found.sentence
    assert any(r.startswith("Declared by you and not checked: potential is convex") for r in found.reasons)
    assert any(r.startswith("Estimated numerically: draws reach") for r in found.reasons)
