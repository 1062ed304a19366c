"""Many devices and many processes give the answer of one; a process that is lost ends the others."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet
from safetensors.numpy import load_file
from typer.testing import CliRunner

import provi
from provi.cli import app
from provi.data.tables import Share, read_table
from provi.runtime.distributed import _MPI, _ORTE, _RANKS, _SLURM, _processes
from runtime.two_processes import STEPS, data, slow

HERE = Path(__file__)
LAUNCHERS = {*_RANKS, *_SLURM, _ORTE, "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "PMIX_NAMESPACE"}.union(*_MPI)
ALONE = {name: value for name, value in os.environ.items() if name not in LAUNCHERS}
ENVIRONMENT = {**ALONE, "PYTHONPATH": str(HERE.parents[2] / "src"), "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}


def test_eight_devices_give_the_answer_of_one_for_every_structure():
    command = [sys.executable, "-m", "provi_lab.bench.devices", "--quick"]
    ended = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr[-2000:]
    assert "DIFFERS" not in ended.stdout and len(ended.stdout.splitlines()) == 7


def test_two_processes_give_the_answer_of_one_and_end_when_one_is_killed(tmp_path):
    port = free_port()
    command = [sys.executable, str(HERE.with_name("two_processes.py"))]
    both = [
        subprocess.Popen([*command, str(rank), str(port), str(tmp_path)], env=ENVIRONMENT, stdout=-1, text=True)
        for rank in (0, 1)
    ]
    try:
        checkpoint = tmp_path / "run.ckpt"
        limit = time.monotonic() + 120
        while not checkpoint.with_name("run.ckpt.previous").exists() and time.monotonic() < limit:
            assert all(process.poll() is None for process in both)
            time.sleep(0.05)
        both[1].kill()
        killed = time.monotonic()
        said, _ = both[0].communicate(timeout=60)
        assert time.monotonic() - killed < 20 and both[0].returncode == 75
    finally:
        for process in both:
            process.kill()
            process.communicate()
    refused, answer, lost = [line for line in said.splitlines() if not line.startswith("[Gloo]")]
    assert "columns differ" in refused and "lost" in lost and "resume=True" in lost
    X, y = data()
    target = provi.targets.LogisticRegression(X, y)
    one, two = provi.fit(target), json.loads(answer)
    np.testing.assert_allclose(two["mean"], one.posterior.mean, rtol=1e-10)
    np.testing.assert_allclose([two["gap"], two["elbo"]], [one.certificate.gap, one.elbo.value], rtol=1e-9)
    assert two["rows"] == 51  # the first process had half of them
    assert 0 < load_file(checkpoint)["history"][-1, 0] < STEPS
    resumed, whole = slow(target, checkpoint), slow(target, tmp_path / "other.ckpt")
    np.testing.assert_allclose(resumed.posterior.mean, whole.posterior.mean, rtol=1e-10)
    assert resumed.num_steps == STEPS


def free_port():
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return free.getsockname()[1]


def command_lines(folder, words, environments):
    """What `provi fit` says in each of these environments, at the same time, from the first brace on."""
    command = [sys.executable, "-m", "provi.cli", "fit"]
    started = [
        subprocess.Popen(
            [*command, *more, *words], env=ENVIRONMENT | given, cwd=folder, stdout=-1, stderr=-1, text=True
        )
        for given, more in environments
    ]
    try:
        said = [process.communicate(timeout=240) for process in started]
    finally:
        for process in started:
            process.kill()
    assert all(process.returncode == 0 for process in started), said
    return [out[out.index("{") :] if "{" in out else "" for out, _ in said]


def open_mpi(rank, port):
    """What mpirun of Open MPI 5 tells a process of two, as far as we read it; it says no orte URI."""
    about = dict(zip(_MPI[0], ("2", str(rank), "2", str(rank)), strict=True))
    return {**about, "PMIX_RANK": str(rank), "PMIX_NAMESPACE": "prterun-a-1@1", "MASTER_PORT": str(port)}


def test_command_lines_that_an_mpirun_has_started_give_the_answer_of_one(tmp_path, monkeypatch):
    """Two of Open MPI share a table in memory, and two of MPICH read its files in blocks and keep a part each."""
    X, y = data()
    rows = np.arange(len(y))
    table = {"a": X[:, 0], "b": X[:, 1], "c": np.array(list("uvw"))[rows % 3], "o": X[:, 1] ** 2, "w": 1 + rows % 2}
    table["y"] = np.where(y == 1, "yes", "no")
    (tmp_path / "t.csv").write_text(
        "\n".join([",".join(table), *(",".join(map(str, r)) for r in zip(*table.values(), strict=True))])
    )
    arrow = pyarrow.table(table)
    for part, (first, count) in enumerate(((0, 30), (30, 71))):  # a row group of the second file has rows of both
        parquet.write_table(arrow.slice(first, count), tmp_path / f"t-{part}.parquet", row_group_size=16)
    words = ["--target", "y", "--model", "logistic", "--offset", "o", "--weights", "w", "--no-check", "--json"]
    ports, mpich = (free_port(), free_port()), [dict(zip(_MPI[1], ("2", k, "2", k), strict=True)) for k in "01"]
    jobs = [(open_mpi(rank, ports[0]), ["t.csv", "--distributed"]) for rank in (0, 1)]
    streamed = ["t-*.parquet", "--stream", "--distributed"]
    jobs += [({**given, "MASTER_PORT": str(ports[1])}, streamed) for given in mpich]
    said = command_lines(tmp_path, words, jobs)
    assert said[1] == said[3] == ""  # the first process alone writes
    monkeypatch.chdir(tmp_path)
    one = json.loads(CliRunner().invoke(app, ["fit", "t.csv", *words]).stdout)
    for text in said[::2]:
        two = json.loads(text)
        assert {**two["data"], "encoding": None} == {**one["data"], "encoding": None}  # means and scales to rounding
        assert [mine["name"] for mine in two["parameters"]] == [theirs["name"] for theirs in one["parameters"]]
        for mine, theirs in zip(one["parameters"], two["parameters"], strict=True):
            np.testing.assert_allclose([mine["mean"], mine["sd"]], [theirs["mean"], theirs["sd"]], rtol=1e-8)
        np.testing.assert_allclose([one["gap"], one["elbo"]["value"]], [two["gap"], two["elbo"]["value"]], rtol=1e-7)


def test_the_launchers_of_mpi_say_who_is_who(monkeypatch):
    for name in LAUNCHERS:
        monkeypatch.delenv(name, raising=False)
    port = free_port()
    for name, value in open_mpi(0, port).items():
        monkeypatch.setenv(name, value)
    given = _processes(None, None, 7)
    assert (given["coordinator_address"], given["num_processes"], given["process_id"]) == (f"localhost:{port}", 2, 0)
    assert given["local_device_ids"] == [0]
    with socket.socket() as taken:
        taken.bind(("", port))
        taken.listen()
        with pytest.raises(ValueError, match=f"Port {port} .* is taken .*MASTER_PORT"):
            _processes(None, None, 7)
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    assert _processes("a,b", None, 7)["process_id"] == 1  # no --rank
    assert _processes("a,b", 0, 7)["process_id"] == 0  # an explicit 0 is one
    assert _processes(None, 0, 7)["process_id"] == 0
    monkeypatch.delenv("MASTER_PORT")
    ports = [_processes(None, None, 29500)["coordinator_address"]]
    monkeypatch.setenv("PMIX_NAMESPACE", "prterun-a-2@1")
    ports.append(_processes(None, None, 29500)["coordinator_address"])
    assert ports[0] != ports[1]  # two jobs on one machine
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "1")
    with pytest.raises(ValueError, match="2 processes .* 1 of them on this machine .*--hosts A,A,B,B"):
        _processes(None, None, 7)
    for name, value in zip(_SLURM, ("9", "n[1-2]", "2", "1", "0"), strict=True):
        monkeypatch.setenv(name, value)
    assert _processes(None, None, 7) == {}  # JAX knows SLURM
    monkeypatch.setenv("SLURM_NTASKS", "1")  # one task, in which an mpirun has started two
    with pytest.raises(ValueError, match="--hosts"):
        _processes(None, None, 7)
    monkeypatch.setenv(_ORTE, "1.0;tcp://1.2.3.4:5")
    assert _processes(None, None, 7) == {}
    for name in (_ORTE, *_MPI[0], "PMIX_NAMESPACE", "PMIX_RANK"):
        monkeypatch.delenv(name)
    for name, value in zip(_MPI[1], ("3", "2", "3", "2"), strict=True):
        monkeypatch.setenv(name, value)
    given = _processes(None, None, 7)  # MPICH
    assert (given["coordinator_address"], given["num_processes"], given["process_id"]) == ("localhost:7", 3, 2)


def test_processes_read_a_table_together(tmp_path):
    """Two threads stand for two processes; a column whose numbers and texts fall to different ones is texts."""
    path = tmp_path / "t.csv"
    lines = [f"{k},{'x' if k == 4 else f'0{k}'},{'' if k == 2 else 'uvw'[k % 3]}" for k in range(7)]
    path.write_text("\n".join(["a,b,c", *lines]))
    meet, board, found = threading.Barrier(2), {}, {}

    def read(index):
        def exchange(value):
            board[index] = value
            meet.wait()
            both = [board[0], board[1]]
            meet.wait()
            return both

        found[index] = read_table(path, share=Share(index, 2, exchange, exchange))

    threads = [threading.Thread(target=read, args=(k,)) for k in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    alone = read_table(path)
    for table in (found[0], found[1]):
        assert list(table) == list(alone) and table["a"].dtype == alone["a"].dtype
        assert all(np.array_equal(table[name], alone[name]) for name in alone)
    assert alone["b"][0] == "00"


def test_meshes_and_hosts_that_do_not_fit_are_refused(monkeypatch):
    X, y = data()
    target = provi.targets.LogisticRegression(X, y)
    with pytest.raises(ValueError, match="from 1 to 1, the devices that JAX has here, not 64"):
        provi.fit(target, mesh=64)
    with pytest.raises(TypeError, match="mesh must be"):
        provi.certify(target, (np.zeros(2), np.eye(2)), mesh="all")
    for name in LAUNCHERS:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match="No coordinator"):
        _processes(None, None, 1)
    with pytest.raises(ValueError, match="needs rank"):
        _processes("a,b", None, 1)
    with pytest.raises(ValueError, match="rank must be from 0 to 1"):
        _processes("a,b", 2, 1)
    assert _processes("a,b", 1, 7)["coordinator_address"] == "a:7"
    monkeypatch.setenv("MASTER_ADDR", "c")
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("RANK", "2")
    given = _processes(None, None, 7)
    assert (given["coordinator_address"], given["num_processes"], given["process_id"]) == ("c:7", 3, 2)
    assert _processes(None, 0, 7)["process_id"] == 0
