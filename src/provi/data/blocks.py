"""Tables larger than memory, a chunk at a time, as often as there are passes over them.

A *source* gives its rows in chunks, from the beginning, each time it is asked: Parquet and Arrow files (`TableFiles`),
arrays that may be mapped from disk (`ArrayRows`), or what a function of the user's yields (`YieldedRows`). Its `units`
can be read in any order, each by itself: row groups, runs of rows; what a function yields is one.
"""

import dataclasses
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROW_NUMBERS = ("offset", "exposure", "weights")
"""What a row may have beside its columns and its response."""


class StreamError(ValueError):
    """What is wrong with data that are read in blocks, and where."""


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Some rows that follow each other: a column each, or one matrix (rows, columns), and their responses.

    `place`: what they were read from, and `first`: the number there of the first of them. `extras`: a column each of
    some of `ROW_NUMBERS`.
    """

    columns: Any
    response: Any
    place: str
    first: int
    extras: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.response)

    def at(self, row: int) -> str:
        """Where a row of the chunk is, for people."""
        return f"{self.place}, row {self.first + row + 1}"


@dataclasses.dataclass(frozen=True, eq=False)
class TableFiles:
    """Parquet or Arrow files with the same columns, one after the other; `extras`: columns of `ROW_NUMBERS`."""

    files: tuple[Path, ...]
    names: tuple[str, ...]
    target: str
    extras: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def words(self) -> str:
        """For people."""
        first = str(next(iter(self.files)))
        return first + (f" and {len(self.files) - 1} more files" if len(self.files) > 1 else "")

    def stamps(self) -> tuple[tuple[int, int], ...]:
        """Size and time of change of every file: others mean that a file was written again."""
        return tuple((found.st_size, found.st_mtime_ns) for found in (file.stat() for file in self.files))

    def chunks(self, rows: int) -> Iterator[Chunk]:
        """All rows, at most `rows` at a time."""
        for file in self.files:
            first = 0
            for batch in record_batches(file, self._read, rows):
                if batch.num_rows:
                    yield self._chunk(batch, file, first)
                first += batch.num_rows

    def units(self, rows: int) -> list[Any]:
        """Row groups or record batches, each a file and a number."""
        del rows
        return [(file, number) for file in self.files for number in range(len(part_rows(file)))]

    def read(self, unit: Any, rows: int) -> Iterator[Chunk]:
        """The rows of one of `units`, at most `rows` at a time."""
        file, number = unit
        for batch in record_batches(file, self._read, rows, number):
            if batch.num_rows:
                yield self._chunk(batch, file, 0)

    def between(self, start: int, stop: int, rows: int) -> Iterator[Chunk]:
        """Rows `start` ... `stop` of all, at most `rows` at a time; of units that hold none of them nothing is read."""
        done = 0
        for file in self.files:
            before = done
            for number, length in enumerate(part_rows(file)):
                end = done + length
                wanted = done < stop and start < end
                for batch in record_batches(file, self._read, rows, number) if wanted else ():
                    low, high = max(start - done, 0), min(stop - done, batch.num_rows)
                    if low < high:
                        yield self._chunk(batch.slice(low, high - low), file, done + low - before)
                    done += batch.num_rows
                done = end

    @property
    def _read(self) -> list[str]:
        return list(dict.fromkeys([*self.names, self.target, *self.extras.values()]))

    def _chunk(self, batch: Any, file: Path, first: int) -> Chunk:
        extras = {kind: batch.column(name) for kind, name in self.extras.items()}
        return Chunk([batch.column(name) for name in self.names], batch.column(self.target), str(file), first, extras)


@dataclasses.dataclass(frozen=True, eq=False)
class ArrayRows:
    """X (rows, columns) and y, arrays of NumPy, in memory or mapped from a file; so are the `tables` of numbers."""

    X: Any
    y: Any
    names: tuple[str, ...]
    tables: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    target: str = "y"
    words: str = "X and y"

    @property
    def extras(self) -> dict[str, str]:
        """Which of `ROW_NUMBERS` there are, and what people call them."""
        return {kind: kind for kind in self.tables}

    def stamps(self) -> tuple:
        """None: the arrays are the user's."""
        return ()

    def chunks(self, rows: int) -> Iterator[Chunk]:
        """All rows, at most `rows` at a time."""
        for start in range(0, len(self.X), rows):
            yield self._chunk(start, start + rows)

    def units(self, rows: int) -> list[Any]:
        """Runs of so many rows."""
        return [(start, min(start + rows, len(self.X))) for start in range(0, len(self.X), rows)]

    def read(self, unit: Any, rows: int) -> Iterator[Chunk]:
        """The rows of one of `units`, at most `rows` at a time."""
        for start in range(unit[0], unit[1], rows):
            yield self._chunk(start, min(start + rows, unit[1]))

    def _chunk(self, start: int, stop: int) -> Chunk:
        extras = {kind: table[start:stop] for kind, table in self.tables.items()}
        return Chunk(self.X[start:stop], self.y[start:stop], "X and y", start, extras)


