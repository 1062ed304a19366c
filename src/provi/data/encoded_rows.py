"""The rows of a table larger than memory as numbers, in *tiles*: arrays (columns, rows of a tile).

Their cut depends on the shape of the table alone: neither the memory that is allowed nor reading ahead changes a bit of
what is computed from them.
"""

import dataclasses
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from provi.core.limits import check_memory
from provi.data.blocks import Chunk, StreamError, TableFiles, column_of, numbers, read_ahead
from provi.data.encoding import EncodedColumn, TableEncoding

BLOCKS_HELD = 4
"""One that is computed with, one that waits, one that is filled, and what was decoded to fill it."""

BUFFER_TILES, OPEN_UNITS = 8, 4
"""Tiles of rows that are shuffled together, 32 MiB of float64; units of the source that fill them by turns."""

_SHUFFLES = 2**31 - 7
"""Of the seed: draws that nothing else takes."""

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
    - `offset`, `weights`: the smallest and the largest, where rows have some; `table_mark`: a check sum of them.
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
    offset: tuple[float, float] | None = None
    weights: tuple[float, float] | None = None
    table_mark: tuple[int, int] = (0, 0)
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
    def num_numbers(self) -> int:
        """Of a row beside its columns: the response, the offset, the weight."""
        return 1 + (self.offset is not None) + (self.weights is not None)

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
        shifted = isinstance(self.source, TableFiles) and self.offset is not None
        return None if self.plain and self.labels is None and not shifted else self.table_encoding

    @property
    def table_encoding(self) -> TableEncoding:
        """The same, where it changes nothing, too."""
        given = self.source.extras if isinstance(self.source, TableFiles) else {}
        return TableEncoding(
            self.features, self.source.target, self.labels, offset=given.get("offset"), exposure=given.get("exposure")
        )

    def tiles(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """One pass: (columns, `tile_rows`) of every tile, and (`num_numbers`, `tile_rows`), first the responses.

        A pass that is not as the one before is an error.
        """
        self.check_stamps()
        blocks = self._blocks()
        for design, table in read_ahead(blocks) if self.ahead else blocks:
            yield from zip(design, table, strict=True)

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
                    yield buffer.design, buffer.numbers
                    buffer = None
            done += len(chunk)
        if done != self.num_rows:
            self._changed(done)
        if buffer is not None:
            buffer.pad()
            mark = buffer.mark(mark)
            yield buffer.design, buffer.numbers
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

    def numbers_of(self, chunk: Chunk, start: int, stop: int) -> list[np.ndarray]:
        """The responses of these rows as numbers, their offsets and their weights, where they have some."""
        raw = chunk.response[start:stop]
        response = numbers(raw) if self.positive is None else self.positive.places(raw) == 1
        return [response, *(table for table in row_tables(chunk, start, stop) if table is not None)]

    def sample(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The rows at `places`, in order, as a matrix (rows, columns), and their numbers as in `tiles`: one pass."""
        design = np.empty((len(places), self.shape[1]), self.dtype)
        found, size = np.empty((self.num_numbers, len(places)), self.dtype), self.tile_rows
        ends = np.searchsorted(places, size * np.arange(self.num_tiles + 1))
        for k, (tile, values) in enumerate(self.tiles()):
            own = places[ends[k] : ends[k + 1]] - k * size
            design[ends[k] : ends[k + 1]] = tile[:, own].T
            found[:, ends[k] : ends[k + 1]] = values[:, own]
        return design, found

    def run_of(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows `start` ... `stop` of files as `sample` gives them; what holds none of them is not read."""
        size = (stop - start) * self.shape[1] * np.dtype(self.dtype).itemsize
        check_memory(f"{stop - start} rows of {self.source.words}", 3 * size, "take more processes, on more machines")
        self.check_stamps()
        (design, table), filled = self._empty(stop - start), 0
        for chunk in self.source.between(start, stop, self.tile_rows):
            into = slice(filled, filled + len(chunk))
            self._fill(design[into], table[:, into], chunk, 0, len(chunk))
            filled = into.stop
        if filled != stop - start:
            self._changed(start + filled)
        return design, table

    @property
    def buffer_rows(self) -> int:
        """Rows that are shuffled together: those of some tiles, as many as the shape of the table says."""
        return min(self.num_rows, BUFFER_TILES * self.tile_rows)

    def shuffled(self, seed: int, epoch: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """One pass in a random order: rows (n, columns), their numbers (`num_numbers`, n), and the order to take them.

        Units of the source come in a random order, `OPEN_UNITS` of them by turns; what they give fills a buffer of
        `buffer_rows`, whose rows are then taken in a random order. All of it is a function of the seed, the number of
        the pass and the layout of the source.
        """
        self.check_stamps()
        buffers = self._buffers(np.random.default_rng((seed, _SHUFFLES, epoch)))
        yield from read_ahead(buffers) if self.ahead else buffers

    def _buffers(self, rng: np.random.Generator) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        most, done, filled = self.buffer_rows, 0, 0
        design, table = self._empty(most)
        for chunk in self._mixed(rng, max(1, most // (2 * OPEN_UNITS))):
            start = 0
            while start < len(chunk):
                if done >= self.num_rows:
                    self._changed(done + len(chunk))
                stop = min(len(chunk), start + most - filled)
                into = slice(filled, filled + stop - start)
                self._fill(design[into], table[:, into], chunk, start, stop)
                filled, done, start = into.stop, done + stop - start, stop
                if filled == most:
                    yield design, table, rng.permutation(most)
                    (design, table), filled = self._empty(most), 0
        if done != self.num_rows:
            self._changed(done)
        if filled:
            yield design[:filled], table[:, :filled], rng.permutation(filled)

    def _empty(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        return np.empty((count, self.shape[1]), self.dtype), np.empty((self.num_numbers, count), self.dtype)

    def _mixed(self, rng: np.random.Generator, rows: int) -> Iterator[Chunk]:
        """The chunks of all units, those of a few at a time by turns."""
        units = self.source.units(self.tile_rows)
        waiting = [units[place] for place in rng.permutation(len(units))][::-1]
        reading: list[Iterator[Chunk]] = []
        while reading or waiting:
            while waiting and len(reading) < OPEN_UNITS:
                reading.append(self.source.read(waiting.pop(), rows))
            for unit in list(reading):
                chunk = next(unit, None)
                if chunk is None:
                    reading.remove(unit)
                else:
                    yield chunk

    def _fill(self, design: np.ndarray, table: np.ndarray, chunk: Chunk, start: int, stop: int) -> None:
        if self.intercept:
            design[:, 0] = 1
        if not isinstance(chunk.columns, list) and self.plain:
            design[:, int(self.intercept) :] = chunk.columns[start:stop]
        else:
            for place, values in self.encoded(chunk, start, stop):
                design[:, place] = values
        for place, values in enumerate(self.numbers_of(chunk, start, stop)):
            table[place] = values

    def weighted_moments(self) -> tuple[np.ndarray, np.ndarray, float]:
        """Weighted means and deviations of the features, and the logarithm of the rate of counts: one pass."""
        first, total, left = int(self.intercept), np.zeros(3), self.num_rows
        sums = np.zeros((2, self.shape[1] - first))
        for design, table in self.tiles():
            own, given = design[first:, :left].astype(np.float64), table[:, :left].astype(np.float64)
            weight = np.ones(given.shape[1]) if self.weights is None else given[-1]
            shift = np.zeros(given.shape[1]) if self.offset is None else given[1]
            away = own - self.centres[:, None]
            sums += np.stack([away @ weight, away**2 @ weight])
            total += [weight.sum(), weight @ given[0], weight @ np.exp(shift)]
            left -= design.shape[1]
        mean, rate = sums[0] / total[0], float(np.log((total[1] + 0.5) / total[2]))  # half a count: never log 0
        return self.centres + mean, np.sqrt(np.maximum(sums[1] / total[0] - mean**2, 0.0)), rate


class ShuffledRows:
    """Batches of rows at places of an endless row of passes, each of them all rows once, in an order of its own.

    Reading goes on where the last batch ended; a place before that, or in another pass, begins that pass again.
    """

    def __init__(self, rows: EncodedRows, seed: int) -> None:
        needed = BLOCKS_HELD * rows.buffer_rows * rows.shape[1] * np.dtype(rows.dtype).itemsize
        if needed > rows.memory:
            raise ValueError(
                f"memory={rows.memory} bytes do not hold the rows that are shuffled together: make the target with "
                f"memory={needed} or more. The buffer is of the table's shape, so that its order is the same for all."
            )
        self.rows, self.seed = rows, seed
        self._epoch, self._first, self._buffers = -1, 0, iter(())
        self._design, self._table, self._order = None, None, np.zeros(0, int)

    def take(self, place: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """`count` rows (count, columns) from `place` on, and their numbers (`num_numbers`, count)."""
        designs, tables, end = [], [], place + count
        while place < end:
            self._seek(place)
            at = place - self._epoch * self.rows.num_rows - self._first
            own = self._order[at : at + end - place]
            designs.append(self._design[own])  # pyright: ignore[reportOptionalSubscript]
            tables.append(self._table[:, own])  # pyright: ignore[reportOptionalSubscript]
            place += len(own)
        return np.concatenate(designs), np.concatenate(tables, axis=1)

    def _seek(self, place: int) -> None:
        """The buffer that has the row at `place`."""
        epoch, inside = divmod(place, self.rows.num_rows)
        if epoch != self._epoch or inside < self._first:
            self.close()
            self._epoch, self._buffers = epoch, self.rows.shuffled(self.seed, epoch)
        while inside >= self._first + len(self._order):
            self._first += len(self._order)
            self._design = self._table = None  # or it would be there while the next is waited for
            self._design, self._table, self._order = next(self._buffers)
            if self._first + len(self._order) == self.rows.num_rows:
                for _ in self._buffers:  # none: the end of the pass is where rows too many would be found
                    pass

    def close(self) -> None:
        """Stop reading; another batch begins its pass anew."""
        close = getattr(self._buffers, "close", None)
        if close is not None:
            close()
        self._epoch, self._first, self._order = -1, 0, np.zeros(0, int)
        self._design = self._table = None


def row_tables(chunk: Chunk, start: int, stop: int) -> tuple[np.ndarray | None, np.ndarray | None]:
    """The offsets of these rows, with the logarithms of their exposures, and their weights, in float64."""
    given = {kind: numbers(raw[start:stop]).astype(np.float64) for kind, raw in chunk.extras.items()}
    offset = given.get("offset")
    if "exposure" in given:
        offset = np.log(given["exposure"]) + (0.0 if offset is None else offset)
    return offset, given.get("weights")


class _Buffer:
    """Some tiles that are being filled."""

    def __init__(self, columns: int, size: int, count: int, rows: EncodedRows) -> None:
        self.design = np.empty((count, columns, size), rows.dtype)
        self.numbers = np.empty((count, rows.num_numbers, size), rows.dtype)
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
        for place, values in enumerate(self.rows.numbers_of(chunk, start, stop)):
            for tile, into, out in pieces:
                self.numbers[tile, place, into] = values[out]
        self.filled, self.room = self.filled + stop - start, self.room - (stop - start)

    def mark(self, before: int) -> int:
        """A check sum that a pass over other rows would not have: of the numbers, and of a column of every tile."""
        for design, table in zip(self.design, self.numbers, strict=True):
            before = zlib.crc32(table.data, zlib.crc32(design[before % len(design)].data, before))
        return before

    def pad(self) -> None:
        """Rows that are not real: zeros, with a response that is one."""
        tile, inside = divmod(self.filled, self.size)
        if inside:
            self.design[tile, int(self.rows.intercept) :, inside:] = 0
            self.numbers[tile, :, inside:] = self.numbers[tile, :, inside - 1 : inside]
