"""The rows of a table larger than memory as numbers, in *tiles*: arrays (columns, rows of a tile).

Their cut depends on the shape of the table alone: neither the memory that is allowed nor reading ahead changes a bit of
what is computed from them.
"""

import dataclasses
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from provi.data.blocks import Chunk, StreamError, column_of, numbers, read_ahead
from provi.data.encoding import EncodedColumn, TableEncoding

BLOCKS_HELD = 4
"""One that is computed with, one that waits, one that is filled, and what was decoded to fill it."""

_TILE_NUMBERS, _FEWEST_TILE_ROWS, _MOST_TILE_ROWS = 2**19, 256, 2**17
"""A tile of half a million numbers stays in the processor's cache: the two products of a pass over 65,536 x 100 rows
take 31 ms of one core in such tiles, by columns, and 54 in one block of rows."""


@dataclasses.dataclass(frozen=True, eq=False)
class EncodedRows:
    """The rows of a source as numbers, once the first pass has learnt how: tiles (columns, rows) and their responses.

    - `features`: how each column of the source enters, and `codes`: for a category the raw values (an Arrow array) and
      the level of each. - `positive`: of a response of labels, the same; else None. - `responses`: some values that say
      all that a likelihood asks of all of them: the distinct ones, or the extreme ones.
    - `response_mean`: their mean. - `centres`, `spreads`: mean and standard deviation of each feature.
    - `memory`: bytes, as in `core.limits.STREAM_MEMORY`; `ahead`: whether a thread reads the next block.
    """

    source: Any
    features: tuple[EncodedColumn, ...]
    codes: tuple[Any, ...]
    positive: Any
    labels: tuple[str, ...] | None
    intercept: bool
    num_rows: int
    dtype: Any
    responses: np.ndarray
    response_mean: float
    centres: np.ndarray
    spreads: np.ndarray
    memory: int
    ahead: bool
    stamps: tuple = ()
    marks: list = dataclasses.field(default_factory=list)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the columns of the tiles."""
        own = tuple(name for feature in self.features for name in feature.feature_names)
        return ("intercept", *own) if self.intercept else own

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.num_rows, len(self.names)

    @property
    def plain(self) -> bool:
        """Whether the columns of a matrix are the features."""
        return all(column == EncodedColumn(column.name) for column in self.features)

    @property
    def tile_rows(self) -> int:
        """Of every tile; the last is filled up with rows that are not real."""
        rows, columns = self.shape
        return min(rows, max(_FEWEST_TILE_ROWS, min(_MOST_TILE_ROWS, _TILE_NUMBERS // columns)))

    @property
    def num_tiles(self) -> int:
        """Of one pass."""
        return -(-self.num_rows // self.tile_rows)

    @property
    def tiles_at_once(self) -> int:
        """Tiles of a block that is read at once: as many as the memory allows."""
        tile = self.shape[1] * self.tile_rows * np.dtype(self.dtype).itemsize
        return int(np.clip(self.memory // (2 * BLOCKS_HELD * tile), 1, self.num_tiles))

    @property
    def least_stride(self) -> int:
        """One of so many rows is a sample that takes half of the memory at most."""
        size = self.num_rows * self.shape[1] * np.dtype(self.dtype).itemsize
        return max(1, -(-2 * size // self.memory))

    @property
    def encoding(self) -> TableEncoding | None:
        """How new tables become rows; None where columns enter as they are."""
        return None if self.plain and self.labels is None else self.table_encoding

    @property
    def table_encoding(self) -> TableEncoding:
        """The same, where it changes nothing, too."""
        return TableEncoding(self.features, self.source.target, self.labels)

    def tiles(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """One pass: (columns, `tile_rows`) and the responses of every tile; one that is not as before is an error."""
        self.check_stamps()
        blocks = self._blocks()
        for design, response in read_ahead(blocks) if self.ahead else blocks:
            yield from zip(design, response, strict=True)

    def check_stamps(self) -> None:
        """Whether the files are those of the first pass."""
        try:
            same = self.source.stamps() == self.stamps
        except OSError as error:
            raise StreamError(f"{self.source.words} cannot be read any more: {error}") from None
        if not same:
            raise StreamError(f"{self.source.words} has changed since the first pass: make the target again.")

    def _blocks(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        columns, size, at_once = self.shape[1], self.tile_rows, self.tiles_at_once
        done, mark, buffer = 0, 0, None
        for chunk in self.source.chunks(size * at_once):
            start = 0
            while start < len(chunk):
                if done + start >= self.num_rows:
                    self._changed(done + len(chunk))
                if buffer is None:
                    buffer = _Buffer(columns, size, min(at_once, self.num_tiles - (done + start) // size), self)
                stop = min(len(chunk), start + buffer.room)
                buffer.take(chunk, start, stop)
                start = stop
                if buffer.room == 0:
                    mark = buffer.mark(mark)
                    yield buffer.design, buffer.response
                    buffer = None
            done += len(chunk)
        if done != self.num_rows:
            self._changed(done)
        if buffer is not None:
            buffer.pad()
            mark = buffer.mark(mark)
            yield buffer.design, buffer.response
        if self.marks and self.marks[0] != mark:
            raise StreamError(f"{self.source.words}: a pass gave other rows than the one before: all must be the same.")
        self.marks[:] = [mark]

    def _changed(self, count: int) -> None:
        raise StreamError(
            f"{self.source.words}: a pass gave {count} rows or more, the first one {self.num_rows}: all must give the "
            f"same."
        )

    def encoded(self, chunk: Chunk, start: int, stop: int) -> Iterator[tuple[int, np.ndarray]]:
        """The places of the features, and their numbers in rows `start` ... `stop` of a chunk."""
        place = int(self.intercept)
        for number, (feature, codes) in enumerate(zip(self.features, self.codes, strict=True)):
            raw = column_of(chunk, number, start, stop)
            if codes is not None:
                levels = codes.places(raw)
                for level in range(1, len(feature.levels or ())):
                    yield place, levels == level
                    place += 1
                continue
            values = numbers(raw)
            if (feature.centre, feature.scale) != (0.0, 1.0):
                values = (values.astype(np.float64) - feature.centre) / feature.scale
            yield place, values
            place += 1

    def response_of(self, chunk: Chunk, start: int, stop: int) -> np.ndarray:
        """The responses of these rows as numbers."""
        raw = chunk.response[start:stop]
        return numbers(raw) if self.positive is None else self.positive.places(raw) == 1

    def sample(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The rows at `places`, in order, as a matrix (rows, columns), and their responses: one pass."""
        design, response = np.empty((len(places), self.shape[1]), self.dtype), np.empty(len(places), self.dtype)
        size = self.tile_rows
        ends = np.searchsorted(places, size * np.arange(self.num_tiles + 1))
        for k, (tile, values) in enumerate(self.tiles()):
            own = places[ends[k] : ends[k + 1]] - k * size
            design[ends[k] : ends[k + 1]] = tile[:, own].T
            response[ends[k] : ends[k + 1]] = values[own]
        return design, response


