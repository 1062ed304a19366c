"""What is known of the numbers in a traced program, as functions of its input z in R^d.

Every number is written as an affine combination of z and of atoms. An atom is a nonlinear function of z of which some
facts are known: its range, whether it is convex or concave, and bounds of its Hessian by rank-one matrices. All linear
operations are then products of sparse matrices, and what is added and later taken off again, as the shift of a
log-sum-exp, cancels by itself. Numbers are real; how far a stored coefficient is from the one meant is kept beside it.
"""

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, vstack

LARGEST = 2**21
"""Numbers in one matrix: a second or two. A program that needs more is not analysed."""


class TooLarge(Exception):  # noqa: N818 - no error: the answer is 'unknown'
    """The program needs more memory or time than its analysis may take."""


@dataclasses.dataclass(frozen=True)
class Value:
    """An array of numbers that depend on z, flat in C order.

    - `rows`, `offset`: of each entry, the coefficients of (z, atoms) and the constant. - `error`, `blur`: how far one
      coefficient, of z or of an atom, and the constant, may be from what is meant. - `bad`: where the program may be
      undefined or infinite at some z. - `base`, `factor`: where the array is `factor` times `base`, entry by entry.
    """

    shape: tuple[int, ...]
    rows: Any
    offset: np.ndarray
    error: np.ndarray
    blur: np.ndarray
    bad: np.ndarray
    base: "Value | None" = None
    factor: np.ndarray | None = None

    @property
    def size(self) -> int:
        """The number of entries."""
        return self.offset.size

    @property
    def is_constant(self) -> bool:
        """No entry depends on z, and all are defined."""
        return self.rows.nnz == 0 and not self.bad.any()

    def digest(self) -> bytes:
        """Equal for arrays that are the same combination of the same atoms."""
        parts = (self.rows.indptr, self.rows.indices, self.rows.data, self.offset + 0.0, self.bad)  # no -0.0
        digest = hashlib.blake2b(digest_size=16)
        for part in parts:
            digest.update(np.ascontiguousarray(part).tobytes())
        return digest.digest()


@dataclasses.dataclass(frozen=True)
class Ridges:
    """Of atoms, numbered by `owner`: low |r'x|^2 <= x' Hessian x <= high |r'x|^2, summed over the rows r of an atom.

    - `rows`: (number, dim). - `error`: of each row, how far it may be from what is meant, in Euclidean norm.
    """

    rows: Any
    low: np.ndarray
    high: np.ndarray
    owner: np.ndarray
    error: np.ndarray


@dataclasses.dataclass(frozen=True)
class Block:
    """Atoms made together: the name of the function, the first column, and arguments that rules ask for later."""

    kind: str
    start: int
    argument: Value | None
    logarithm: Value | None


