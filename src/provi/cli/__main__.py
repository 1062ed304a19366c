"""`python -m provi.cli`."""

from provi.cli.commands import main

main()
