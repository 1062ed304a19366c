"""The soak runs, repeats itself, and notices what it is for: each promise is broken once."""

import contextlib
import json
import os
import signal
import time
import warnings

import numpy as np
import pytest

from provi.core import files
from provi_lab.soak import certificates, command, commands, inputs, kills
from provi_lab.soak import files as damaged
from provi_lab.soak.damage import DAMAGES
from provi_lab.soak.oracle import check_against
from provi_lab.soak.tally import Tally, ViolationError, clear, generator, soak


@pytest.fixture(scope="module")
def disk():
    """Saved fits and checkpoints to damage, and the function that does so."""
    with damaged.cases() as case:
        yield case.__self__


def go(case, numbers):
    tally = Tally("kind", 0, len(numbers))
    return soak(tally, case, numbers, case_seconds=60, until=time.monotonic() + 600)


def test_damaged_files_are_refused_or_harmless(disk):
    tally = go(disk.case, range(40))
    assert tally.violations == [] and tally.done == 40 and len(tally.ends) > 4


def test_fuzzed_commands_end_as_they_should():
    with commands.cases() as case:
        tally = go(case, range(5))
    assert tally.violations == [] and tally.done == 5


@pytest.mark.parametrize("kind", ["numbers", "types", "arguments"])
def test_hostile_inputs_pass(kind):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ends = [getattr(inputs, kind)(generator(1, kind, number)) for number in range(3)]
    assert all(end.startswith(kind) for end in ends)


