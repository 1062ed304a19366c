"""The rows of a linear model that are never in memory at once: compiled programs ask the host for tile after tile.

A pass is a `lax.scan` over the numbers of the tiles, and a callback gives each of them while a thread reads the next
block (`data.encoded_rows`). So every algorithm and every bound that adds up over rows (`row_sums.sum_over_rows`) takes
a stream as it is. What needs single rows, or all of them, is refused.
"""

import hashlib
import logging
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from provi.core.arguments import check_count, tell_failure
from provi.core.limits import STREAM_MEMORY
from provi.targets.row_sums import RowNumbers

if TYPE_CHECKING:  # models of arrays do without what reads tables
    from provi.data.encoded_rows import EncodedRows
    from provi.data.encoding import TableEncoding


class RowStream(eqx.Module):
    """What stands for the design matrix of a model whose rows are read in tiles.

    - `passes`: reads them; None of a fit that was loaded, whose data are elsewhere. - `identity`: a digest of what the
      first pass saw of the data. - `words`: where they are, for people. - `stored`, `floating`: the types of numbers as
      they are read, and as they are computed with.
    """

    passes: Any = eqx.field(static=True)
    shape: tuple[int, int] = eqx.field(static=True)
    stored: str = eqx.field(static=True)
    floating: str = eqx.field(static=True)
    identity: str = eqx.field(static=True)
    words: str = eqx.field(static=True)
    names: tuple[str, ...] = eqx.field(static=True)
    intercept: bool = eqx.field(static=True)

    @property
    def dtype(self) -> Any:
        """The floating type that is computed in."""
        return jnp.dtype(self.floating)

    @property
    def rows(self) -> "EncodedRows":
        """What is read; an error where the data are not there."""
        if self.passes is None:
            raise ValueError(
                f"The fit was loaded without its data ({self.words}, {self.shape[0]} rows): make the target again and "
                f"give it to provi.load(path, target=...)."
            )
        return self.passes.rows

    @property
    def encoding(self) -> "TableEncoding | None":
        """How the columns of a new table become those of the model; None where they are the same."""
        return None if self.passes is None else self.passes.rows.encoding

    @property
    def tile_rows(self) -> int:
        """Rows of a tile."""
        return self.rows.tile_rows

    @property
    def num_tiles(self) -> int:
        """Tiles of a pass."""
        return self.rows.num_tiles

    def tile(self, k: Any) -> tuple[Any, Any, Any]:
        """Tile k inside a program: its columns (dim, tile_rows), its responses, and which of its rows are real.

        The responses are `RowNumbers` where rows have offsets or weights.
        """
        size, stored = self.tile_rows, jnp.dtype(self.stored)
        words = stored.itemsize // 4
        tall = (self.shape[1], self.rows.num_numbers)
        shapes = [jax.ShapeDtypeStruct((count, size, words), jnp.uint32) for count in tall]
        tables = jax.pure_callback(self.passes.tile, shapes, k)
        tables = [x[..., 0] if words == 1 else x for x in tables]
        columns, numbers = (jax.lax.bitcast_convert_type(x, stored).astype(self.dtype) for x in tables)
        real = k * size + jnp.arange(size) < self.shape[0]
        return columns, self.responses(numbers), real

    def responses(self, numbers: Any) -> Any:
        """What stands for the responses of rows with these numbers, (count, rows) as in `EncodedRows.tiles`."""
        if self.rows.num_numbers == 1:
            return numbers[0]
        offset = None if self.rows.offset is None else numbers[1]
        return RowNumbers(numbers[0], offset, None if self.rows.weights is None else numbers[-1])

    def widened(self) -> "RowStream":
        """The same rows, computed with in float64."""
        return _with(self, floating="float64")

    def detached(self) -> "RowStream":
        """What identifies the rows, without them."""
        return _with(self, passes=None)

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise ValueError(
            f"The {self.shape[0]} rows of {self.words} are read in blocks and are never in memory at once, and this "
            f"asks for single rows or for all of them. Take a method that adds up over the rows (the default fit, its "
            f"certificate, provi.certify) or has batches from shuffled passes (PGSVI, ProxSGD with ReshuffledSampling),"
            f" or make the target of arrays, of a sample of the rows if need be."
        )

    __array__ = __getitem__ = __matmul__ = __rmatmul__ = __jax_array__ = __iter__ = _refuse

    @property
    def T(self) -> Any:
        """Of all rows: refused."""
        return self._refuse()


def _with(stream: RowStream, **changed: Any) -> RowStream:
    found = object.__new__(RowStream)
    for name in RowStream.__dataclass_fields__:
        object.__setattr__(found, name, changed.get(name, getattr(stream, name)))
    return found


