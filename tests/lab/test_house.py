"""The house stays small, and its map on the page is the one drawn from the code."""

from pathlib import Path

import pytest

from provi_lab import house

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def walk():
    return house.walk_of_a_fit()


def test_the_library_has_at_most_400_modules_of_at_most_450_lines():
    """300 before formulas, mixed models and latent Gaussian models moved in, 348 before predictions and checks, 371
    before files and limits, 378 before streams, devices, modes and richer families."""
    sizes = house.modules(ROOT / "src" / "provi")
    assert 200 < len(sizes) <= 400
    assert max(sizes.values()) <= house.LARGE, max(sizes, key=sizes.__getitem__)


def test_a_default_fit_walks_through_at_most_27_files_and_those_of_its_engine(walk):
    """The engine: what caches programs, carries out small ones on the host, and divides work among devices."""
    files = [file for file, _, _ in walk.visits]
    engine = {
        "core/cache.py",
        "core/devices.py",
        "runtime/distributed.py",
        "core/randomness.py",
        "core/interpreter.py",
        "core/host_program.py",
        "core/host_loops.py",
        "core/host_primitives.py",
        "core/host_indexing.py",
    }
    assert ("fit.py", "fit") in [visit[:2] for visit in walk.visits[:4]]
    assert 10 < len(set(files) - engine) <= 27 and walk.deepest <= 30


def test_every_room_is_on_the_map_and_imports_go_down():
    rows = house.layers(ROOT / "pyproject.toml")
    place = {room: index for index, row in enumerate(rows) for room in row}
    assert set(house.room_sizes(ROOT / "src" / "provi")) == set(place)
    found = house.rooms_imported(ROOT / "src" / "provi")
    assert "targets" in found["families"] and "structures" in found["fit"]
    for room, others in found.items():
        assert all(place[room] < place[other] for other in others), (room, others)


@pytest.mark.parametrize("name", ["map.svg", "walk.md"])
def test_the_drawings_are_those_of_the_code(walk, name):
    drawn = house.drawings(ROOT, walk)[name]
    kept = (ROOT / "docs" / "developer" / name).read_text(encoding="utf-8")
    assert kept == drawn, "draw it again: python -m provi_lab.house --write docs/developer"
