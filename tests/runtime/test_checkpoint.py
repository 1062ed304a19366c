"""Checkpoints: bit-for-bit resumption, also after `kill -9`, and refusal of what does not fit."""

import errno
import gc
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from provi.algorithms import ProjSGD, ProxSGD
from provi.families import Gaussian
from provi.runtime import Budget, checkpoint, run
from provi.runtime.checkpoint import fingerprint, previous_of, saved_segments
from provi.runtime.record import Outcome
from provi.runtime.run import check_checkpoint
from provi.schedules import GeometricAverage, ReshuffledSampling
from provi.targets import LogisticRegression
from support.members import flat

RNG = np.random.default_rng(2)
X, Y = RNG.normal(size=(20, 2)), RNG.random(20) < 0.5
TARGET = LogisticRegression(X, Y)
FAMILY = Gaussian(2, "symmetric")
START = FAMILY.point(np.zeros(2), 0.5)
PROX = ProxSGD(0.02, 2, averaging=GeometricAverage(0.99), anchored=True, data_sampling=ReshuffledSampling(3))


def go(algorithm, num_steps, **options):
    settings = {"target": TARGET, "family": FAMILY, "start": START, "seed": 1} | options
    return run(algorithm, num_steps=num_steps, **settings)


def test_a_resumed_run_ends_with_the_bits_of_an_uninterrupted_one(tmp_path):
    """In blocks of many steps; tests/laws has every algorithm."""
    path = tmp_path / "run.safetensors"
    whole = go(PROX, 1000)
    first = go(PROX, 300, checkpoint=path)
    resumed = go(PROX, 1000, checkpoint=path, resume=True)
    assert first.num_steps == 300 and resumed.num_steps == 1000
    np.testing.assert_array_equal(flat(resumed.point), flat(whole.point))
    np.testing.assert_array_equal(flat(resumed.last), flat(whole.last))
    assert resumed.gradient_evaluations == whole.gradient_evaluations == 2000
    steps = resumed.history["step"]
    assert (np.diff(steps) > 0).all() and {1, 300, 1000} <= set(steps)
    assert (np.diff(resumed.history["seconds"]) >= 0).all() and resumed.seconds > first.seconds


def test_a_run_that_was_finished_stays_finished(tmp_path):
    path = tmp_path / "folder" / "run.safetensors"
    first = go(PROX, 10**5, checkpoint=path, budget=Budget(gradients=50))
    again = go(PROX, 10**5, checkpoint=path, budget=Budget(gradients=50), resume=True)
    assert again.outcome is Outcome.GRADIENT_BUDGET and again.num_steps == first.num_steps == 25
    np.testing.assert_array_equal(again.history.as_array(), first.history.as_array())
    assert sorted(p.name for p in path.parent.iterdir()) == ["run.safetensors", "run.safetensors.previous"]


def test_without_resume_the_run_starts_afresh(tmp_path):
    path = tmp_path / "run.safetensors"
    go(PROX, 30, checkpoint=path)
    fresh = go(PROX, 20, checkpoint=path)
    assert fresh.num_steps == 20
    missing = go(PROX, 20, checkpoint=tmp_path / "none.safetensors", resume=True)
    np.testing.assert_array_equal(flat(missing.point), flat(fresh.point))
    with pytest.raises(ValueError, match="resume=True needs checkpoint="):
        go(PROX, 20, resume=True)


