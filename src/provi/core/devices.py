"""Many devices: which ones a fit takes, and how the rows of its data and its draws are divided among them.

A target that is divided says so itself (`AbstractTarget.division`), as a setting that is part of its type: compiled
programs of it are other programs, and nothing global has to be switched. Rows lie in equal parts, in their order; where
they do not divide evenly, rows of zeros follow the last one, which sums leave out. Long tables are divided, columns of
one number a row are whole on every device. Random numbers are JAX's, a function of the key and of the place: the same
on any number of devices.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding, PartitionSpec

ROWS = "rows"
"""The one axis of the devices."""

LARGE = 2**24
"""Numbers in the arrays of a target from which on all local devices are taken unless told otherwise."""

_LONG_LEAF = 2**12
"""Numbers of an array of a user's own density from which on it is taken for a table of data."""


@dataclasses.dataclass(frozen=True)
class Division:
    """The devices that a target is divided among.

    - `terms`: rows that are data; those beyond fill up the last parts. None where no rows are divided.
    - `draws`: whether draws are divided instead.
    """

    mesh: Mesh
    terms: int | None = None
    draws: bool = False

    def place(self, *axes: str | None) -> NamedSharding:
        """Where an array lies whose axes are divided like this; without any, whole on every device."""
        return NamedSharding(self.mesh, PartitionSpec(*axes))

    def sum(self, own: Callable[[Any, Any], Any], data: Any, combine: Callable) -> Any:
        """`own(part of data, number of its first row)` of every device, put together by `combine`, on every device."""

        def one(part: Any) -> Any:
            length = jax.tree.leaves(part)[0].shape[0]
            found = own(part, jax.lax.axis_index(ROWS) * length)
            if combine is jnp.add:
                return jax.lax.psum(found, ROWS)
            gathered = jax.lax.all_gather(found, ROWS)
            each = [jax.tree.map(lambda x, k=k: x[k], gathered) for k in range(self.mesh.size)]
            return functools.reduce(lambda a, b: jax.tree.map(combine, a, b), each)

        cut, whole = PartitionSpec(ROWS), PartitionSpec()
        shared = jax.shard_map(one, mesh=self.mesh, in_specs=cut, out_specs=whole, check_vma=False)
        return shared(jax.tree.map(jnp.asarray, data))

    def real(self, length: int) -> Any:
        """Which of so many rows are data."""
        return jnp.arange(length) < (length if self.terms is None else self.terms)


def chosen_mesh(mesh: Any, target: Any) -> Mesh | None:
    """The devices for `target`, in one line; None for one device, where nothing has to be divided.

    `mesh`: a `jax.sharding.Mesh` (all its devices), a number of devices, or None or "auto": those that the target's
    arrays lie on already, else all local ones where the arrays are large.
    """
    if isinstance(mesh, Mesh):
        devices = list(mesh.devices.flat)
    elif mesh is None or (isinstance(mesh, str) and mesh == "auto"):
        devices = _automatic(target)
    elif isinstance(mesh, int | np.integer) and not isinstance(mesh, bool):
        there = jax.devices()
        if not 1 <= mesh <= len(there):
            raise ValueError(
                f"mesh must be from 1 to {len(there)}, the devices that JAX has here, not {mesh}. On a CPU, "
                f"XLA_FLAGS=--xla_force_host_platform_device_count={mesh} before JAX starts makes as many."
            )
        devices = there[:mesh]
    else:
        raise TypeError(f"mesh must be a jax.sharding.Mesh, a number of devices, or 'auto', not {mesh!r}.")
    if len(devices) < 2:
        return None
    if getattr(target, "stream", None) is not None:
        raise ValueError("mesh is for data in memory: a target whose rows are read as they are needed has one device.")
    terms = getattr(target, "num_terms", None)
    if terms is not None and terms < len(devices):
        raise ValueError(f"mesh has {len(devices)} devices, and the data {terms} rows: take at most {terms} devices.")
    return Mesh(np.asarray(devices), (ROWS,))


