"""Models with the scikit-learn interface. They need scikit-learn: pip install 'provi[models]'."""

from typing import Any

from provi.core.lazy import lazy_exports

_get, __dir__, __all__ = lazy_exports(__name__, __file__)


def __getattr__(name: str) -> Any:
    try:
        return _get(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "sklearn":
            raise
        needed, extra = ("scikit-learn and formulae", "formula") if name == "MixedModel" else ("scikit-learn", "models")
        raise ImportError(f"provi.models.{name} needs {needed}: pip install 'provi[{extra}]'.") from None
