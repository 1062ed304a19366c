"""The command line `provi`."""

import sys
from typing import Any


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from provi.cli.commands import app

    return app


def main() -> None:
    """Entry point of the `provi` command. The version needs nothing but itself."""
    if sys.argv[1:] in (["--version"], ["version"]):
        from provi import __version__

        print(__version__)
        return
    from provi.cli import commands

    commands.main()
