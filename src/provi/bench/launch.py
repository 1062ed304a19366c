"""Runs a peer's program in a Python that has the peer's library and NumPy, but none of what ProVI itself needs.

`python launch.py provi.bench.peers.NAME ARGUMENTS`. GPflow, for one, is bound to a NumPy older than JAX accepts, so the
two cannot share an environment. A peer imports only modules of `provi.bench` that need nothing but NumPy; all that
stands in its way is `provi/__init__.py`, which imports the rest: here the package is made without running that file.
"""

import runpy
import sys
import types
from pathlib import Path


def main() -> None:
    """Make the bare package `provi` and run the named module of it as the main program."""
    folder = Path(__file__).resolve().parent
    # Python put this folder first, where `record` or `tables` would hide a package of that name.
    sys.path = [entry for entry in sys.path if not entry or Path(entry).resolve() != folder]
    package = types.ModuleType("provi")
    package.__path__ = [str(folder.parent)]
    sys.modules["provi"] = package
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