OTHER_RUNS = {
    "data": {"target": LogisticRegression(X + 1, Y)},
    "prior": {"target": LogisticRegression(X, Y, 2.0)},
    "start": {"start": FAMILY.point([0.0, 1.0], 0.5)},
    "seed": {"seed": 2},
    "scale": {"family": Gaussian(2), "start": Gaussian(2).point(np.zeros(2), 0.5)},
    "step": {"algorithm": ProxSGD(0.03, 2)},
    "draws": {"algorithm": ProxSGD(0.02, 3)},
    "anchored": {"algorithm": ProxSGD(0.02, 2, anchored=True)},
    "sampling": {"algorithm": ProxSGD(0.02, 2, data_sampling=ReshuffledSampling(4))},
    "averaging": {"algorithm": ProxSGD(0.02, 2, averaging=GeometricAverage(0.5, of="after"))},
    "method": {"algorithm": ProjSGD(0.02, 2)},
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "run.safetensors"
    go(ProxSGD(0.02, 2), 3, checkpoint=path)
    return path


@pytest.mark.parametrize("name", OTHER_RUNS)
def test_a_checkpoint_of_another_run_is_refused(name, saved):
    options = dict(OTHER_RUNS[name])
    algorithm = options.pop("algorithm", ProxSGD(0.02, 2))
    with pytest.raises(ValueError, match="belongs to another run.*resume=False"):
        go(algorithm, 5, checkpoint=saved, resume=True, **options)


def test_static_settings_are_part_of_the_fingerprint():
    prints = {
        fingerprint(ProxSGD(0.1, averaging=GeometricAverage(0.5, of=of), anchored=anchored), Gaussian(2, scale))
        for of in ("before", "after")
        for anchored in (True, False)
        for scale in ("triangular", "symmetric", "diagonal")
    }
    assert len(prints) == 12


@pytest.mark.parametrize("damage", ["truncated", "one_byte", "text", "empty", "other_format"])
def test_a_damaged_file_is_refused(damage, saved, tmp_path):
    path = tmp_path / "damaged.safetensors"
    content = bytearray(saved.read_bytes())
    if damage == "truncated":
        content = content[: len(content) // 2]
    elif damage == "one_byte":
        content[-5] ^= 1
    elif damage == "text":
        content = bytearray(b"this is not a checkpoint at all")
    elif damage == "empty":
        content = bytearray()
    else:
        content = bytearray(bytes(content).replace(b"provi-checkpoint", b"other-checkpoint"))
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"damaged\.safetensors.*resume=False"):
        go(ProxSGD(0.02, 2), 5, checkpoint=path, resume=True)


def metadata_of(path):
    with safe_open(path, framework="numpy") as file:
        return file.metadata()


def test_numbers_of_another_type_or_shape_are_refused(saved, tmp_path):
    """The bytes are the same, which was all that the digest of format 1 covered."""
    path, tensors = tmp_path / "run.safetensors", load_file(saved)
    name = next(name for name, array in tensors.items() if array.shape == (2, 2) and array.dtype == np.float64)
    for other in (tensors[name].view(np.int64), tensors[name].reshape(4, 1)):
        save_file(tensors | {name: other}, path, metadata=metadata_of(saved))
        with pytest.raises(ValueError, match="is damaged: its content is not what was written.*resume=False"):
            go(ProxSGD(0.02, 2), 5, checkpoint=path, resume=True)


def test_checkpoints_of_format_1_are_read(saved, tmp_path):
    path, tensors = tmp_path / "run.safetensors", load_file(saved)
    metadata = {name: metadata_of(saved)[name] for name in ("identity", "seconds", "segments")}
    with safe_open(saved, framework="numpy") as file:
        metadata |= {"format": "provi-checkpoint-1", "digest": checkpoint._first_digest(file)}
    save_file(tensors, path, metadata=metadata)
    resumed = go(ProxSGD(0.02, 2), 5, checkpoint=path, resume=True)
    np.testing.assert_array_equal(flat(resumed.point), flat(go(ProxSGD(0.02, 2), 5).point))
    tensors["history"][0, 0] += 1
    save_file(tensors, path, metadata=metadata)
    previous_of(path).unlink()
    with pytest.raises(ValueError, match="its numbers are not those that were saved"):
        go(ProxSGD(0.02, 2), 5, checkpoint=path, resume=True)


def test_the_file_of_2026_11_19_is_gone_on_from(tmp_path):
    """Format 2 as it was on that day, after three steps of five: a change that cannot read it needs a new format."""
    path = tmp_path / "run.safetensors"
    path.write_bytes((Path(__file__).parent / "files" / "checkpoint-2.safetensors").read_bytes())
    resumed, whole = go(ProxSGD(0.02, 2), 5, checkpoint=path, resume=True), go(ProxSGD(0.02, 2), 5)
    assert resumed.num_steps == 5 and resumed.gradient_evaluations == whole.gradient_evaluations
    np.testing.assert_allclose(flat(resumed.point), flat(whole.point), rtol=1e-9)  # of another machine
    assert resumed.seconds > 0 and resumed.history["step"][-1] == 5


def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path):
    path = tmp_path / "run.safetensors"
    go(PROX, 30, checkpoint=path)
    go(PROX, 60, checkpoint=path, resume=True)
    path.write_bytes(path.read_bytes()[:-1])
    calls = saved_segments(previous_of(path))
    assert saved_segments(path) == calls + 1
    with pytest.warns(
        UserWarning, match=r"run\.safetensors .*damaged.* goes on from the checkpoint before it.*previous"
    ):
        resumed = go(PROX, 90, checkpoint=path, resume=True)
    np.testing.assert_array_equal(flat(resumed.point), flat(go(PROX, 90).point))
    for file in (path, previous_of(path)):
        file.write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"checkpoint .*run\.safetensors .*damaged.*resume=False"):
        go(PROX, 90, checkpoint=path, resume=True)


