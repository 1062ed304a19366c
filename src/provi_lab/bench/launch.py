"""Runs a peer's solver, in this Python or in one that has the peer's library and NumPy but none of what ProVI needs.

`python launch.py MODULE:SOLVER PROBLEM TRACE --setting S --seconds T`. GPflow, for one, is bound to a NumPy older than
JAX accepts, so the two cannot share an environment. A peer imports only modules of `provi_lab` that need nothing but
NumPy; where `provi_lab` is not installed, this file stands for it.
"""

import importlib
import sys
import types
from pathlib import Path


def main() -> None:
    """Make the package `provi_lab` importable if this file was started by its path, and serve the named solver."""
    folder = Path(__file__).resolve().parent
    if not __package__:
        # Python put this folder first, where `record` or `protocol` would hide a package of that name.
        sys.path = [entry for entry in sys.path if not entry or Path(entry).resolve() != folder]
        # Not by sys.path: this folder's neighbours may be another Python's whole library.
        package = types.ModuleType("provi_lab")
        package.__path__ = [str(folder.parent)]
        sys.modules["provi_lab"] = package
    module, _, solver = sys.argv.pop(1).partition(":")
    serve = importlib.import_module("provi_lab.bench.protocol").serve
    serve(getattr(importlib.import_module(module), solver))


if __name__ == "__main__":
    main()
