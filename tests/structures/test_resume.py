"""The default fits resume bit for bit: point, outcome, certificate and what they cost."""

import dataclasses
import importlib
import signal

import jax.numpy as jnp
import numpy as np
import pytest

import provi
from provi.certificates.bounds import spend
from provi.runtime.checkpoint import previous_of
from provi.structures import nested
from provi.structures.base import Request
from provi.structures.stopping import MOST_TRIES, ProvenStop, SampledStop, extra_level

fit_batch = nested._fit_batch
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


COUNTS = RNG.poisson(np.exp(RNG.normal(size=6))[np.arange(30) % 6]).astype(float)
LATENT = provi.targets.LatentGaussian(
    COUNTS, "poisson", fixed=np.ones((30, 1)), blocks=provi.targets.latent.Independent(np.arange(30) % 6)
)


class Stopped:
    """In place of `nested._fit_batch`: counts its calls, and interrupts the `at`-th."""

    def __init__(self, at=None, signal_number=None):
        self.calls, self.at, self.number = 0, at, signal_number

    def __call__(self, *given):
        self.calls += 1
        if self.calls == self.at and self.number is None:
            raise KeyboardInterrupt
        if self.calls == self.at:
            signal.raise_signal(self.number)
        return fit_batch(*given)


def nested_fit(monkeypatch, stopped, target=LATENT, **options):
    with monkeypatch.context() as patch:
        patch.setattr(nested, "_fit_batch", stopped)
        return provi.fit(target, progress=False, **options)


def test_nested_fits_go_on_where_they_were_and_end_with_the_same_bits(tmp_path, monkeypatch):
    """Interrupted by an error, by Ctrl-C and by SIGTERM; what was computed is not computed again."""
    options = {"checkpoint": tmp_path / "run.ckpt", "checkpoint_seconds": 1e9}
    count = Stopped()
    whole = nested_fit(monkeypatch, count)
    for place, (at, number) in enumerate([(3, None), (2, signal.SIGTERM)]):
        with pytest.raises(KeyboardInterrupt):
            nested_fit(monkeypatch, Stopped(at, number), resume=place > 0, **options)
        assert (tmp_path / "run.ckpt").exists() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    rest = Stopped()
    resumed = nested_fit(monkeypatch, rest, resume=True, **options)
    assert_same(resumed, whole)
    for name in ("nodes", "log_weights", "inner", "sites", "scale"):
        np.testing.assert_array_equal(getattr(resumed.posterior.point, name), getattr(whole.posterior.point, name))
    assert 0 < rest.calls <= count.calls - 3
    again = Stopped()
    assert_same(nested_fit(monkeypatch, again, resume=True, **options), whole)
    assert again.calls == 0
    with pytest.raises(ValueError, match=r"run.ckpt belongs to another run .*resume=False"):
        provi.fit(LATENT, seed=1, resume=True, **options)


def test_a_damaged_journal_falls_back_or_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "run.ckpt"
    options = {"checkpoint": path, "checkpoint_seconds": 0.0}
    whole = provi.fit(LATENT, progress=False, **options)
    damaged = bytearray(path.read_bytes())
    damaged[-5] ^= 1
    path.write_bytes(damaged)
    with pytest.warns(UserWarning, match="digest differs.*goes on from the checkpoint before"):
        assert_same(nested_fit(monkeypatch, Stopped(), resume=True, **options), whole)
    path.write_bytes(damaged)
    previous_of(path).write_bytes(damaged)
    with pytest.raises(ValueError, match="is damaged.*resume=False"):
        provi.fit(LATENT, progress=False, resume=True, **options)
    provi.fit(LINEAR, checkpoint=path)
    with pytest.raises(ValueError, match="is not the checkpoint of a ProVI search"):
        provi.fit(LATENT, progress=False, resume=True, **options)


def test_a_journal_that_cannot_be_written_costs_the_file_and_not_the_fit(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("provi.runtime.checkpoint.write_tensors", full)
    with pytest.warns(UserWarning, match="checkpoint was not written, and the search goes on"):
        assert provi.fit(LATENT, progress=False, checkpoint=tmp_path / "run.ckpt").outcome.ok


@pytest.mark.parametrize("where", ["race", "gaussian"])
def test_an_interruption_of_a_search_ends_the_fit(where, monkeypatch):
    """It ended the search alone: the fit went on from where that was, and nobody knew."""
    module = importlib.import_module("provi.structures.black_box")
    family = provi.families.Student(2) if where == "gaussian" else None
    real = {"race": module.run, "gaussian": importlib.import_module("provi.structures.richer").run_black_box}[where]

    def cut_short(*given, **options):
        found = real(*given, **options)
        part = found if where == "race" else found.run
        part = dataclasses.replace(part, outcome=provi.Outcome.INTERRUPTED)
        return part if where == "race" else dataclasses.replace(found, run=part)

    place = "black_box.run" if where == "race" else "richer.run_black_box"
    monkeypatch.setattr(f"provi.structures.{place}", cut_short)
    with pytest.raises(KeyboardInterrupt):
        provi.fit(BANANA, family, progress=False)


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
