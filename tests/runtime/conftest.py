"""The loop compiles in a quarter of the time with one size of chunk, which these tests are not about."""

import pytest

from provi.estimators import base
from provi.runtime.loop import optimised_loop


@pytest.fixture(autouse=True, scope="module")
def one_chunk():
    optimised_loop._cached.clear_cache()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "CHUNKS", (1,))
        yield
    # What was compiled with other chunks must not serve the tests of other rooms.
    optimised_loop._cached.clear_cache()
