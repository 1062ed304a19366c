"""Python objects in a target that compiled programs do not look into.

As a static part of a target, an object is compiled in: the target of another model needs programs of its own, although
they would be the same to the last instruction. A `HostObject` is a number to a compiled program, an argument like any
other. Only the host knows what it stands for.
"""

import itertools
import weakref
from typing import Any, Generic, TypeVar

import equinox as eqx
import jax
import numpy as np

from provi.core.arguments import device_array
from provi.core.types import Words

Value = TypeVar("Value")

_numbers = itertools.count(1)
_objects: "weakref.WeakValueDictionary[int, Any]" = weakref.WeakValueDictionary()


class _Held:
    """Keeps an object alive. Equal to all others, so that no compiled program is one of a single object's."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, _Held)

    def __hash__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return "held"


class HostObject(eqx.Module, Generic[Value]):
    """An object by its number. `identity` of the object, a text, says in fingerprints of runs what it is."""

    number: Words
    held: _Held = eqx.field(static=True)

    def __init__(self, value: Value) -> None:
        number = next(_numbers)
        _objects[number] = value
        # Two words: in single precision JAX has no longer integers.
        self.number, self.held = device_array(np.asarray([number], np.uint64).view(np.uint32)), _Held(value)

    @property
    def value(self) -> Value:
        """The object; not within a compiled function, which knows no more than its number."""
        return host_object(np.asarray(self.number))

    @property
    def identity(self) -> str:
        """What the object says of itself, the same in every process; empty where it says nothing."""
        return getattr(self.value, "identity", "")


def host_object(number: Any) -> Any:
    """The object of a number that has come back from a compiled program."""
    return _objects[int(np.ascontiguousarray(number).view(np.uint64)[0])]


def without_host_objects(tree: Any) -> tuple[Any, str]:
    """The rest of a pytree, and what its host objects say of themselves: their numbers differ in every process."""
    found: list[str] = []

    def left(node: Any) -> Any:
        if not isinstance(node, HostObject):
            return node
        found.append(node.identity)
        return None

    return jax.tree.map(left, tree, is_leaf=lambda node: isinstance(node, HostObject)), " ".join(found)
