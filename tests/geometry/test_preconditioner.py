"""The block preconditioner against the dense matrix Lambda."""

import jax.numpy as jnp
import numpy as np
import pytest

from provi.geometry import BlockPreconditioner
from support.members import SCALES, family_of, flat, point_of


@pytest.mark.parametrize("scale", SCALES)
def test_blocks(scale):
    point = point_of(family_of("normal", scale))
    preconditioner = BlockPreconditioner(0.5, 0.125)
    weights = np.concatenate([np.full(3, 0.5), np.full(flat(point.scale).size, 0.125)])
    np.testing.assert_allclose(flat(preconditioner(point)), weights * flat(point), rtol=1e-15)
    np.testing.assert_allclose(
        preconditioner.inverse_squared_norm(point), flat(point) @ (flat(point) / weights), rtol=1e-14
    )


def test_default_is_the_identity_and_keeps_float32():
    point = point_of(family_of("normal", "symmetric"), np.float32)
    result = BlockPreconditioner()(point)
    np.testing.assert_array_equal(flat(result), flat(point))
    assert result.loc.dtype == result.scale.matrix.dtype == jnp.float32
