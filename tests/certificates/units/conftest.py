"""Arithmetic so coarse that what rounding may do is seen: the bounds' share for it is a formula like any other."""

from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

UNIT = 2.0**-12
"""In place of the distance between one and the next floating-point number."""


class _Coarse:
    """NumPy, or JAX's, but for what it says of its numbers."""

    def __init__(self, real):
        self._real = real

    def __getattr__(self, name):
        return getattr(self._real, name)

    def finfo(self, dtype):
        del dtype
        return SimpleNamespace(eps=UNIT, tiny=1e-300, max=1e300)


@pytest.fixture
def coarse(monkeypatch):
    """Modules are told that the distance is `UNIT`; call compiled functions through `__wrapped__`, that nothing of it
    stays."""

    def told(*modules):
        for module in modules:
            for name, real in (("np", np), ("jnp", jnp)):
                if hasattr(module, name):
                    monkeypatch.setattr(module, name, _Coarse(real))
            for name in ("EPS", "_EPS"):
                if hasattr(module, name):
                    monkeypatch.setattr(module, name, UNIT)
        return UNIT

    return told
