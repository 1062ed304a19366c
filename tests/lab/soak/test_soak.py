"""The soak runs, repeats itself, and notices what it is for: each promise is broken once."""

import contextlib
import json
import os
import signal
import time

import numpy as np
import pytest

from provi.core import files
from provi_lab.soak import certificates, command, commands, inputs, kills
from provi_lab.soak import files as damaged
from provi_lab.soak.damage import DAMAGES
from provi_lab.soak.oracle import check_against
from provi_lab.soak.tally import Tally, ViolationError, clear, generator, soak


def go(module, numbers, seconds=60.0):
    with module.cases() as case:
        tally = Tally("kind", 0, len(numbers))
        return soak(tally, case, numbers, case_seconds=seconds, until=time.monotonic() + 600)


def test_cases_of_each_kind_pass():
    for module, count in ((damaged, 40), (commands, 12)):
        tally = go(module, range(count))
        assert tally.violations == [] and tally.done == count


@pytest.mark.parametrize("kind", ["numbers", "types", "arguments"])
def test_hostile_inputs_pass(kind):
    ends = [getattr(inputs, kind)(generator(1, kind, number)) for number in range(4)]
    assert all(end.startswith(kind) for end in ends)


def test_certificates_are_held_against_the_truth():
    """That of a bad Gaussian, with its gap and its KL exchanged for smaller ones."""
    tally = Tally("certificates", 0, 3)
    ends = [certificates._linear(generator(2, "c", number), tally) for number in range(3)]
    assert any("verified" in end for end in ends) and tally.counts["certificates"] >= 2
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


def test_files_that_are_believed_are_violations(monkeypatch):
    """A digest that nobody looks at: bits of the numbers change, and the fit is loaded."""
    monkeypatch.setattr(files, "_check", lambda *_: None)
    tally = go(damaged, range(60))
    assert any("was loaded with other content" in text or "another answer" in text for _, text in tally.violations)


def test_a_write_in_place_is_a_violation(monkeypatch, tmp_path):
    @contextlib.contextmanager
    def in_place(path, keep=None):
        yield path

    monkeypatch.setattr(files, "replacing", in_place)
    with damaged.cases() as case:
        disk, ends = case.__self__, []
        for number in range(12):
            place = tmp_path / str(number)
            place.mkdir()
            try:
                ends.append(disk.failing_disk(generator(3, "disk", number), Tally("files", 0, 1), place))
            except ViolationError as error:
                ends.append(str(error))
    assert any("changed the old file" in end for end in ends)


def test_kills_hit_and_the_run_goes_on():
    with kills.cases() as case:
        work, tally = case.__self__, Tally("kills", 0, 1)
        for number in range(4):
            place = work.folder / str(number)
            place.mkdir()
            assert work.fit("linear", generator(4, "kills", number), tally, place) == "linear, resumed alike"
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


def test_damage_changes_bytes_and_repeats_itself():
    with damaged.cases() as case:
        good, other = case.__self__.fits["linear", 0][0], case.__self__.fits["dual", 0][0]
    for how, damage in DAMAGES.items():
        assert damage(generator(0, how, 1), good, other) == damage(generator(0, how, 1), good, other)
        assert any(damage(generator(0, how, number), good, other) != good for number in range(4)), how


def test_the_command_counts_and_exits(tmp_path, monkeypatch, capsys):
    before = os.getcwd()
    with pytest.raises(SystemExit) as ended:
        command.main(["--only", "commands", "--cases", "3"])
    assert ended.value.code == 0 and "3 cases, 0 violations" in capsys.readouterr().out
    command.main(["--only", "commands", "--case", "2", "--json", str(tmp_path / "out.json")])
    tally = Tally.from_dict(json.loads((tmp_path / "out.json").read_text()))
    assert tally.done == tally.planned == 1 and not command.failed([tally]) and os.getcwd() == before
    tally.planned = 2
    assert command.failed([tally]) and "CUT SHORT commands: 1 of 2" in command.table([tally], 600)
