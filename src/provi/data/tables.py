"""Tables in files, CSV or Parquet, read column by column: each as numbers, or else as texts.

A column is a float64 array with NaN where an entry is missing, or an object array of `str` with None there. What a
column means for a model is decided later, in `provi.data.encoding`: a column that is not used may hold anything.
"""

import contextlib
import csv
import gzip
import io
import itertools
import math
import re
import stat
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from provi.core.frames import check_unmasked, frame_columns, frame_names, repeated_names
from provi.core.limits import check_memory, host_bytes

Column: TypeAlias = np.ndarray
Columns: TypeAlias = dict[str, Column]

MISSING = frozenset({"", ".", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "NaT", "null", "NULL", "?"})
"""What stands for a missing entry in a text file. Not "None" and "-", which may be levels of a category."""

BYTES_OF_ENTRY, _ROW = 70, 160
"""Bytes of an entry as a Python text in its row, and of a row besides: measured, rounded up."""

_LONGEST_LINE, _MOST_BLANK = 2**26, 10_000
_SPLIT = "leave out columns or rows, or split it"
_TEXT_FILES, _PARQUET_FILES = (".csv", ".tsv", ".txt"), (".parquet", ".pq")


class Share(NamedTuple):
    """One of `count` processes that read a file together, each its part of the rows.

    - `exchange`: plain data of every process, from those of this one. - `gather`: the same of columns.
    """

    index: int
    count: int
    exchange: Callable[[Any], list[Any]]
    gather: Callable[[Column], list[Column]]


_ALONE = Share(0, 1, lambda value: [value], lambda column: [column])


def read_table(path: str | Path, *, decimal_comma: bool = False, share: Share = _ALONE) -> Columns:
    """The columns of a file by name, in its order.

    A text file has its names in the first line; entries are separated by commas, semicolons, tabs or bars, whichever
    the first line has most of; blank lines are skipped. `MISSING` lists what counts as missing. Line breaks and other
    control characters inside an entry become spaces.

    What would not fit into memory is refused before it is there: rows may take half of what is free, about 70 bytes an
    entry, and a line 64 MiB. Only regular files are read.

    **Arguments:**

    - `path`: a file that ends in .csv, .tsv or .txt (UTF-8; with .gz behind it, compressed), or in .parquet or .pq,
      which needs pyarrow.
    - `decimal_comma`: whether 1,5 is a number. It is never guessed: 1,234 may be a thousand.
    - `share`: of several processes, each of which reads some of the rows (of Parquet, some of the row groups), and
      which then exchange what they have read; all return the whole table.
    """
    file = Path(path)
    if not file.exists():
        raise FileNotFoundError(f"There is no file {file}.")
    if file.is_dir():
        raise ValueError(f"{file} is a folder; pass a file.")
    check_regular(file)
    suffix = Path(file.name.lower().removesuffix(".gz")).suffix
    if suffix in _PARQUET_FILES:
        names, columns = _read_parquet(file, share)
    elif suffix in _TEXT_FILES:
        names, columns = _read_text(file, decimal_comma, share)
    else:
        known = ", ".join((*_TEXT_FILES, *_PARQUET_FILES))
        raise ValueError(f"{file} is not known to be a table: its name must end in one of {known}.")
    _check_names(file, names)
    return dict(zip(names, columns, strict=True))


def as_table(frame: Any) -> Columns:
    """The columns of a data frame (pandas, polars, Arrow) or of a dictionary as a file of it would have them.

    Booleans are texts there.
    """
    held = frame if isinstance(frame, Mapping) else dict(zip(frame_names(frame), frame_columns(frame), strict=True))
    found = {}
    for name, column in held.items():
        check_unmasked(f"column {name!r}", column)
        values = np.asarray(column)
        if values.dtype.kind in "fiu":
            found[name] = values.astype(np.float64)
        else:
            found[name] = _as_column(
                ["" if value is None or value != value else str(value) for value in values.tolist()]
            )
    return found


def is_numeric(column: Column) -> bool:
    """Whether a column holds numbers."""
    return column.dtype.kind == "f"


def is_missing(column: Column) -> np.ndarray:
    """True where an entry is missing."""
    return np.isnan(column) if is_numeric(column) else np.array([text is None for text in column], bool)


def as_number(text: str) -> float | None:
    """The number that a text writes, or None."""
    if "_" in text:  # Python reads 1_000 as a number; in a table it is a code.
        return None
    try:
        return float(text)
    except ValueError:
        return None