class Atoms:
    """All atoms of a program and the operations on combinations of them.

    `lower`, `upper`: the range of each atom. `positive`: above zero. `convex`, `concave`: proven so. `above`, `below`:
    whether the Hessian has a part without an upper, or lower, bound besides the ridges.
    """

    def __init__(self, dim: int, epsilon: float, bits: int = 64):
        """`epsilon`: the rounding of one operation of the program; `bits`: of a number of its input."""
        self.dim, self.epsilon, self.bits, self.width = dim, epsilon, bits, dim
        self.lower = self.upper = np.zeros(0)
        self.positive = self.convex = self.concave = self.above = self.below = np.zeros(0, bool)
        self.ridges: list[Ridges] = []
        self.blocks: list[Block] = []
        self.memo: dict[Any, Value] = {}
        self.thresholds: dict[bytes, tuple[Value, float]] = {}
        self.tails: dict[bytes, bytes] = {}

    def argument(self) -> Value:
        """z itself."""
        zero, none = np.zeros(self.dim), np.zeros((self.dim, 2))
        identity = csr_matrix((np.ones(self.dim), np.arange(self.dim), np.arange(self.dim + 1)))
        return Value((self.dim,), identity, zero, none, zero, zero.astype(bool))

    def constant(self, array: Any) -> Value:
        """An array that does not depend on z. Where it is not finite, it is bad."""
        array = np.asarray(array)
        flat = array.astype(np.float64).reshape(-1)
        finite = np.isfinite(flat)
        rows, none = csr_matrix((flat.size, self.width)), np.zeros((flat.size, 2))
        return Value(array.shape, rows, np.where(finite, flat, 0.0), none, np.zeros(flat.size), ~finite)

    def new(
        self,
        kind: str,
        key: Any,
        shape: tuple[int, ...],
        lower: Any,
        upper: Any,
        bad: np.ndarray,
        *,
        convex: Any = False,
        concave: Any = False,
        above: Any = True,
        below: Any = True,
        ridges: Sequence[Ridges] = (),
        argument: Value | None = None,
        logarithm: Value | None = None,
    ) -> Value:
        """An array of new atoms, or those made before under the same `key`. The owners of ridges count from 0."""
        size = bad.size
        if self.width + size > LARGEST:
            raise TooLarge
        start, facts = self.width - self.dim, (lower, upper, convex, concave, above, below)
        self.blocks.append(Block(kind, start, argument, logarithm))
        full = [np.broadcast_to(fact, (size,)) for fact in facts]
        self.lower, self.upper = np.append(self.lower, full[0]), np.append(self.upper, full[1])
        self.convex, self.concave = np.append(self.convex, full[2] & ~bad), np.append(self.concave, full[3] & ~bad)
        self.above, self.below = np.append(self.above, full[4] | bad), np.append(self.below, full[5] | bad)
        self.ridges += [dataclasses.replace(ridge, owner=ridge.owner + start) for ridge in ridges]
        self.positive = np.append(self.positive, np.full(size, logarithm is not None))
        columns, self.width = np.arange(self.width, self.width + size), self.width + size
        rows = csr_matrix((np.ones(size), columns, np.arange(size + 1)), shape=(size, self.width))
        self.memo[kind, key] = Value(shape, rows, np.zeros(size), np.zeros((size, 2)), np.zeros(size), bad)
        return self.memo[kind, key]

    def known(self, kind: str, key: Any, shape: tuple[int, ...]) -> Value | None:
        """Atoms made before, in another shape perhaps."""
        found = self.memo.get((kind, key))
        return None if found is None else dataclasses.replace(found, shape=shape)

    def names(self, columns: np.ndarray) -> list[str]:
        """What functions the atoms with these numbers are."""
        starts = np.array([block.start for block in self.blocks])
        return [self.blocks[int(k)].kind for k in np.searchsorted(starts, columns, side="right") - 1]

    def lookup(self, columns: np.ndarray, field: str) -> Value | None:
        """The argument or the logarithm of each of the atoms with these numbers; None where one has none."""
        starts = np.array([block.start for block in self.blocks])
        where = np.searchsorted(starts, columns, side="right") - 1
        parts, order = [], []
        for k in np.unique(where):
            source = getattr(self.blocks[int(k)], field)
            if source is None:
                return None
            members = np.flatnonzero(where == k)
            parts.append(self.take(source, columns[members] - starts[k], (members.size,)))
            order.append(members)
        if not parts:
            return None
        return self.take(self.join(parts), np.argsort(np.concatenate(order), kind="stable"), (columns.size,))

    # Linear operations

    def take(self, x: Value, indices: np.ndarray, shape: tuple[int, ...], fill: float = 0.0) -> Value:
        """The entries at flat `indices`; `fill` where an index is -1."""
        indices = np.asarray(indices, np.int64).reshape(-1)
        if indices.size == x.size and np.array_equal(indices, np.arange(x.size)):
            return dataclasses.replace(x, shape=shape)
        if indices.size * max(1.0, x.rows.nnz / max(x.size, 1)) > LARGEST:
            raise TooLarge
        missing, safe = indices < 0, np.maximum(indices, 0)
        rows = take_rows(x.rows, np.where(missing, x.size, indices))
        offset = np.where(missing, fill, x.offset[safe])
        bad = np.where(missing, not np.isfinite(fill), x.bad[safe])
        base = None if x.base is None or missing.any() else self.take(x.base, indices, shape)
        factor = None if base is None or x.factor is None else x.factor[safe]
        error, blur = np.where(missing[:, None], 0.0, x.error[safe]), np.where(missing, 0.0, x.blur[safe])
        return Value(shape, rows, np.where(bad, 0.0, offset), error, blur, bad.astype(bool), base, factor)

    def join(self, values: Sequence[Value]) -> Value:
        """All entries of several arrays, one after the other."""
        parts = [self.wide(x.rows) for x in values]
        rows = csr_matrix(vstack(parts, format="csr"))
        offset, error, blur, bad = (
            np.concatenate([getattr(x, name) for x in values]) for name in ("offset", "error", "blur", "bad")
        )
        return Value((offset.size,), rows, offset, error, blur, bad)

    def wide(self, rows: Any) -> Any:
        """The same rows with a column for every atom there is by now."""
        if rows.shape[1] == self.width:
            return rows
        return csr_matrix((rows.data, rows.indices, rows.indptr), shape=(rows.shape[0], self.width))

    def add(self, x: Value, y: Value, sign: float = 1.0) -> Value:
        """x + y, or x - y, of equal shapes."""
        rows = canonical(self.wide(x.rows) + sign * self.wide(y.rows))
        meet = self.counts(x.rows) + self.counts(y.rows) > self.counts(rows)
        largest = self.magnitude(x) + self.magnitude(y)
        error = x.error + y.error + np.where(meet, 2 * self.epsilon * largest, 0.0)
        offset, blur = _sum(x.offset, sign * y.offset)
        return Value(x.shape, rows, offset, error, x.blur + y.blur + blur, x.bad | y.bad)

    def scale(self, x: Value, factor: Any) -> Value:
        """factor * x, entry by entry, `factor` a constant."""
        factor = np.broadcast_to(np.asarray(factor, np.float64).reshape(-1), (x.size,))
        finite = np.isfinite(factor)
        safe = np.where(finite, factor, 0.0)
        rows = csr_matrix(
            (x.rows.data * np.repeat(safe, np.diff(x.rows.indptr)), x.rows.indices, x.rows.indptr), shape=x.rows.shape
        )
        exact = np.isin(np.abs(np.frexp(safe)[0]), (0.0, 0.5))  # powers of two
        rounding = np.where(exact, 0.0, 3 * self.epsilon)
        error = np.abs(safe)[:, None] * (x.error + rounding[:, None] * self.magnitude(x))
        blur = np.abs(safe) * (x.blur + rounding * np.abs(x.offset))
        base = x if x.base is None else x.base
        whole = safe if x.factor is None else safe * x.factor
        return Value(x.shape, canonical(rows), safe * x.offset, error, blur, x.bad | ~finite, base, whole)

    def linear(self, x: Value, matrix: Any, shape: tuple[int, ...], inexact: Any = None) -> Value:
        """matrix @ x, a constant sparse matrix; `inexact` bounds the errors of its entries."""
        rows = x.rows
        pattern = csr_matrix((np.ones(matrix.nnz), matrix.indices, matrix.indptr), shape=matrix.shape)
        flops, largest = pattern @ self.counts(rows), self.magnitude(x)
        if flops.sum() > 16 * LARGEST:
            raise TooLarge
        product = canonical(csr_matrix(matrix @ rows))
        if product.nnz > LARGEST:
            raise TooLarge
        absolute = abs(matrix)
        # Rounding comes from the products, and from sums of as many terms as fall on one coefficient.
        products = 0 if np.all(matrix.data == 1.0) else 3
        meet, terms = flops - self.counts(product), pattern @ (x.offset != 0).astype(np.float64)
        error = absolute @ x.error + (meet + products) * self.epsilon * (absolute @ largest)
        blur = absolute @ x.blur + (terms + products) * self.epsilon * (absolute @ np.abs(x.offset))
        if inexact is not None:
            error = error + inexact @ (largest + x.error)
            blur = blur + inexact @ (np.abs(x.offset) + x.blur)
        return Value(shape, product, matrix @ x.offset, error, blur, (pattern @ x.bad.astype(np.float64)) > 0)

    def counts(self, rows: Any) -> np.ndarray:
        """Of each row, how many coefficients of z and of atoms it has."""
        of_z = np.append(0, np.cumsum(rows.indices < self.dim))
        first = of_z[rows.indptr[1:]] - of_z[rows.indptr[:-1]]
        return np.stack([first, np.diff(rows.indptr) - first], axis=1).astype(np.float64)

    def magnitude(self, x: Value) -> np.ndarray:
        """The largest coefficient of each entry, of z and of atoms."""
        of_z, absolute = x.rows.indices < self.dim, np.abs(x.rows.data)
        sides = (np.where(of_z, absolute, 0.0), np.where(of_z, 0.0, absolute))
        return np.stack([_row_max(side, x.rows.indptr) for side in sides], axis=1)

    # Facts

    def bounds(self, x: Value) -> tuple[np.ndarray, np.ndarray]:
        """The range of each entry; (-inf, inf) where nothing is known."""
        of_z = x.rows.indices < self.dim
        everywhere = self.counts(x.rows)[:, 0] > 0
        owner, data, column = row_numbers(x.rows)[~of_z], x.rows.data[~of_z], x.rows.indices[~of_z] - self.dim
        low, high = self.lower[column], self.upper[column]
        ends = []
        for side, first, second in ((-1.0, low, high), (1.0, high, low)):
            used = np.where(data > 0, first, second)
            total = np.bincount(owner, data * used, x.size) + x.offset
            near = np.where(np.isfinite(used), np.abs(used), 0.0)
            spread = x.error[:, 1] * np.bincount(owner, near, x.size) + x.blur
            terms = np.bincount(owner, minlength=x.size) + (x.offset != 0)
            rounding = np.bincount(owner, np.abs(data) * near, x.size) + np.abs(x.offset)
            slack = spread + np.where(terms > 1, 4 * self.epsilon * terms * rounding, 0.0)
            exact = np.isfinite(total) & (terms == 2) & (np.bincount(owner, np.abs(data) != 1.0, x.size) == 0)
            alone = np.where(exact, np.bincount(owner, data * used, x.size), 0.0)
            slack = np.where(exact, spread + _sum(alone, x.offset)[1], slack)
            ends.append(np.where(x.bad | everywhere, side * np.inf, total + side * slack))
        return ends[0], ends[1]

    def above_zero(self, x: Value) -> np.ndarray:
        """Which entries are above zero, though their range may begin there: sums of exponentials."""
        owner, of_z = row_numbers(x.rows), x.rows.indices < self.dim
        column = np.where(of_z, -1, x.rows.indices - self.dim)
        good = ~of_z & np.append(self.positive, False)[column] & (x.rows.data > x.error[owner, 1])
        offset = (x.offset > x.blur) | (x.offset == 0) & (x.blur == 0) & (np.diff(x.rows.indptr) > 0)
        return offset & (np.bincount(owner, ~good, x.size) == 0) & ~x.bad

    def curvature(self, x: Value) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Which entries are proven affine, convex, concave functions of z."""
        atoms = x.rows.indices >= self.dim
        column, data = x.rows.indices[atoms] - self.dim, x.rows.data[atoms]
        owner = row_numbers(x.rows)[atoms]
        sure = np.abs(data) > x.error[owner, 1]
        up, down = data > 0, data < 0
        convex = sure & (up & self.convex[column] | down & self.concave[column])
        concave = sure & (up & self.concave[column] | down & self.convex[column])
        none = [np.bincount(owner, ~fact, x.size) == 0 for fact in (np.zeros(data.size, bool), convex, concave)]
        return none[0] & ~x.bad, none[1] & ~x.bad, none[2] & ~x.bad

    def ridge(self, x: Value, low: Any, high: Any, owner: np.ndarray | None = None) -> Ridges:
        """Ridges along the entries of x, of which those that are no affine functions of z must have zeros in both."""
        rows = csr_matrix(self.wide(x.rows)[:, : self.dim])
        error = np.sqrt(np.diff(rows.indptr)) * x.error[:, 0]
        low, high = (np.broadcast_to(end, (x.size,)) for end in (low, high))
        return Ridges(rows, low, high, np.arange(x.size) if owner is None else owner, error)


def _sum(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rounded sum, and its rounding error as Knuth has it."""
    total = first + second
    part = total - first
    return total, np.abs((first - (total - part)) + (second - part))


