"""Parameters that are no distribution's: what stands in a family's place when a plain sum is minimised."""

from typing import Any

import equinox as eqx
import jax
import numpy as np


class AnyParameters(eqx.Module):
    """Any pytree of finite floating arrays."""

    def check_point(self, point: Any) -> None:
        """`ValueError` unless every leaf of `point` is a floating array without NaN or infinity."""
        leaves = jax.tree_util.tree_leaves_with_path(point)
        if not leaves:
            raise ValueError("start holds no arrays: pass a pytree of floating arrays.")
        for path, leaf in leaves:
            name = "start" + jax.tree_util.keystr(path)
            if not eqx.is_inexact_array(leaf):
                raise ValueError(f"{name} must be a floating array, not {leaf!r}. Use jax.numpy.asarray(x, float).")
            if not np.isfinite(np.asarray(leaf)).all():
                raise ValueError(f"{name} has entries that are NaN or infinite; begin at finite parameters.")
