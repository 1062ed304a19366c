"""Settings of these tests."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def compiled_quickly(quick_compilation):
    """Short runs, most of whose time would be XLA's: a third of it is saved."""