def test_certificates_are_held_against_the_truth():
    """That of a bad Gaussian, with its gap and its KL exchanged for smaller ones."""
    tally = Tally("certificates", 0, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ends = [certificates._linear(generator(2, "c", number), tally) for number in range(2)]
    assert any("verified" in end for end in ends) and tally.counts["certificates"] >= 1
    posterior = inputs.LinearPosterior(np.ones((2, 1)), np.ones(2), "logit", np.zeros(1), np.eye(1))
    best, far = (np.array([0.6]), np.array([[0.7]])), (np.array([3.0]), np.array([[0.7]]))

    class Claimed:
        gap, kl, status = 10.0, 10.0, "proven"

    assert check_against(Claimed, posterior, far, [best]) == "gap and KL verified"
    Claimed.gap = 1e-3
    with pytest.raises(ViolationError, match="gap 0.001 .* is below the truth"):
        check_against(Claimed, posterior, far, [best])
    Claimed.gap, Claimed.kl = 10.0, 1e-3
    with pytest.raises(ViolationError, match="KL 0.001 .* is below the truth"):
        check_against(Claimed, posterior, far, [best])


def test_files_that_are_believed_are_violations(disk, monkeypatch):
    """A digest that nobody looks at: bits of the numbers change, and the fit is loaded."""
    monkeypatch.setattr(files, "_check", lambda *_: None)
    texts = [text for _, text in go(disk.case, range(40)).violations]
    assert any("was loaded with other content" in text or "another answer" in text for text in texts)


def _written_half(path):
    path.write_text("half of a re")
    raise OSError(f"{path}: no space")


def test_a_write_in_place_is_a_violation(disk, monkeypatch, tmp_path):
    path = tmp_path / "old"
    monkeypatch.setattr(disk, "write", lambda what, path: _written_half(path))
    with pytest.raises(ViolationError, match="changed the old file"):
        for number in range(9):  # of which some are no runs
            path.unlink(missing_ok=True)
            disk.failing_disk(generator(3, "disk", number), Tally("files", 0, 1), tmp_path)


def test_kills_hit_and_the_run_goes_on():
    with kills.cases() as case:
        work, tally = case.__self__, Tally("kills", 0, 1)
        for number in range(20):  # a run may end before it is hit
            place = work.folder / str(number)
            place.mkdir()
            assert work.fit("linear", generator(4, "kills", number), tally, place) == "linear, resumed alike"
            if number >= 2 and tally.counts["kills"]:
                break
        assert tally.counts["kills"] >= 1
        work.references["linear", 0] = "another"
        work.references["linear", 1] = work.references["linear", 2] = "another"
        (work.folder / "last").mkdir()
        with pytest.raises(ViolationError, match="uninterrupted"):
            work.fit("linear", generator(4, "kills", 9), tally, work.folder / "last")


def test_a_case_that_hangs_or_dies_is_a_violation():
    def hangs(rng, tally):
        while True:
            pass

    def waits(rng, tally):
        time.sleep(100)

    def dies(rng, tally):
        raise KeyError("a key")

    until = time.monotonic() + 100
    for case in (hangs, waits):
        tally = soak(Tally("kind", 0, 1), case, [7], case_seconds=0.05, until=until)
        assert tally.violations[0][0] == 7 and "hangs: not done after 0.05 s" in tally.violations[0][1]
    tally = soak(Tally("kind", 0, 1), dies, [8], case_seconds=9, until=until)
    assert tally.violations[0][0] == 8 and "KeyError: 'a key'" in tally.violations[0][1]
    assert command.failed([tally]) and signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
    assert "--only kind --seed 0 --case 8" in command.table([tally], 600)
    assert soak(Tally("kind", 0, 1), dies, [8], case_seconds=9, until=0.0).done == 0


def test_errors_are_clear_or_violations():
    assert clear(ValueError("X must have two axes"), "X", "y") == "refused"
    for error in (KeyError("X"), ValueError("eXact"), np.linalg.LinAlgError("X"), RuntimeError("X")):
        with pytest.raises(ViolationError):
            clear(error, "X", "y")


def test_damage_changes_bytes_and_repeats_itself(disk):
    good, other = disk.fits["linear", 0][0], disk.fits["dual", 0][0]
    for how, damage in DAMAGES.items():
        assert damage(generator(0, how, 1), good, other) == damage(generator(0, how, 1), good, other)
        assert any(damage(generator(0, how, number), good, other) != good for number in range(4)), how


def test_the_command_counts_and_exits(tmp_path, monkeypatch, capsys):
    before = os.getcwd()
    with pytest.raises(SystemExit) as ended:
        command.main(["--only", "commands", "--cases", "2", "--record", str(tmp_path / "record.json")])
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["command"].startswith("python -m provi_lab.soak --only commands --cases 2") and record["machine"]
    assert [(kind["kind"], sum(kind["ends"].values()), kind["violations"]) for kind in record["kinds"]] == [
        ("commands", 2, [])
    ]
    assert ended.value.code == 0 and "2 cases, 0 violations" in capsys.readouterr().out
    command.main(["--only", "commands", "--case", "2", "--json", str(tmp_path / "out.json")])
    tally = Tally.from_dict(json.loads((tmp_path / "out.json").read_text()))
    assert tally.done == tally.planned == 1 and not command.failed([tally]) and os.getcwd() == before
    tally.planned = 2
    assert command.failed([tally]) and "CUT SHORT commands: 1 of 2" in command.table([tally], 600)


def test_a_kind_goes_on_until_enough_was_counted(monkeypatch):
    """Every third case counts; 20 planned, 9 required."""

    @contextlib.contextmanager
    def cases():
        def case(rng, tally):
            tally.counts["kills"] += tally.done % 3 == 2
            return "end"

        yield case

    monkeypatch.setattr(kills, "cases", cases)
    until = time.monotonic() + 100
    tally = command.run_kind("kills", 0, 20, range(20), until, required=9)
    assert tally.counts["kills"] == 9 and tally.done == 27 and tally.planned == 20
    assert not command.failed([tally], 27.0) and "TOO FEW" not in command.table([tally], 27.0)
    assert command.failed([tally], 30.0) and "TOO FEW kills: 9 of 10" in command.table([tally], 30.0)
    assert command.run_kind("kills", 0, 3, range(3), until, required=9).done == 6
