"""Programs that are compiled quickly where the arguments are small."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from provi.core import compilation
from provi.core.compilation import sized_jit


@pytest.mark.parametrize("size", [10, 20_000])
def test_sized_programs_agree_and_may_be_called_in_compiled_ones(size):
    x = jnp.linspace(0.0, 1.0, size)
    sized = sized_jit(lambda x, y: jnp.sum(jnp.sin(x)) + y)
    expected = np.sum(np.sin(np.linspace(0, 1, size))) + 2.0
    np.testing.assert_allclose(sized(x, y=2.0), expected, rtol=1e-12)
    np.testing.assert_allclose(jax.jit(lambda x: sized(x, 2.0))(x), expected, rtol=1e-12)


def test_small_arguments_are_compiled_quickly(monkeypatch):
    chosen = []
    monkeypatch.setattr(compilation, "quick_jit", lambda f, **_: lambda *a: chosen.append("quick"))
    monkeypatch.setattr(compilation, "program_jit", lambda f, **_: lambda *a: chosen.append("ordinary"))
    sized = sized_jit(lambda x: x)
    sized(np.zeros(10_000))
    sized(np.zeros(10_001))
    assert chosen == ["quick", "ordinary"]