def _read_text(file: Path, decimal_comma: bool, share: Share) -> tuple[list[str], list[Column]]:
    numbered: list[tuple[int, list[str]]] = []
    cells, rows, most = 0, 0, host_bytes() // 2
    try:
        with contextlib.closing(_lines(file)) as lines:
            blank, head = _first_line(lines)
            reader = csv.reader(
                itertools.chain(blank, [head], lines), delimiter=_delimiter(head), skipinitialspace=True, strict=True
            )
            for row in reader:
                if len(row) > 1 or any(cell.strip() for cell in row):
                    rows += 1
                    if rows > 1 and (rows - 2) % share.count != share.index:
                        continue
                    numbered.append((reader.line_num, row))
                    cells += len(row)
                    if BYTES_OF_ENTRY * cells + _ROW * len(numbered) > most:
                        raise ValueError(
                            f"{file} takes more memory than half of what is free ({most / 2**30:.1f} GiB), of which "
                            f"{len(numbered)} rows were read: {_SPLIT}."
                        )
    except csv.Error as error:
        line = numbered[-1][0] if numbered else 0
        raise ValueError(f"{file} is not a table in CSV: {error}, after line {line}.") from None
    if not numbered:
        raise ValueError(f"{file} is empty.")
    names = [printable(cell) for cell in numbered[0][1]]
    if all(as_number(name) is not None for name in names):
        raise ValueError(f"{file} has numbers in its first line: put a line with the names of the columns there.")
    if rows == 1:
        raise ValueError(f"{file} has a line of names but no rows.")
    if len(numbered) == 1:
        raise ValueError(f"{file} has {rows - 1} rows, too few for {share.count} processes.")
    for line, row in numbered:
        if len(row) != len(names):
            raise ValueError(
                f"{file}, line {line} has {len(row)} entries, but the first line names {len(names)}: "
                f"{', '.join(map(repr, names[:4]))}{', ...' if len(names) > 4 else ''}."
            )
    cells = zip(*(row for _, row in numbered[1:]), strict=True)
    _check_same(file, names, share)
    return names, _joined([(column, decimal_comma) for column in cells], share, [1] * (rows - 1))


def _check_same(file: Path, names: Sequence[str], share: Share) -> None:
    """`ValueError` where another process sees other columns: its file is another one."""
    for k, other in enumerate(share.exchange(list(names))):
        if other != list(names):
            apart = ", ".join(map(repr, sorted(set(other) ^ set(names))[:6])) or "in another order"
            raise ValueError(
                f"{file} has other columns in process {k} than in process {share.index}: {apart}. All must read the "
                f"same file."
            )


def _joined(parts: list[Any], share: Share, runs: Sequence[int]) -> list[Column]:
    """Whole columns, from this process's entries: numbers, or texts to be read as such if all processes' can be.

    `runs`: lengths of the runs of rows that went to one process after the other.
    """
    own = [part if isinstance(part, np.ndarray) else _as_column(*part) for part in parts]
    if share.count == 1:
        return own
    numeric = [all(each) for each in zip(*share.exchange([is_numeric(column) for column in own]), strict=True)]
    ends = np.cumsum([0, *runs])
    places = [
        np.concatenate([np.arange(*ends[[k, k + 1]]) for k in range(first, len(runs), share.count)] or [np.arange(0)])
        for first in range(share.count)
    ]
    whole = []
    for column, part, numbers in zip(own, parts, numeric, strict=True):
        if is_numeric(column) and not numbers:
            column = _as_texts(part[0])
        joined = np.empty(int(ends[-1]), column.dtype)
        for rows, values in zip(places, share.gather(column), strict=True):
            joined[rows] = values
        whole.append(joined)
    return whole


def check_regular(file: Path) -> None:
    """Refuse devices, pipes and sockets, also behind a link: to read one may never end."""
    if not stat.S_ISREG(file.stat().st_mode):
        raise ValueError(f"{file} is no regular file but a device, a pipe or a socket: write its table to a file.")


def _lines(file: Path) -> Generator[str, None, None]:
    """The lines of a text, unpacked as they are asked for where it is compressed, whatever the file is called.

    Megabytes can unpack to terabytes: of a bomb no more is unpacked than one line, or than the rows that fit.
    """
    with open_unpacked(file) as raw, io.TextIOWrapper(raw, "utf-8-sig", newline="") as stream:
        try:
            while line := stream.readline(_LONGEST_LINE + 1):
                if len(line) > _LONGEST_LINE:
                    raise ValueError(f"{file} has a line of more than {_LONGEST_LINE >> 20} MiB: it is no table.")
                yield line
        except UnicodeDecodeError as error:
            place = raw.tell() - len(error.object) + error.start
            raise ValueError(f"{file} is not UTF-8 text (byte {place}): save it as CSV UTF-8.") from None
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{file} is a damaged gzip file: {error}.") from None


