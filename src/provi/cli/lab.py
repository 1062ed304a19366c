"""The one way from the library to the lab: `provi_lab`, a distribution of its own, which may be absent."""

import importlib
from typing import Any

_ABSENT = (
    "This command needs the lab, which is not installed: pip install 'provi[lab]', or pip install ./src/provi_lab from "
    "a copy of the repository."
)


def import_lab(module: str) -> Any:
    """The module `provi_lab.MODULE`; an `ImportError` that says what to install where there is no lab."""
    try:
        return importlib.import_module(f"provi_lab.{module}")
    except ModuleNotFoundError as error:
        if error.name != "provi_lab":
            raise  # a package that the lab needs
        raise ImportError(_ABSENT) from None
