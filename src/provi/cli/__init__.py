"""The command line `provi`."""

from provi.cli.commands import app, main

__all__ = ["app", "main"]
