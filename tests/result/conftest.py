"""Settings of these tests."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def compiled_quickly(quick_compilation):
    """Short runs on small data, most of whose time would be XLA's; in processes of their own, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "true")
        yield