@dataclasses.dataclass(frozen=True, eq=False)
class YieldedRows:
    """What a function of the user's yields: each call begins again with the same pairs (X_block, y_block).

    `kinds`: those of `ROW_NUMBERS` that every block has, in a third item.
    """

    function: Callable[[], Any]
    names: tuple[str, ...]
    kinds: tuple[str, ...] = ()
    target: str = "y"
    words: str = "the blocks"

    @property
    def extras(self) -> dict[str, str]:
        """Which of `ROW_NUMBERS` there are, and what people call them."""
        return {kind: kind for kind in self.kinds}

    def stamps(self) -> tuple:
        """None: there is no file."""
        return ()

    def chunks(self, rows: int) -> Iterator[Chunk]:
        """All rows, at most `rows` at a time."""
        for number, pair in enumerate(self.function()):
            place = f"block {number}"
            X, y, extras = yielded_parts(pair, place)
            if set(extras) != set(self.kinds):
                own, firsts = (", ".join(found) or "no numbers" for found in (extras, self.kinds))
                raise StreamError(f"{place} has {own} beside its rows, and the first block {firsts}.")
            if X.ndim != 2 or X.shape != (len(y), len(self.names)) or y.ndim != 1:
                raise StreamError(
                    f"{place} has X_block of shape {X.shape} and y_block of shape {y.shape}: (rows, "
                    f"{len(self.names)}) and (rows,) are needed, as in the first block."
                )
            for kind, table in extras.items():
                if table.shape != y.shape:
                    raise StreamError(f"{place} has {kind} of shape {table.shape}: one entry for each row is needed.")
            for start in range(0, len(X), rows):
                own = slice(start, start + rows)
                yield Chunk(X[own], y[own], place, start, {kind: table[own] for kind, table in extras.items()})

    def units(self, rows: int) -> list[Any]:
        """One: a function yields its blocks in its own order."""
        del rows
        return [None]

    def read(self, unit: Any, rows: int) -> Iterator[Chunk]:
        """All rows, at most `rows` at a time."""
        del unit
        return self.chunks(rows)


def yielded_parts(given: Any, place: str) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """X, y and the numbers of the rows of a block that a function yielded."""
    if not isinstance(given, tuple) or len(given) not in (2, 3):
        raise StreamError(f"{place} must be a pair (X_block, y_block), not {type(given).__name__}.")
    extras = given[2] if len(given) == 3 else {}
    if not isinstance(extras, Mapping) or not set(extras) <= set(ROW_NUMBERS):
        raise StreamError(
            f"{place}: the third item must be a dictionary of arrays for some of {', '.join(ROW_NUMBERS)}, not "
            f"{extras!r}."
        )
    return np.asarray(given[0]), np.asarray(given[1]), {kind: np.asarray(table) for kind, table in extras.items()}


def table_files(path: Any) -> tuple[Path, ...]:
    """The files that a path, a folder, a pattern or a list of them stands for, the first two in order of name."""
    given = [path] if isinstance(path, str | Path) else list(path)
    found: list[Path] = []
    for item in given:
        place = Path(item)
        if place.is_dir():
            inside = sorted(file for file in place.rglob("*") if file.suffix.lower() in SUFFIXES)
        elif any(letter in str(item) for letter in "*?[") and not place.exists():
            inside = sorted(Path(place.anchor or ".").glob(str(place.relative_to(place.anchor))))
        else:
            inside = [place]
        if not inside or not all(file.is_file() for file in inside):
            raise FileNotFoundError(f"There is no file {item}.")
        found += inside
    if not found:
        raise ValueError("path is an empty list: give at least one file.")
    return tuple(found)


SUFFIXES = (".parquet", ".pq", ".arrow", ".feather", ".ipc")


def part_rows(file: Path) -> list[int]:
    """The rows of each row group of a Parquet file, or record batch of an Arrow file."""
    pyarrow, parquet, ipc = _arrow(file)
    if file.suffix.lower() in (".arrow", ".feather", ".ipc"):
        with pyarrow.memory_map(str(file)) as mapped, ipc.open_file(mapped) as opened:
            return [opened.get_batch(number).num_rows for number in range(opened.num_record_batches)]
    with parquet.ParquetFile(file) as opened:
        found = opened.metadata
        return [found.row_group(number).num_rows for number in range(found.num_row_groups)]