class _Passes:
    """The host's side: gives tile k, which after tile k - 1 is the next one; else the pass begins again."""

    def __init__(self, rows: "EncodedRows") -> None:
        self.rows = rows
        self._lock, self._next = threading.Lock(), 0
        self._tiles: Any = None

    def tile(self, number: Any) -> list[np.ndarray]:
        """Called from compiled programs, on a thread of theirs: no JAX in here, which could wait for that thread."""
        with self._lock:
            try:
                # As words of 32 bits: on its threads JAX has 64-bit numbers switched off, and would round them.
                return [x.view(np.uint32).reshape(*x.shape, -1) for x in self._take(int(number))]
            except BaseException as error:
                self._close()
                tell_failure(error)
                _keep_quiet()
                raise

    def _take(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        if self._tiles is None or number != self._next:
            self._close()
            self._tiles, self._next = self.rows.tiles(), 0
            while self._next < number:  # only where two programs read the same rows by turns
                next(self._tiles)
                self._next += 1
        found = next(self._tiles, None)
        if found is None:
            raise ValueError(f"{self.rows.source.words} ended before its last row.")
        self._next += 1
        if self._next == self.rows.num_tiles:
            found = found[0].copy(), found[1].copy()  # the rest of the pass only checks that there is none
            for _ in self._tiles:
                pass
            self._tiles = None
        return found

    def _close(self) -> None:
        if self._tiles is not None:
            self._tiles.close()
        self._tiles = None


def _keep_quiet() -> None:
    """JAX logs the traceback of what a callback raises; `double_precision` raises the error itself."""
    logger = logging.getLogger("jax._src.callback")
    if not any(isinstance(found, _NotOurs) for found in logger.filters):
        logger.addFilter(_NotOurs())


class _NotOurs(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the error came from elsewhere."""
        trace = None if record.exc_info is None else record.exc_info[2]
        while trace is not None:
            if trace.tb_frame.f_code is _Passes.tile.__code__:
                return False
            trace = trace.tb_next
        return True


def stream_of(rows: "EncodedRows") -> RowStream:
    """The stream of rows that a first pass has seen."""
    if rows.num_rows < rows.shape[1]:
        raise ValueError(
            f"{rows.source.words} has {rows.num_rows} rows and {rows.shape[1]} columns: so few rows are better in "
            f"memory, as arrays."
        )
    digest = hashlib.sha256(repr((rows.shape, rows.names, str(rows.dtype), rows.labels, rows.features)).encode())
    if rows.num_numbers > 1:
        digest.update(repr((rows.offset, rows.weights, rows.table_mark)).encode())
    for part in (rows.centres, rows.spreads, rows.responses):
        digest.update(np.ascontiguousarray(part).tobytes())
    kind, words = str(np.dtype(rows.dtype)), rows.source.words
    return RowStream(_Passes(rows), rows.shape, kind, kind, digest.hexdigest(), words, rows.names, rows.intercept)


def parquet_stream(
    path: Any, target: str, columns: Any, likelihood: Any, extras: Any = None, **options: Any
) -> RowStream:
    """The stream of Parquet or Arrow files; the arguments are those of `AbstractRegression.from_parquet`.

    `extras`: the columns of offsets, exposures and weights by kind, None for those that there are none of.
    """
    from provi.data.blocks import TableFiles, table_files, table_schema

    files = table_files(path)
    schemas, extras = [table_schema(file)[0] for file in files], _given(extras)
    for kind, name in extras.items():
        if not isinstance(name, str):
            raise ValueError(f"{kind} must be the name of a column, not {name!r}.")
        if name == target:
            raise ValueError(f"{kind}: {target!r} is the response.")
    for file, schema in zip(files, schemas, strict=True):
        wanted = [*(schemas[0].names if columns is None else columns), target, *extras.values()]
        for name in wanted:
            if name not in schema.names:
                raise ValueError(f"{file} has no column {name!r}: its columns are {', '.join(schema.names[:8])}.")
            if schema.field(name).type != schemas[0].field(name).type:
                raise ValueError(
                    f"Column {name!r} is {schema.field(name).type} in {file} and {schemas[0].field(name).type} in "
                    f"{files[0]}: write the files with one schema."
                )
    others = {target, *extras.values()}
    names = tuple(name for name in schemas[0].names if name not in others) if columns is None else tuple(columns)
    if target in names:
        raise ValueError(f"columns: {target!r} is the response, and cannot explain itself.")
    if not names:
        raise ValueError(f"No columns are left beside the response {target!r}.")
    return _surveyed(TableFiles(files, names, target, extras), likelihood, options)


def block_stream(X: Any, y: Any, names: Any, likelihood: Any, extras: Any = None, **options: Any) -> RowStream:
    """The stream of arrays, or of what a function yields; the arguments are those of `from_blocks`."""
    from provi.data.blocks import ArrayRows

    extras = _given(extras)
    if callable(X):
        for name in ("y",) if y is not None else extras:
            raise ValueError(
                f"{name} must not be given where X is a function: it yields pairs (X_block, y_block), or (X_block, "
                f'y_block, {{"weights": ...}}) with arrays for any of offset, exposure and weights.'
            )
        source: Any = _yielded(X, names)
    else:
        X, y = _array("X", X, 2), _array("y", y, 1)
        tables = {kind: _row_table(kind, table, len(X)) for kind, table in extras.items()}
        if len(X) != len(y):
            raise ValueError(f"y has length {len(y)}, but X has {len(X)} rows.")
        source = ArrayRows(X, y, _names(names, X.shape[1]), tables)
    return _surveyed(source, likelihood, options)


def _surveyed(source: Any, likelihood: Any, options: dict[str, Any]) -> RowStream:
    """The stream of a source after its first pass, in which the likelihood checks the responses."""
    from provi.data.survey import survey
    from provi.targets.likelihoods.rows import check_exposure, of_responses  # likelihoods import what knows streams

    if "exposure" in source.extras:
        check_exposure(likelihood)

    def check(y: np.ndarray, length: int) -> Any:
        return of_responses(likelihood, y, "weights" in source.extras).read_response(y, length)

    return stream_of(survey(source, check, **_checked(options)))


def _given(extras: dict[str, Any] | None) -> dict[str, Any]:
    return {kind: given for kind, given in (extras or {}).items() if given is not None}


def _yielded(function: Any, names: Any) -> Any:
    """The rows that a function yields; the first block says how many columns there are, and which numbers."""
    from provi.data.blocks import YieldedRows, yielded_parts

    first = next(iter(function()), None)
    if not isinstance(first, tuple) or len(first) not in (2, 3) or np.ndim(first[0]) != 2:
        raise ValueError(
            "X is a function and must yield pairs (X_block, y_block), with X_block of two axes; a third item may be a "
            "dictionary of offsets, exposures or weights."
        )
    kinds = tuple(yielded_parts(first, "block 0")[2])
    return YieldedRows(function, _names(names, np.shape(first[0])[1]), kinds)


def _row_table(kind: str, given: Any, length: int) -> Any:
    """One number for each row, an array that may be mapped from disk; a single number is that of all."""
    if isinstance(given, int | float | np.number) and not isinstance(given, bool):
        return np.broadcast_to(np.asarray(given, np.float64), (length,))
    table = _array(kind, given, 1)
    if len(table) != length:
        raise ValueError(f"{kind} has length {len(table)}, but must have length {length}: one for each row of X.")
    return table


def _array(name: str, given: Any, axes: int) -> Any:
    """An array that may be mapped from disk; the path of a .npy file is."""
    if (isinstance(given, str) or hasattr(given, "__fspath__")) and not Path(given).is_file():
        raise FileNotFoundError(f"{name}: there is no file {given}.")  # a pipe or a device would be read for ever
    found = np.load(given, mmap_mode="r") if isinstance(given, str) or hasattr(given, "__fspath__") else given
    if not isinstance(found, np.ndarray) or found.ndim != axes or found.dtype.kind not in "fiub":
        what = f"an array of shape {found.shape} and dtype {found.dtype}" if hasattr(found, "dtype") else repr(found)
        raise ValueError(
            f"{name} must be an array of {axes} axes of numbers (np.memmap, or the path of a .npy file), not {what}."
        )
    return found


def _names(names: Any, count: int) -> tuple[str, ...]:
    if names is None:
        return tuple(f"coefficient[{k}]" for k in range(count))
    if len(names) != count:
        raise ValueError(f"names has {len(names)} entries, but X has {count} columns.")
    return tuple(map(str, names))


def _checked(options: dict[str, Any]) -> dict[str, Any]:
    memory = check_count("memory", options.pop("memory", STREAM_MEMORY), minimum=2**20)
    kind = options.pop("dtype", None)
    if kind is not None and np.dtype(kind) not in (np.dtype(np.float32), np.dtype(np.float64)):
        raise ValueError(f"dtype must be float32 or float64, not {kind!r}.")
    return {**options, "memory": memory, "dtype": None if kind is None else np.dtype(kind)}
