"""`provi fit --checkpoint`: what SIGTERM leaves, and `--resume`; outputs on a full disk."""

import errno
import json
import os
import signal
import sys

import pytest
from typer.testing import CliRunner

import provi
from provi.cli import app
from provi.cli.model_file import load_target
from provi.cli.program import exit_code
from provi.structures.stopping import ProvenStop

MODEL = """
import numpy as np
import provi
target = provi.targets.LogisticRegression(np.arange(12.0).reshape(6, 2) / 12, [0, 1, 1, 0, 1, 0])
"""


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def test_a_terminated_fit_says_what_it_has_and_is_resumed(write, tmp_path, monkeypatch):
    model, path, save = f"{write('model.py', MODEL)}:target", tmp_path / "run.ckpt", tmp_path / "fit"
    words = ("fit", model, "--json", "--no-check", "--tol", "1e-8")
    ask = ProvenStop.__call__

    def terminate(self, state):
        if int(state.step) == 1:
            signal.raise_signal(signal.SIGTERM)
        return ask(self, state)

    with monkeypatch.context() as patch:
        patch.setattr(ProvenStop, "__call__", terminate)
        ended = run(*words, "--checkpoint", path, "--checkpoint-seconds", 5, "--save", save)
    found = json.loads(ended.stdout)
    assert ended.exit_code == 130 and found["verdict"] == "interrupted" and found["num_steps"] == 1
    assert found["sentence"].startswith("Interrupted after 1 step;") and save.exists()
    resumed = run(*words, "--checkpoint", path, "--resume")
    assert resumed.exit_code == 0
    found, whole = json.loads(resumed.stdout), provi.fit(load_target(model), tol=1e-8)
    assert [row["mean"] for row in found["parameters"]] == list(whole.posterior.mean)
    for name in ("gap", "num_steps", "gradient_evaluations"):
        assert found[name] == (whole.certificate.gap if name == "gap" else getattr(whole, name)), name


def test_a_termination_elsewhere_ends_as_an_interruption(capsys):
    before = signal.getsignal(signal.SIGTERM)
    assert exit_code(lambda: signal.raise_signal(signal.SIGTERM), ()) == 130
    assert capsys.readouterr().err == "Error: Interrupted.\n" and signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--resume"], "--resume needs --checkpoint FILE"),
        (["--checkpoint-seconds", "5"], "--checkpoint-seconds needs --checkpoint FILE"),
        (["--checkpoint", "run.ckpt", "--checkpoint-seconds", "-1"], "--checkpoint-seconds must be 0 or more"),
        (["--checkpoint", "model.py/run.ckpt"], "--checkpoint: there is no folder model.py"),
        (["--checkpoint", "model.py"], "--checkpoint: model.py is the file that is read"),
    ],
)
def test_what_cannot_be_is_said_before_the_work(write, tmp_path, monkeypatch, words, said):
    write("model.py", MODEL)
    monkeypatch.chdir(tmp_path)
    result = run("fit", "model.py:target", *words)
    assert result.exit_code == 2 and said in result.stderr


def test_predictions_on_a_full_disk_leave_the_old_ones(tmp_path, monkeypatch):
    path = tmp_path / "predictions.csv"
    sys.modules["provi.cli.predict"]._write(path, {"row": [1]})
    before = path.read_bytes()

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        sys.modules["provi.cli.predict"]._write(path, {"row": [1, 2]})
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["predictions.csv"]
