"""`provi data` as a user calls it."""

import numpy as np
import pytest
from typer.testing import CliRunner

from provi.cli import app
from provi.data import SOURCES, Source
from provi.data.loaders import content_sha256

runner = CliRunner()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A $PROVI_DATA with one small data set, `tiny`; an empty cache."""
    arrays = {"X": np.eye(2), "y": np.array([0, 1])}
    np.savez(tmp_path / "tiny.npz", **arrays)
    source = Source("two rows", "X (2, 2), y (2,)", "nowhere", "none", "", content_sha256(arrays))
    monkeypatch.setitem(SOURCES, "tiny", source)
    monkeypatch.setenv("PROVI_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def test_list_names_every_set_and_where_it_is(folder):
    lines = runner.invoke(app, ["data", "list"]).output.splitlines()
    assert [line.split()[0] for line in lines] == list(SOURCES)
    places = {line.split()[0]: line[line.rindex("[") :] for line in lines}
    assert places["tiny"] == f"[{folder / 'tiny.npz'}]"
    assert places["a9a"] == "[can be downloaded]" and places["sonar"] == "[by hand]"


def test_path_prints_the_file_alone(folder):
    result = runner.invoke(app, ["data", "path", "tiny"])
    assert result.exit_code == 0 and result.output.strip() == str(folder / "tiny.npz")


@pytest.mark.parametrize(
    ("name", "words"), [("sonar", "By hand: UCI"), ("nothing", "name must be one of sonar"), ("tiny", "damaged")]
)
def test_errors_are_one_message_and_a_status(folder, name, words):
    (folder / "tiny.npz").write_text("not an archive")
    result = runner.invoke(app, ["data", "path", name])
    assert result.exit_code == 2 and words in result.stderr and not result.stdout