def _automatic(target: Any) -> list[Any]:
    if getattr(target, "stream", None) is not None:
        return []
    leaves = [leaf for leaf in jax.tree.leaves(target) if isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer)]
    widest = max(leaves, key=lambda leaf: len(leaf.sharding.device_set), default=None)
    if widest is not None and len(widest.sharding.device_set) > 1:
        sharding = widest.sharding
        if isinstance(sharding, NamedSharding):
            return list(np.asarray(sharding.mesh.devices).flat)
        return sorted(sharding.device_set, key=lambda device: device.id)
    local = jax.local_devices()
    large = len(local) > 1 and sum(leaf.size for leaf in leaves) >= LARGE
    return local if large and jax.process_count() == 1 else []


def divided(target: Any, mesh: Mesh, *, padded: bool = False, rows: bool = True) -> Any:
    """The target with its rows, or else its draws, divided among the devices.

    `padded`: whether it knows of rows that are there for equal parts only; else those that do not divide stay whole.
    `rows`: whether to look for rows at all.
    """
    terms, size = getattr(target, "num_terms", None), mesh.size
    length = None if terms is None else -(-terms // size) * size
    if padded and terms is not None:
        row_leaves = {id(leaf) for leaf in jax.tree.leaves(target.row_data())}
        division = Division(mesh, terms)
        return with_division(
            jax.tree.map(lambda x: _placed(x, division, length, id(x) in row_leaves), target), division
        )

    def is_table(x: Any) -> bool:
        if not isinstance(x, jax.Array | np.ndarray) or x.ndim == 0 or x.shape[0] % size:
            return False
        return x.shape[0] == terms if terms is not None else x.size >= _LONG_LEAF or is_divided(x)

    rows = rows and any(is_table(leaf) for leaf in jax.tree.leaves(target))
    division = Division(mesh, draws=not rows)
    return with_division(jax.tree.map(lambda x: _placed(x, division, None, rows and is_table(x)), target), division)


def divided_tables(tree: Any, division: Division, length: int) -> Any:
    """A tree on all devices, its tables of so many rows in parts where that many divide evenly."""
    whole = length % division.mesh.size != 0

    def place(x: Any) -> Any:
        table = isinstance(x, jax.Array | np.ndarray) and x.ndim > 1 and x.shape[0] == length
        return _placed(x, division, None, table and not whole)

    return jax.tree.map(place, tree)


def counted(division: Division | None, length: int) -> int:
    """How many of so many rows are data."""
    return length if division is None or division.terms is None else division.terms


def with_division(target: Any, division: Division) -> Any:
    """A copy of the target that says how it is divided."""
    copy = jax.tree.unflatten(*reversed(jax.tree.flatten(target)))
    object.__setattr__(copy, "division", division)
    return copy


def is_divided(x: Any) -> bool:
    """Whether parts of an array lie on different devices."""
    return isinstance(x, jax.Array) and not isinstance(x, Tracer) and not x.sharding.is_fully_replicated


def _placed(x: Any, division: Division, length: int | None, row: bool) -> Any:
    """A table in parts, a column of one entry a row whole on every device; both filled up to `length`.

    Whatever else there is stays where JAX may move it as it likes: arrays that are put on all devices have that in
    their type, and inside a division such types do not go together.
    """
    if not isinstance(x, jax.Array | np.ndarray):
        return x
    if not row:
        return x if isinstance(x, np.ndarray) or not x.committed else jax.device_put(on_host(x))
    return _put(filled(x, length), division.place() if length is not None and x.ndim == 1 else division.place(ROWS))


def placed_everywhere(x: Any, division: Division) -> Any:
    """An array whole on every device."""
    return _put(x, division.place())


def _put(x: Any, place: NamedSharding) -> Any:
    if isinstance(x, jax.Array) and x.sharding == place:
        return x
    if isinstance(x, jax.Array) and not x.is_fully_addressable:
        return jax.jit(lambda y: y, out_shardings=place)(x)
    if not place.is_fully_addressable:  # each process puts its own part of what all of them have
        held = np.asarray(x)
        return jax.make_array_from_callback(held.shape, place, lambda part: held[part])
    return jax.device_put(x, place)


def filled(x: Any, length: int | None) -> Any:
    """Rows of zeros after a table, copies of the last entry after a column: its numbers may index others."""
    more = 0 if length is None else length - x.shape[0]
    if more <= 0:
        return x
    if is_divided(x):
        raise ValueError(
            f"X has {x.shape[0]} rows and is divided among devices already, but not evenly among all: divide it among "
            f"a number of devices that {x.shape[0]} is a multiple of, or pass it whole, and mesh=."
        )
    tail = np.zeros((more, *x.shape[1:]), x.dtype) if x.ndim > 1 else np.repeat(np.asarray(x[-1:]), more)
    return np.concatenate([np.asarray(x), tail])


def over_draws(division: Division | None, function: Callable, *draws: Any) -> Any:
    """`jax.vmap(function)(*draws)`, with the draws (n, ...) divided among the devices where that is asked for; traced.

    Where n does not divide evenly, the last draw is computed again to fill up, and left out of what is returned.
    """
    count = jax.tree.leaves(draws)[0].shape[0]
    if division is None or not division.draws or count < division.mesh.size:
        return jax.vmap(function)(*draws)
    places = jnp.minimum(jnp.arange(-(-count // division.mesh.size) * division.mesh.size), count - 1)

    def spread(x: Any) -> Any:
        return jax.lax.with_sharding_constraint(jnp.asarray(x)[places], division.place(ROWS))

    found = jax.vmap(function)(*jax.tree.map(spread, draws))
    # Whole on every device again, so that what follows is computed as on one.
    return jax.tree.map(lambda x: jax.lax.with_sharding_constraint(x, division.place())[:count], found)


def divided_columns(division: Division | None, table: Any) -> Any:
    """Arrays (n, d, ...) divided along their second axis, those where it does not divide evenly whole; traced."""
    if division is None or jax.process_count() > 1:
        return table

    def place(x: Any) -> Any:
        fits = x.ndim > 1 and x.shape[1] % division.mesh.size == 0
        return jax.lax.with_sharding_constraint(x, division.place(*((None, ROWS) if fits else ())))

    return jax.tree.map(place, table)


def on_host(x: Any, terms: int | None = None) -> np.ndarray:
    """A NumPy array of all numbers, wherever they lie; of the first `terms` rows, if that is given."""
    if isinstance(x, jax.Array) and not (x.is_fully_addressable or x.is_fully_replicated):
        x = jax.jit(lambda y: y, out_shardings=NamedSharding(x.sharding.mesh, PartitionSpec()))(x)  # pyright: ignore
    array = np.asarray(x)
    return array if terms is None else array[:terms]


def local(tree: Any) -> Any:
    """The same numbers on this process's first device: what is left of a fit when its data are gone."""
    return jax.tree.map(lambda x: jax.device_put(on_host(x)) if isinstance(x, jax.Array) else x, tree)


def undivided(tree: Any) -> tuple[Any, int | None]:
    """The tree without word of a division, for its structure, and the number of rows that are data (None: all)."""
    if not isinstance(tree, eqx.Module):
        return tree, None
    division, terms, changed = vars(tree).get("division"), None, {}
    for name, value in vars(tree).items():
        plain, found = undivided(value)
        if plain is not value:
            changed[name], terms = plain, found
    if division is None and not changed:
        return tree, None
    copy = jax.tree.unflatten(*reversed(jax.tree.flatten(tree)))
    for name, value in changed.items():
        object.__setattr__(copy, name, value)
    if division is not None:
        object.__delattr__(copy, "division")
    return copy, terms if division is None else division.terms