def canonical(rows: Any) -> Any:
    """Sorted columns, and no zeros."""
    if not rows.data.all():
        rows = rows.copy()
        rows.eliminate_zeros()
    return rows if rows.has_sorted_indices else rows.sorted_indices()


def take_rows(rows: Any, indices: np.ndarray) -> Any:
    """The rows at `indices`; an empty row where the index is one past the last."""
    if indices.size and indices.max() >= rows.shape[0]:
        starts = np.append(rows.indptr, rows.nnz)
        rows = csr_matrix((rows.data, rows.indices, starts), shape=(rows.shape[0] + 1, rows.shape[1]))
    return csr_matrix(rows[indices])


def row_numbers(rows: Any) -> np.ndarray:
    """The row of each stored number."""
    return np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))


def _row_max(data: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """The largest number of each row; zero for an empty one."""
    found, filled = np.zeros(starts.size - 1), np.diff(starts) > 0
    if filled.any():
        found[filled] = np.maximum.reduceat(data, starts[:-1][filled])
    return found


def moved(name: str, params: Any, x: np.ndarray, shape: tuple[int, ...], rest: list[Any]) -> np.ndarray | None:
    """What operations that move, copy or drop entries do to an array; None for all others."""
    if name in ("reshape", "squeeze", "expand_dims"):
        return None if params.get("dimensions") is not None and name == "reshape" else x.reshape(shape)
    if name == "broadcast_in_dim":
        if rest:
            return None
        kept = dict(zip(params["broadcast_dimensions"], x.shape, strict=True))
        return np.broadcast_to(x.reshape([kept.get(axis, 1) for axis in range(len(shape))]), shape)
    if name == "transpose":
        return np.transpose(x, params["permutation"])
    if name == "rev":
        return np.flip(x, params["dimensions"])
    if name == "slice":
        steps = params["strides"] or (1,) * x.ndim
        bounds = zip(params["start_indices"], params["limit_indices"], steps, strict=True)
        return x[tuple(slice(*bound) for bound in bounds)]
    if name == "dynamic_slice":
        starts = [int(np.clip(k, 0, n - w)) for k, n, w in zip(rest, x.shape, params["slice_sizes"], strict=True)]
        return x[tuple(slice(k, k + w) for k, w in zip(starts, params["slice_sizes"], strict=True))]
    if name == "gather":
        return _gathered(params, x, rest[0], shape)
    return None


def _gathered(params: Any, x: np.ndarray, indices: Any, shape: tuple[int, ...]) -> np.ndarray | None:
    """Slices of x at `indices`, as XLA defines them; None where one is not inside."""
    numbers, sizes = params["dimension_numbers"], params["slice_sizes"]
    batch, dropped = indices.shape[:-1], (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    windows = [axis for axis in range(x.ndim) if axis not in dropped]
    place: list[Any] = [0] * x.ndim
    for column, axis in enumerate(numbers.start_index_map):
        start = indices[..., column]
        if start.size and (start.min() < 0 or start.max() > x.shape[axis] - sizes[axis]):
            return None
        place[axis] = start.reshape(*batch, *(1 for _ in windows))
    for axis, source in zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True):
        line = [-1 if k == source else 1 for k in range(len(batch))]
        place[axis] = np.arange(x.shape[axis]).reshape(*line, *(1 for _ in windows))
    for k, axis in enumerate(windows):
        line = [-1 if other == k else 1 for other in range(len(windows))]
        place[axis] = place[axis] + np.arange(sizes[axis]).reshape(*(1 for _ in batch), *line)
    found = x[tuple(np.broadcast_arrays(*place))]
    found = np.broadcast_to(found, (*batch, *(sizes[axis] for axis in windows)))
    return np.moveaxis(found, range(len(batch), found.ndim), numbers.offset_dims).reshape(shape)
