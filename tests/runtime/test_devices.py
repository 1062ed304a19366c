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
import pytest
from safetensors.numpy import load_file

import provi
from provi.data.tables import Share, read_table
from provi.runtime.distributed import _processes
from runtime.two_processes import STEPS, data, slow

HERE = Path(__file__)
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(HERE.parents[2] / "src"), "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}


def test_eight_devices_give_the_answer_of_one_for_every_structure():
    command = [sys.executable, "-m", "provi_lab.bench.devices", "--quick"]
    ended = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr[-2000:]
    assert "DIFFERS" not in ended.stdout and len(ended.stdout.splitlines()) == 6


def test_two_processes_give_the_answer_of_one_and_end_when_one_is_killed(tmp_path):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
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
    for name in ("MASTER_ADDR", "WORLD_SIZE", "RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMIX_RANK"):
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
