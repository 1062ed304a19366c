"""Reports and pictures on a full disk: the old ones stay."""

import errno
import os

import pytest
from matplotlib.figure import Figure

from provi.report.html import page
from provi.report.style import save_figure


def test_the_old_report_and_the_old_picture_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(page, "render_report", lambda fit, **_: f"<p>{fit}")
    report = page.write_report("old", tmp_path / "folder" / "report.html")
    picture = save_figure(Figure(), tmp_path / "picture.png")
    before = picture.read_bytes()

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left.*report\.html"):
        page.write_report("new", report)
    with pytest.raises(OSError, match=r"No space left.*picture\.png"):
        save_figure(Figure(figsize=(1, 1)), picture)
    assert report.read_text() == "<p>old" and picture.read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["folder", "picture.png"] and os.listdir(report.parent) == ["report.html"]