def test_a_path_that_cannot_be_written_is_refused_before_the_run(saved):
    """Not at its end, with the run lost."""
    steps = []
    for path, reason in ((saved / "within" / "a file", "Not a directory"), (saved.parent, "is a folder")):
        with pytest.raises(ValueError, match=f"checkpoint=.* cannot be written .*{reason}.*: give a path"):
            go(PROX, 10, checkpoint=path, stop=steps.append)
    with pytest.raises(ValueError, match="checkpoint_seconds must"):
        go(PROX, 10, checkpoint=saved, checkpoint_seconds=-1)
    for odd in (1j, 2.5, b"run.ckpt"):
        with pytest.raises(TypeError, match="checkpoint must be the path of a file, not"):
            check_checkpoint(odd, 30.0, False)
    assert steps == []


def test_a_disk_that_fills_up_costs_the_checkpoint_and_not_the_run(tmp_path, monkeypatch):
    path, synchronise = tmp_path / "run.safetensors", os.fsync

    def stop(state):
        if int(state.step) == 3:
            monkeypatch.setattr(os, "fsync", full)
        return False

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.warns(UserWarning, match=r"checkpoint was not written.*No space left.*run\.safetensors"):
        found = go(PROX, 20, checkpoint=path, stop=stop)
    assert found.outcome is Outcome.COMPLETED and found.num_steps == 20
    np.testing.assert_array_equal(flat(found.point), flat(go(PROX, 20).point))
    monkeypatch.setattr(os, "fsync", synchronise)
    resumed = go(PROX, 30, checkpoint=path, resume=True)  # from the checkpoint of before
    np.testing.assert_array_equal(flat(resumed.point), flat(go(PROX, 30).point))


def test_a_second_run_on_the_path_of_a_living_one_is_refused(tmp_path):
    path, refused = tmp_path / "run.safetensors", []

    def stop(state):
        if int(state.step) == 2:
            with pytest.raises(ValueError, match="in use by another run") as caught:
                go(PROX, 5, checkpoint=path)
            refused.append(caught)
        return False

    found = go(PROX, 5, checkpoint=path, stop=stop)
    assert len(refused) == 1 and found.outcome is Outcome.COMPLETED
    assert go(PROX, 5, checkpoint=path).num_steps == 5


