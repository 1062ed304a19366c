"""Public file formats to the arrays of a data set: LIBSVM text, UCI's numeric table, idx and CIFAR images."""

import math
import tarfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from provi.data.tables import open_unpacked

Arrays = dict[str, np.ndarray]

LARGEST_FILE = 2**28
"""Bytes that a public file may have, or unpack to: five times the largest one. What is longer is not the known one."""


def a9a(files: Sequence[Path]) -> Arrays:
    """`a9a` and `a9a.t` of the LIBSVM collection: 123 binary features, label 1 for +1."""
    train, test = files
    X_train, y_train = read_libsvm(train, 123)
    X_test, y_test = read_libsvm(test, 123)
    return {"X_train": X_train, "y_train": y_train, "X_test": X_test, "y_test": y_test}


def w8a(files: Sequence[Path]) -> Arrays:
    """`w8a` of the LIBSVM collection: 300 binary features, label 1 for +1."""
    (only,) = files
    X, y = read_libsvm(only, 300)
    return {"X": X, "y": y}


def german_numeric(files: Sequence[Path]) -> Arrays:
    """`german.data-numeric` of UCI: 24 numbers and a class, 1 for good and 2 for bad risk, a line."""
    (only,) = files
    try:
        table = np.loadtxt(only, dtype=np.float64, ndmin=2)
    except ValueError as error:
        raise ValueError(f"{only.name} is not a table of numbers: {error}") from None
    if table.shape[1] != 25 or not np.isin(table[:, -1], (1, 2)).all():
        raise ValueError(f"{only.name} must have 25 columns, the last one 1 or 2; its shape is {table.shape}.")
    return {"X": np.ascontiguousarray(table[:, :-1]), "y": (table[:, -1] == 2).astype(np.int8)}


def mnist(files: Sequence[Path]) -> Arrays:
    """The four idx files: training images and labels, test images and labels."""
    names = ("X_train", "y_train", "X_test", "y_test")
    return {name: read_idx(file) for name, file in zip(names, files, strict=True)}


def cifar10(files: Sequence[Path]) -> Arrays:
    """`cifar-10-binary.tar.gz`: five batches of training images and one of test images, channels last."""
    (only,) = files
    batches = read_cifar_batches(only, [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"])
    *train, (X_test, y_test) = batches
    X_train, y_train = (np.concatenate(parts) for parts in zip(*train, strict=True))
    return {"X_train": X_train, "y_train": y_train, "X_test": X_test, "y_test": y_test}


def _read_bytes(file: Path) -> bytes:
    """The bytes of a public file, unpacked if it is compressed; an `OSError` if there are too many."""
    with open_unpacked(file) as stream:
        content = stream.read(LARGEST_FILE + 1)
    if len(content) > LARGEST_FILE:
        raise OSError(f"it has more than {LARGEST_FILE >> 20} MiB")
    return content


def read_libsvm(file: Path, num_features: int) -> tuple[np.ndarray, np.ndarray]:
    """Lines `label index:1 index:1 ...` with labels +-1 and indices from 1, as int8 arrays of zeros and ones.

    **Returns:** X of shape (lines, num_features), and y, 1 for the label +1.
    """
    lines = _read_bytes(file).decode("ascii", "replace").splitlines()
    X, y = np.zeros((len(lines), num_features), np.int8), np.zeros(len(lines), np.int8)
    for row, line in enumerate(lines):
        try:
            label, *entries = line.split()
            pairs = [entry.split(":") for entry in entries]
            columns = [int(index) - 1 for index, _ in pairs]
            good = float(label) in (-1, 1) and all(float(value) == 1 for _, value in pairs)
        except ValueError:
            good, columns = False, []
        if not good or any(not 0 <= column < num_features for column in columns):
            raise ValueError(
                f"{file.name}, line {row + 1} is not 'label index:1 ...' with a label +-1 and indices from 1 to "
                f"{num_features}: {line[:60]!r}"
            )
        X[row, columns] = 1
        y[row] = float(label) == 1
    return X, y


def read_idx(file: Path) -> np.ndarray:
    """An idx file of bytes, gzipped or not: 0, 0, 8, the number of axes, each length in four bytes, the entries."""
    try:
        content = _read_bytes(file)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{file.name} cannot be unpacked: {error}") from None
    axes = content[3] if content[:3] == b"\x00\x00\x08" and len(content) > 3 else 0
    start = 4 + 4 * axes
    shape = tuple(int.from_bytes(content[i : i + 4], "big") for i in range(4, start, 4))
    if axes == 0 or len(content) != start + math.prod(shape):
        raise ValueError(f"{file.name} is not an idx file of bytes, or it is cut short.")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy()


def read_cifar_batches(file: Path, names: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Members of CIFAR's binary archive: for each image its label, then 32 x 32 bytes each of red, green and blue.

    **Returns:** for each name X of shape (images, 32, 32, 3) and y of shape (images,), bytes.
    """
    contents: dict[str, bytes] = {}
    try:
        # Members are read into memory and nothing is unpacked to disk, so that no path in the archive can do harm.
        with tarfile.open(file) as archive:
            for member in archive:
                if member.size > LARGEST_FILE:
                    raise tarfile.TarError(f"{member.name} has {member.size} bytes")
                stream = archive.extractfile(member) if Path(member.name).name in names else None
                if stream is not None:
                    contents[Path(member.name).name] = stream.read(LARGEST_FILE)
    except (tarfile.TarError, zlib.error, OSError, EOFError) as error:
        raise ValueError(f"{file.name} cannot be unpacked: {error}") from None
    batches = []
    for name in names:
        content = contents.get(name, b"")
        if not content or len(content) % 3073:
            raise ValueError(f"{name} of {file.name} has {len(content)} bytes, which is not 3073 for each image.")
        records = np.frombuffer(content, np.uint8).reshape(-1, 3073)
        if records[:, 0].max() > 9:
            raise ValueError(f"{name} of {file.name} has the label {records[:, 0].max()}; labels go from 0 to 9.")
        images = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        batches.append((np.ascontiguousarray(images), records[:, 0].copy()))
    return batches
