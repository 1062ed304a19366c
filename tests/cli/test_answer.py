"""The verdict of a command: certificate, k-hat and the check of the model together, and the exit code."""

import dataclasses
import types

import pytest

from provi.certificates.bounds import GapBound
from provi.certificates.certificate import Assumption, Certificate
from provi.certificates.distance.bound import EvidenceBracket
from provi.cli.answer import Answer, Verdict, check_lines, deliver, judge_fit
from provi.runtime.record import Outcome

CONVEX = Assumption("potential is convex", None, "unknown", "not declared")
GOOD = types.SimpleNamespace(ok=True, verdict="The model fits.", advice=(), influence=None, notes=())
BAD = types.SimpleNamespace(ok=False, verdict="The model does not fit: x.", advice=("Try y.",))
TAIL = types.SimpleNamespace(misses_posterior=True, pareto_k=1.2, advice="k-hat 1.20: bad.")


def made(gap=0.001, status="proven", outcome=Outcome.TOLERANCE, tail=None, **row):
    bounds = () if gap is None else (GapBound("b", gap, status, None, 0, "a thing"),)
    certificate = Certificate(status, gap, (CONVEX,), **{"bounds": bounds, **row})
    posterior = types.SimpleNamespace(latest_diagnosis=tail)
    bracket = EvidenceBracket(-2.0, -1.9, 0.99, "proven", "on the nodes")
    return types.SimpleNamespace(
        certificate=certificate, posterior=posterior, message="it ended", outcome=outcome, evidence=bracket
    )


@pytest.mark.parametrize(
    ("fit", "checked", "word", "good", "words"),
    [
        (made(), GOOD, "certified", True, "Certified: the gap"),
        (made(), None, "certified", True, "Certified: the gap"),
        (made(), "check: no data.", "certified", True, "Certified: the gap"),
        (made(), BAD, "does not fit", False, "Certified approximation of a model that does not fit. Certified: the"),
        (made(tail=TAIL), GOOD, "not to be trusted", False, "But k-hat 1.20"),
        (made(tail=TAIL), BAD, "not to be trusted", False, "The model does not fit: x."),
        (made(gap=1.0), GOOD, "not certified", False, "Not certified within tol"),
        (made(gap=None, status="none"), BAD, "not certified", False, "The model does not fit: x."),
        (made(status="conditional"), GOOD, "conditional", False, "on the condition"),
        (made(None, "none", opening="Integrated."), GOOD, "conditional", True, "Converged, nothing proven"),
        (made(None, "none", opening="Integrated."), BAD, "does not fit", False, "Approximation of a model that does"),
        (made(None, "none", Outcome.COMPLETED, opening="Integrated."), GOOD, "not certified", False, "Not converged"),
    ],
)
def test_verdicts(fit, checked, word, good, words):
    found = judge_fit(fit, 0.01, checked)
    assert (found.word, found.good, found.exit_code) == (word, good, 0 if good else 1)
    assert words in found.sentence
    assert (checked is BAD) == ("Try y." in found.warnings) and (fit.posterior.latest_diagnosis is TAIL) == (
        TAIL.advice in found.warnings
    )


def test_a_model_without_a_certificate_has_to_converge():
    moving, still = (made(None, "none", outcome) for outcome in (Outcome.COMPLETED, Outcome.STATIONARY))
    assert judge_fit(still, 0.01, GOOD, provable=False).word == "converged"
    assert judge_fit(still, 0.01, GOOD, provable=False).exit_code == 0
    assert judge_fit(moving, 0.01, GOOD, provable=False).sentence.startswith("Not converged. It ended.")
    assert judge_fit(still, 0.01, BAD, provable=False).word == "does not fit"
    spoilt = made(None, "none", Outcome.STATIONARY, tail=TAIL)
    assert judge_fit(spoilt, 0.01, GOOD, provable=False).word == "not to be trusted"
    for each in (moving, spoilt):
        assert judge_fit(each, 0.01, GOOD, provable=False).exit_code == 1
    # The same fit of a model that nobody chose for it is not good enough.
    assert judge_fit(still, 0.01, GOOD).exit_code == 1


def test_a_statistical_gap_within_tol_is_certified_beside_a_wider_proof():
    bounds = (GapBound("a", 0.4, "proven", 0.99, 0, ""), GapBound("b", 0.005, "statistical", 0.99, 0, ""))
    found = judge_fit(made(0.4, "proven", bounds=bounds, confidence=0.99), 0.01)
    assert (found.word, found.good) == ("certified", True)
    assert found.sentence.startswith("Certified statistically") and "0.005 <= tol" in found.sentence
    assert found.sentence.endswith("proven to be at most 0.4.")
    assert not judge_fit(made(0.4, "proven", bounds=bounds, confidence=0.99), 0.001).good


def test_quiet_keeps_warnings_and_json_has_them(capsys):
    answer = Answer(Verdict("does not fit", "It does not.", False, ("Look.",)), {"a": 1}, lambda console: None, ("k",))
    assert deliver(answer, False, True) == 1
    said = capsys.readouterr()
    assert said.out == "It does not.\n" and said.err == "Warning: Look.\n"
    assert deliver(dataclasses.replace(answer), True, False) == 1
    said = capsys.readouterr()
    assert '"warnings": [\n    "Look."' in said.out and not said.err


def test_lines_of_a_check():
    assert check_lines(None) == [] and check_lines(GOOD) == ["", "The model fits."]
    assert check_lines("check: no data.") == ["", "Whether the model fits was not checked (no data)."]