def test_the_first_checkpoints_come_early(tmp_path, monkeypatch):
    """One after the first step, whatever the interval; then it doubles up to what was asked for."""
    path, written = tmp_path / "run.safetensors", []
    clock = [0.0]
    module, write = sys.modules["provi.runtime.run"], checkpoint.save_checkpoint
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(module, "save_checkpoint", lambda *given: (written.append(clock[0]), write(*given)))

    def stop(state):
        clock[0] = float(state.step)
        return False

    go(PROX, 60, checkpoint=path, stop=stop)
    assert written[:-1] == [1, 2, 4, 8, 16, 32]  # at 62 the next; the last one is of the end
    written.clear()
    clock[0] = 0.0
    go(PROX, 12, checkpoint=path, stop=stop, checkpoint_seconds=3)
    assert written[:-1] == [1, 2, 4, 7, 10]


def test_a_termination_is_an_interruption(tmp_path):
    """What a machine that is taken away sends: the checkpoint is written, and the last state returned."""
    path = tmp_path / "run.safetensors"

    def stop(state):
        if int(state.step) == 7:
            signal.raise_signal(signal.SIGTERM)
        return False

    found = go(PROX, 20, checkpoint=path, stop=stop)
    assert found.outcome is Outcome.INTERRUPTED and found.num_steps == 7
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert json.loads(metadata_of(path)["asked"]) == 6  # the rule was not heard at step 7
    resumed = go(PROX, 20, checkpoint=path, resume=True)
    np.testing.assert_array_equal(flat(resumed.point), flat(go(PROX, 20).point))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interruption_during_a_collection_of_garbage_is_heard(number, tmp_path):
    """Python forgets exceptions of callbacks, and JAX has one for every collection."""
    heard = []

    def callback(phase, info):
        if phase == "stop" and not heard:
            heard.append(phase)
            signal.raise_signal(number)

    def stop(state):
        if int(state.step) == 5:
            gc.callbacks.append(callback)
            gc.collect()
        return False

    before = signal.getsignal(number)
    try:
        found = go(PROX, 10**5, checkpoint=tmp_path / "run.safetensors", stop=stop)
    finally:
        gc.callbacks.remove(callback)
    assert found.outcome is Outcome.INTERRUPTED and found.num_steps == 5 and heard == ["stop"]
    assert signal.getsignal(number) is before


SCRIPT = textwrap.dedent(
    """
    import sys
    import numpy as np
    from provi.algorithms import ProxSGD
    from provi.families import Gaussian
    from provi.runtime import run
    from provi.schedules import GeometricAverage
    from provi.targets import LogisticRegression

    rng = np.random.default_rng(0)
    target = LogisticRegression(rng.normal(size=(30, 3)), rng.random(30) < 0.5)
    family = Gaussian(3)
    start = family.point(np.zeros(3), 0.3)
    algorithm = ProxSGD(0.01, 3, averaging=GeometricAverage(0.999))

    def go(**options):
        result = run(algorithm, target, family, start, seed=5, num_steps=100_000, progress=False, **options)
        return np.concatenate([result.point.loc, result.point.scale.matrix.ravel(),
                               result.last.loc, result.last.scale.matrix.ravel()])

    folder = sys.argv[1]
    resumed = go(checkpoint=folder + "/run.safetensors", checkpoint_seconds=0.02, resume=True)
    np.savez(folder + "/final.npz", resumed=resumed, whole=go())
    """
)


def test_a_run_killed_at_a_random_time_resumes_bit_for_bit(tmp_path):
    path, final = tmp_path / "run.safetensors", tmp_path / "final.npz"
    command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    process = subprocess.Popen(command, env=environment)
    deadline = time.monotonic() + 120
    while not path.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(np.random.default_rng(7).uniform(0.05, 0.4))
    assert process.poll() is None, "the run was over before it could be killed"
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert path.exists() and not final.exists()
    subprocess.run(command, env=environment, check=True, timeout=120)
    with np.load(final) as results:
        np.testing.assert_array_equal(results["resumed"], results["whole"])
        assert np.abs(results["whole"]).max() > 0.1