class _Buffer:
    """Some tiles that are being filled."""

    def __init__(self, columns: int, size: int, count: int, rows: EncodedRows) -> None:
        self.design = np.empty((count, columns, size), rows.dtype)
        self.response = np.empty((count, size), rows.dtype)
        self.rows, self.size, self.filled, self.room = rows, size, 0, count * size
        if rows.intercept:
            self.design[:, 0] = 1

    def take(self, chunk: Chunk, start: int, stop: int) -> None:
        """Rows `start` ... `stop` of a chunk."""
        pieces, at = [], start
        while at < stop:
            tile, inside = divmod(self.filled + at - start, self.size)
            count = min(self.size - inside, stop - at)
            pieces.append((tile, slice(inside, inside + count), slice(at - start, at - start + count)))
            at += count
        if not isinstance(chunk.columns, list) and self.rows.plain:
            first = int(self.rows.intercept)
            for tile, into, out in pieces:
                self.design[tile, first:, into] = chunk.columns[start:stop][out].T
        else:
            for place, values in self.rows.encoded(chunk, start, stop):
                for tile, into, out in pieces:
                    self.design[tile, place, into] = values[out]
        response = self.rows.response_of(chunk, start, stop)
        for tile, into, out in pieces:
            self.response[tile, into] = response[out]
        self.filled, self.room = self.filled + stop - start, self.room - (stop - start)

    def mark(self, before: int) -> int:
        """A check sum that a pass over other rows would not have: of the responses, and of a column of every tile."""
        for design, response in zip(self.design, self.response, strict=True):
            before = zlib.crc32(response.data, zlib.crc32(design[before % len(design)].data, before))
        return before

    def pad(self) -> None:
        """Rows that are not real: zeros, with a response that is one."""
        tile, inside = divmod(self.filled, self.size)
        if inside:
            self.design[tile, int(self.rows.intercept) :, inside:] = 0
            self.response[tile, inside:] = self.response[tile, inside - 1]