def open_unpacked(file: Path) -> Any:
    """The bytes of a file as a stream, unpacked if they are compressed by gzip."""
    stream = file.open("rb")
    if stream.peek(2)[:2] != b"\x1f\x8b":
        return stream
    stream.close()
    return gzip.open(file, "rb")


def _first_line(lines: Iterator[str]) -> tuple[list[str], str]:
    """The blank lines at the beginning, and the first that is none."""
    blank = []
    for line in lines:
        if line.strip():
            return blank, line
        if len(blank) < _MOST_BLANK:  # their number counts in messages only
            blank.append(line)
    return blank, ""


def _delimiter(head: str) -> str:
    """The most frequent of the four in the first line, quoted parts left aside; a comma where there is none.

    Of two that are as frequent, the comma is the one that may be part of a name.
    """
    plain = re.sub(r'"[^"]*"', "", head)
    best = max("\t;|,", key=plain.count)
    return best if best in plain else ","


def printable(text: str) -> str:
    """The text without spaces around it; what does not print, such as line breaks and colour codes, becomes spaces."""
    if text.isprintable():
        return text.strip()
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())


def _as_column(cells: Sequence[str], decimal_comma: bool = False) -> Column:
    """Numbers if every entry that is there is one, otherwise texts."""
    texts = _as_texts(cells)
    numbers = [math.nan if text is None else as_number(_with_point(text, decimal_comma)) for text in texts]
    if any(number is None for number in numbers):
        return texts
    return np.array(numbers, np.float64)


def _as_texts(cells: Sequence[str]) -> Column:
    stripped = [printable(cell) for cell in cells]
    return np.array([None if cell in MISSING else cell for cell in stripped], object)


def _with_point(text: str, decimal_comma: bool) -> str:
    return text.replace(",", ".") if decimal_comma and "." not in text and text.count(",") == 1 else text


def _read_parquet(file: Path, share: Share) -> tuple[list[str], list[Column]]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ImportError(f"{file} needs pyarrow to be read: pip install 'provi[streaming]'.") from None
    try:
        with parquet.ParquetFile(file) as opened:  # `read_table` would make columns of folders called a=1
            found = opened.metadata
            size = sum(found.row_group(k).total_byte_size for k in range(found.num_row_groups))
            # Few bytes may stand for many rows: texts become Python's, numbers float64.
            needed = size + BYTES_OF_ENTRY * found.num_rows * found.num_columns
            check_memory(f"{file}, of {found.num_rows} rows,", needed, _SPLIT)
            groups = [found.row_group(k).num_rows for k in range(found.num_row_groups)]
            own = list(range(share.index, len(groups), share.count))
            table = opened.read() if share.count == 1 else opened.read_row_groups(own)
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{file} is not a Parquet file: {error}") from None
    if sum(groups) == 0:
        raise ValueError(f"{file} has no rows.")
    names = [printable(str(name)) for name in table.column_names]
    _check_same(file, names, share)
    return names, _joined([_from_arrow(column) for column in table.columns], share, groups)


def _from_arrow(column: Any) -> Any:
    """Numbers as numbers; booleans, categories, dates and whatever else as texts, like those of a text file."""
    import pyarrow

    kind = column.type
    if pyarrow.types.is_integer(kind) or pyarrow.types.is_floating(kind) or pyarrow.types.is_decimal(kind):
        # A null becomes NaN; `safe` would refuse whole numbers beyond 2^53.
        return np.array(column.cast(pyarrow.float64(), safe=False).to_numpy(), np.float64)
    return ["" if value is None else str(value) for value in column.to_pylist()], False


def _check_names(file: Path, names: Sequence[str]) -> None:
    repeated = sorted(name for name in repeated_names(names) if name)
    if repeated:
        raise ValueError(f"{file} has more than one column called {', '.join(map(repr, repeated))}: rename them.")
    if "" in names:
        raise ValueError(
            f"{file} has no name for column {names.index('') + 1}: name it in the first line, or leave it out "
            f"(pandas writes such a column unless told index=False)."
        )
