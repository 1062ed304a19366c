"""The environments of the peers: every peer has one, it is made once, found by its name, and its versions are told."""

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from typer.testing import CliRunner

from provi_lab.bench import environments, peers
from provi_lab.bench.command import app
from provi_lab.bench.gp import GP_METHODS, SPARSE_METHODS
from provi_lab.bench.logistic import METHODS
from provi_lab.bench.methods import PEERS
from provi_lab.bench.missing import MISSING_METHODS
from provi_lab.bench.peers.environments import ENVIRONMENTS
from provi_lab.bench.record import make_record
from provi_lab.bench.topics import TOPICS_METHODS

BENCHES = {
    "blackbox": METHODS,
    "gp": GP_METHODS,
    "gp-sparse": SPARSE_METHODS,
    "missing": MISSING_METHODS,
    "topics": TOPICS_METHODS,
}
OURS = {"__init__", "environments", "log_density", "numpy", "provi"}


def library(method):
    return method.program.removeprefix(PEERS).partition(":")[0]


def test_every_peer_has_an_environment_that_says_which_benches_run_it():
    assert {file.stem for file in Path(peers.__file__).parent.glob("*.py")} - OURS == set(ENVIRONMENTS)
    for name, own in ENVIRONMENTS.items():
        runs = {bench for bench, methods in BENCHES.items() if name in map(library, methods.values())}
        assert set(own.benches) == runs, name


def test_what_a_method_needs_is_in_its_environment():
    for method in [method for methods in BENCHES.values() for method in methods.values()]:
        if library(method) in ENVIRONMENTS:
            packages = [package.partition("==")[0] for package in ENVIRONMENTS[library(method)].packages]
            assert set(method.install.split()) <= set(packages), method.name


@pytest.fixture
def quiet_pip(monkeypatch):
    """Virtual environments are made, without pip in them; what pip would install is kept."""
    installed = []

    def run(peer, command):
        if command[2:4] == ["pip", "install"]:
            installed.append(command[-1])
            if command[-1].startswith("gpjax"):
                raise environments.EnvironmentFailed("gpjax: no network")
            return
        subprocess.run([*command, "--without-pip"], check=True)

    monkeypatch.setattr(environments, "_run", run)
    monkeypatch.setitem(ENVIRONMENTS, "gpjax", environments.ENVIRONMENTS["gpjax"].__class__(("gpjax==9",), ("gp",)))
    return installed


def test_an_environment_is_made_once_and_found_by_its_name(tmp_path, quiet_pip):
    run = CliRunner().invoke(app, ["environments", "misaem", "tomotopy", "--folder", str(tmp_path)])
    assert run.exit_code == 0 and quiet_pip == ["misaem==1.0.0", "scipy"]
    assert f"provi bench missing --environments {tmp_path}\nprovi bench topics --environments {tmp_path}" in run.stdout
    method = MISSING_METHODS["misaem"].in_environment(tmp_path)
    python = environments.python_in(tmp_path, "misaem")
    assert method.python == str(python) and not method.missing and method.found_in([sys.executable]) == method
    where = subprocess.run([python, "-c", "import sys; print(sys.prefix)"], capture_output=True, text=True)
    assert where.stdout.strip() == str(tmp_path / "misaem")
    ours = environments.python_in(tmp_path, "provi")  # ProVI is measured where the command runs, whatever is there
    ours.parent.mkdir(parents=True)
    ours.touch()
    for other in (MISSING_METHODS["exact"], MISSING_METHODS["numpy"], GP_METHODS["gpflow"]):
        assert other.in_environment(tmp_path) == other and other.in_environment(None) == other
    # There with the same packages: nothing is done. With others, or half made: again.
    assert environments.make_environment("misaem", tmp_path) == python and len(quiet_pip) == 2
    (tmp_path / "misaem" / "provi-environment.json").write_text(json.dumps(["misaem==0.1"]), encoding="utf-8")
    environments.make_environment("misaem", tmp_path)
    (tmp_path / "misaem" / "provi-environment.json").unlink()
    environments.make_environment("misaem", tmp_path)
    assert len(quiet_pip) == 4


def test_one_that_cannot_be_made_leaves_the_others(tmp_path, quiet_pip):
    run = CliRunner().invoke(app, ["environments", "gpjax", "sklearn", "--folder", str(tmp_path)])
    assert run.exit_code == 1 and "no network" in run.stderr
    assert (tmp_path / "sklearn" / "provi-environment.json").is_file()
    assert not (tmp_path / "gpjax" / "provi-environment.json").exists()
    assert "provi bench topics --environments" in run.stdout and "bench gp --env" not in run.stdout


def test_a_step_that_fails_says_what_and_how():
    with pytest.raises(environments.EnvironmentFailed, match=r"(?s)gsmvi: `.* -c .*` ended with 3:\nwhy"):
        environments._run("gsmvi", [sys.executable, "-c", "import sys; print('why', file=sys.stderr); sys.exit(3)"])


def test_without_a_folder_they_are_listed_and_unknown_ones_are_named():
    shown = CliRunner().invoke(app, ["environments"])
    assert shown.exit_code == 0 and all(name in shown.stdout for name in ENVIRONMENTS)
    wrong = CliRunner().invoke(app, ["environments", "nuts"])
    assert wrong.exit_code == 2 and "there is no 'nuts'" in wrong.stderr and "gsmvi" in wrong.stderr


def test_versions_of_a_peers_python_are_kept_and_ours_of_what_is_ours():
    found = environments.versions_in(sys.executable)
    assert found["numpy"] == metadata.version("numpy") and environments.versions_in("/bin/false") == {}
    row = {"facts": {"versions": {"numpyro": "0.0.1", "jax": "0.0.1", "gsmvi": "0.0.2"}}}
    versions = make_record("blackbox", [row])["versions"]
    assert versions["numpyro"] == "0.0.1" and versions["gsmvi"] == "0.0.2"
    assert versions["jax"] == metadata.version("jax")
