"""The licence check: what it reads, and what it refuses."""

import importlib.util
from pathlib import Path

import pytest

SPEC = importlib.util.spec_from_file_location("licences", Path(__file__).parents[2] / "benchmarks" / "licences.py")
assert SPEC is not None and SPEC.loader is not None
licences = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(licences)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("MIT", "permissive"),
        ("BSD-3-Clause AND MIT AND Zlib", "permissive"),
        ("Apache-2.0 WITH LLVM-exception", "permissive"),
        ("Mozilla Public License 2.0 (MPL 2.0)", "weak"),
        ("GNU Lesser General Public License v3 (LGPLv3)", "weak"),
        ("LGPL-3.0", "weak"),
        ("GPL-3.0-only", "strong"),
        ("GNU General Public License v2 (GPLv2)", "strong"),
        ("MIT AND GPL-2.0-or-later", "strong"),
        ("GPL-2.0-only OR MIT", "permissive"),
        ("AGPL-3.0", "strong"),
        ("", "unknown"),
        ("Proprietary", "unknown"),
    ],
)
def test_kinds_of_licences(text, kind):
    assert licences.kind(text) == kind


def test_every_dependency_has_a_known_licence_that_asks_little(capsys):
    assert licences.main() == 0
    said = capsys.readouterr().out
    assert "jax " in said and "Apache-2.0" in said and ", 0 with a licence" in said


def test_one_without_a_licence_fails(monkeypatch, capsys):
    monkeypatch.setattr(licences, "STATED", {})
    monkeypatch.setattr(licences, "installed", lambda: ["jax"])
    monkeypatch.setattr(licences, "stated", lambda name: "")
    assert licences.main() == 1 and "jax: states none" in capsys.readouterr().err