def record_batches(file: Path, names: Sequence[str] | None, rows: int, part: int | None = None) -> Iterator[Any]:
    """The rows of a Parquet or Arrow file, at most `rows` at a time, as Arrow's record batches of these columns.

    `part`: of one row group or record batch only.
    """
    pyarrow, parquet, ipc = _arrow(file)
    try:
        if file.suffix.lower() in (".arrow", ".feather", ".ipc"):
            with pyarrow.memory_map(str(file)) as mapped, ipc.open_file(mapped) as opened:
                for number in range(opened.num_record_batches) if part is None else (part,):
                    batch = opened.get_batch(number)
                    batch = batch if names is None else batch.select(list(names))
                    yield from (batch.slice(start, rows) for start in range(0, batch.num_rows, rows))
        else:
            # Buffered: else the bytes of a whole row group, which may be all rows, would be there at once.
            with parquet.ParquetFile(file, pre_buffer=False, buffer_size=2**17) as opened:
                groups = None if part is None else [part]
                yield from opened.iter_batches(rows, groups, None if names is None else list(names))
    except (pyarrow.ArrowException, OSError) as error:
        raise StreamError(f"{file} cannot be read as {file.suffix.lstrip('.') or 'a table'}: {error}") from None


def table_schema(file: Path) -> tuple[Any, int, int]:
    """The schema of a Parquet or Arrow file, its rows (-1 where it does not say), and its bytes unpacked."""
    pyarrow, parquet, ipc = _arrow(file)
    try:
        if file.suffix.lower() in (".arrow", ".feather", ".ipc"):
            with pyarrow.memory_map(str(file)) as mapped, ipc.open_file(mapped) as opened:
                return opened.schema, -1, file.stat().st_size
        with parquet.ParquetFile(file) as opened:
            found = opened.metadata
            size = sum(found.row_group(k).total_byte_size for k in range(found.num_row_groups))
            return opened.schema_arrow, found.num_rows, size
    except (pyarrow.ArrowException, OSError) as error:
        raise StreamError(f"{file} cannot be read as {file.suffix.lstrip('.') or 'a table'}: {error}") from None


def _arrow(file: Path) -> tuple[Any, Any, Any]:
    try:
        import pyarrow
        from pyarrow import ipc, parquet
    except ImportError:
        raise ImportError(f"{file} needs pyarrow to be read: pip install 'provi[streaming]'.") from None
    return pyarrow, parquet, ipc


def column_of(chunk: Chunk, number: int, start: int, stop: int) -> Any:
    """Rows `start` ... `stop` of a column as they were read: of Arrow, or of NumPy."""
    own = chunk.columns[number] if isinstance(chunk.columns, list) else chunk.columns[:, number]
    return own[start:stop]


def numbers(raw: Any) -> np.ndarray:
    """A column of numbers as NumPy's, without a copy where that can be; a missing entry is NaN."""
    if isinstance(raw, np.ndarray):
        return np.asarray(raw)
    import pyarrow

    if pyarrow.types.is_decimal(raw.type):
        raw = raw.cast(pyarrow.float64(), safe=False)
    return raw.to_numpy(zero_copy_only=False)


def is_number(raw: Any) -> bool:
    """Whether a column holds numbers, by its type: booleans, texts and dates are none."""
    if isinstance(raw, np.ndarray):
        return raw.dtype.kind in "fiub"
    import pyarrow

    kind = getattr(raw, "type", raw)
    return pyarrow.types.is_integer(kind) or pyarrow.types.is_floating(kind) or pyarrow.types.is_decimal(kind)


def read_ahead(blocks: Iterator[Any]) -> Iterator[Any]:
    """The same, with a thread that makes the next while the one before is used: one waits, one is made.

    What goes wrong in the thread is raised here; a consumer that stops early stops the thread.
    """
    ready: queue.Queue = queue.Queue(maxsize=1)
    ended = threading.Event()

    def offer(item: Any) -> bool:
        while not ended.is_set():
            try:
                ready.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def work() -> None:
        try:
            for block in blocks:
                if not offer((block, None)):
                    return
            offer((None, None))
        except BaseException as error:
            offer((None, error))

    thread = threading.Thread(target=work, name="provi-read-ahead", daemon=True)
    thread.start()
    try:
        while True:
            block, error = ready.get()
            if error is not None:
                raise error
            if block is None:
                return
            yield block
            del block  # or two would be held while the next is waited for
    finally:
        ended.set()
        thread.join()
