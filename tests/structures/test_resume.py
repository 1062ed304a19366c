"""The default fits resume bit for bit: point, outcome, certificate and what they cost."""

import jax.numpy as jnp
import numpy as np
import pytest

import provi
from provi.certificates.bounds import spend
from provi.structures.base import Request
from provi.structures.stopping import MOST_TRIES, ProvenStop, SampledStop, extra_level

BANANA = provi.targets.LogDensity(lambda z: -0.5 * z[0] ** 2 - 2 * (z[1] - 0.5 * z[0] ** 2) ** 2, 2)
COSH = provi.targets.LogDensity(lambda z: -jnp.sum(jnp.cosh(z - 0.3)), 2, log_concave=True)
RNG = np.random.default_rng(0)
LINEAR = provi.targets.LogisticRegression(RNG.normal(size=(20, 2)), RNG.random(20) < 0.5)


def assert_same(found, other):
    np.testing.assert_array_equal(found.posterior.mean, other.posterior.mean)
    np.testing.assert_array_equal(found.posterior.covariance, other.posterior.covariance)
    assert found.certificate.to_dict() == other.certificate.to_dict()
    for name in ("outcome", "message", "num_steps", "gradient_evaluations", "elbo"):
        assert getattr(found, name) == getattr(other, name), name
    seconds = provi.runtime.record.FIELDS.index("seconds")
    histories = [np.delete(fit.history.as_array(), seconds, axis=1) for fit in (found, other)]
    np.testing.assert_array_equal(*histories)


def interrupted(monkeypatch, rule, at, target, **options):
    """A fit that is interrupted when its rule is asked at step `at`."""
    ask = rule.__call__

    def interrupt(self, state):
        if int(state.step) == at:
            raise KeyboardInterrupt
        return ask(self, state)

    with monkeypatch.context() as patch:
        patch.setattr(rule, "__call__", interrupt)
        return provi.fit(target, progress=False, **options)


@pytest.mark.parametrize(
    ("target", "seed"), [(BANANA, 0), (BANANA, 1), (BANANA, 2), (COSH, 0)], ids=["none 0", "none 1", "none 2", "proven"]
)
def test_black_boxes_resume_bit_for_bit(target, seed, tmp_path, monkeypatch):
    """Stopped by the heuristic where nothing can be proven, and by the certificate; also after two interruptions."""
    options = {"seed": seed, "checkpoint": tmp_path / "run.ckpt"}
    whole = provi.fit(target, seed=seed, progress=False)
    assert whole.outcome.name == ("STATIONARY" if target is BANANA else "TOLERANCE")
    places = (10, whole.num_steps - 3, whole.num_steps) if target is BANANA else (2, whole.num_steps)
    for number, at in enumerate(places):
        part = interrupted(monkeypatch, SampledStop, at, target, resume=number > 0, **options)
        assert part.outcome is provi.Outcome.INTERRUPTED and part.num_steps == at
    resumed = provi.fit(target, progress=False, resume=True, **options)
    assert_same(resumed, whole)
    # A run that had ended stays ended.
    assert_same(provi.fit(target, progress=False, resume=True, **options), whole)


def test_linear_models_resume_bit_for_bit(tmp_path, monkeypatch):
    options = {"checkpoint": tmp_path / "run.ckpt"}
    whole = provi.fit(LINEAR)
    interrupted(monkeypatch, ProvenStop, whole.num_steps - 1, LINEAR, **options)
    assert_same(provi.fit(LINEAR, resume=True, **options), whole)


def test_a_resumed_run_may_ask_for_less(tmp_path):
    """Another tolerance: the rule goes on from where q is, with new tries at a level that was not spent."""
    options = {"checkpoint": tmp_path / "run.ckpt", "progress": False}
    first = provi.fit(COSH, tol=0.05, **options)
    second = provi.fit(COSH, tol=0.005, resume=True, **options)
    assert first.certificate.gap <= 0.05 and second.certificate.gap <= 0.005
    assert second.num_steps >= first.num_steps


def test_the_levels_of_all_calls_add_up_to_the_error_probability():
    """The tries and the certificate after the last; and for each call one beside them, or its own tries as well."""
    request = Request(0.01, 0.95, provi.Budget(), 0, {})
    tries = sum(spend(0.05, k) for k in range(MOST_TRIES + 1))
    calls = sum(extra_level(request, call) * (1 / 2 + 1 / 4) for call in range(60))
    assert tries + calls <= 0.05 + 1e-15
