"""The licences of everything that ProVI may install: a table, and an error where one is unknown or not compatible.

    python benchmarks/licences.py        # or: make licences

From the metadata of what is installed, walked from `provi` and `provi-lab` through every requirement of theirs, extras
included. A licence counts as known from its SPDX expression, its classifiers or the text of its field, in this order;
for the few packages that state none there, `STATED` says what their licence files do. Strong copyleft (GPL, AGPL)
fails: who passes ProVI on with it would have to follow it. Weak copyleft (LGPL, MPL) is listed and passes.
"""

import importlib.metadata as metadata
import re
import sys
from collections.abc import Iterable
from typing import Any

ROOTS = ("provi", "provi-lab")

STATED = {"cons": "LGPL-3.0", "minikanren": "BSD-3-Clause"}
"""Packages whose metadata name no licence, with that of the licence file that they install; both come with PyMC."""

_PERMISSIVE = (
    ("MIT", r"\bMIT\b|MIT No Attribution|Expat"),
    ("BSD", r"\bBSD\b|0BSD|BSD-\d"),
    ("Apache-2.0", r"Apache"),
    ("ISC", r"\bISC\b"),
    ("PSF-2.0", r"Python Software Foundation|\bPSF\b|PSF-2.0|\bPython-2\.0"),
    ("HPND", r"HPND|Historical Permission|\bMIT-CMU\b|\bPIL\b"),
    ("Unlicense", r"Unlicense|Public Domain|\bCC0\b|public domain"),
    ("zlib", r"\bzlib\b"),
    ("Boost", r"Boost|\bBSL-1"),
)
_WEAK = (("MPL-2.0", r"Mozilla|\bMPL\b"), ("LGPL", r"Lesser General Public|\bLGPL"))
_STRONG = (("AGPL", r"Affero|\bAGPL"), ("GPL", r"(?<!Lesser )General Public Licen|(?<![LA])GPL(?!-\d\.\d.*exception)"))


def normal(name: str) -> str:
    """The name as package indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed(roots: Iterable[str] = ROOTS) -> list[str]:
    """What is installed of all that the roots require, directly or not; the extras of ProVI, and no others."""
    found: set[str] = set()
    waiting = [normal(root) for root in roots]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        try:
            lines = metadata.requires(name) or ()
        except metadata.PackageNotFoundError:
            continue
        found.add(name)
        own = name in map(normal, roots)
        kept = [line for line in lines if own or "extra ==" not in line]
        waiting += [normal(match[0]) for line in kept if (match := re.match(r"[A-Za-z0-9._-]+", line))]
    return sorted(found)


def stated(name: str) -> str:
    """What the metadata of a package say of its licence, in one line; empty where they say nothing."""
    about: Any = metadata.metadata(name)
    classifiers = [
        line.split(" :: ")[-1] for line in about.get_all("Classifier") or () if line.startswith("License ::")
    ]
    classifiers = [line for line in classifiers if line != "OSI Approved"]
    text = (about.get("License") or "").strip()
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return about.get("License-Expression") or "; ".join(classifiers) or first or STATED.get(name, "")


def kind(licence: str) -> str:
    """Permissive, weak or strong copyleft, or unknown: of alternatives (OR) the mildest, of several the strictest."""
    if " OR " in licence:
        order = ("permissive", "weak", "strong", "unknown")
        return min((kind(part) for part in licence.split(" OR ")), key=order.index)
    for found, rows in (("strong", _STRONG), ("weak", _WEAK), ("permissive", _PERMISSIVE)):
        if any(re.search(pattern, licence, re.IGNORECASE) for _, pattern in rows):
            return found
    return "unknown"


def main() -> int:
    rows = [(name, metadata.version(name), stated(name)) for name in installed() if name not in ROOTS]
    for name, version, licence in rows:
        print(f"{name:28} {version:14} {kind(licence):11} {licence[:60]}")
    bad = [(name, licence) for name, _, licence in rows if kind(licence) in ("strong", "unknown")]
    print(f"{len(rows)} packages, {len(bad)} with a licence that is unknown or asks too much.")
    for name, licence in bad:
        print(
            f"  {name}: {licence or 'states none'}; leave it out, or add it to STATED with its source", file=sys.stderr
        )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
