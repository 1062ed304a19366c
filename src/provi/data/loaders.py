"""Real data sets by name: from a folder of the user's, the cache, or the public source; one comes with ProVI."""

import dataclasses
import hashlib
import io
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from provi.core.files import replacing
from provi.core.limits import check_memory
from provi.data.sources import SOURCES, Source


@dataclasses.dataclass(frozen=True)
class Table:
    """A design matrix with column names, and a response."""

    features: np.ndarray
    response: np.ndarray
    names: tuple[str, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """The arrays of a data set, as stored: labels are integers, missing values NaN, nothing is standardised."""

    name: str
    arrays: dict[str, np.ndarray]

    def table(self, part: Literal["all", "train", "test"] = "all") -> Table:
        """Features, response and column names, for the sets that are tables.

        **Arguments:**

        - `part`: `"train"` or `"test"` of a published split, or `"all"` rows: the training rows, then the test rows.

        **Returns:** a `Table`; whole-number features become float64, so that products of them do not overflow.
        """
        if "X" in self.arrays:
            if part != "all":
                raise ValueError(f"part must be 'all': the data set {self.name!r} has no published split.")
            suffixes = ("",)
        elif "X_train" in self.arrays:
            suffixes = ("_train", "_test") if part == "all" else (f"_{part}",)
        else:
            raise ValueError(f"The data set {self.name!r} is not a table; its arrays are {', '.join(self.arrays)}.")
        features = np.concatenate([self.arrays[f"X{suffix}"] for suffix in suffixes])
        if features.ndim != 2:
            raise ValueError(f"The data set {self.name!r} holds images, {features.shape}; take them from .arrays.")
        if not np.issubdtype(features.dtype, np.floating):
            features = features.astype(np.float64)
        response = np.concatenate([self.arrays[f"y{suffix}"] for suffix in suffixes])
        names = self.arrays.get("feature_names", [f"x[{index}]" for index in range(features.shape[1])])
        return Table(features, response, tuple(str(name) for name in names))


def load(name: str) -> Dataset:
    """The data set `name`: looked up in the folder $PROVI_DATA, then in the user's cache, else downloaded.

    Its arrays are checked against the checksums in `provi.data.SOURCES`; `provi data list` names the sets.

    **Raises:** `FileNotFoundError` when there is no copy and none can be downloaded, with what to do about it;
    `ValueError` when a file is not the data set it should be.
    """
    with np.load(path(name), allow_pickle=False) as archive:
        return Dataset(name, {key: archive[key] for key in archive.files})


def breast_cancer(standardise: bool = True) -> Table:
    """The Wisconsin breast-cancer data, 569 x 30, response 1 = malignant; columns standardised by default.

    They come with ProVI. W. H. Wolberg, O. L. Mangasarian, N. Street and W. N. Street, *Breast Cancer Wisconsin
    (Diagnostic)*, UCI Machine Learning Repository 1993, [doi](https://doi.org/10.24432/C5DW2B), licence CC BY 4.0.
    """
    with np.load(Path(__file__).with_name("breast_cancer.npz"), allow_pickle=False) as archive:
        features, response, names = (archive[key] for key in ("X", "y", "feature_names"))
    if standardise:
        features = (features - features.mean(axis=0)) / features.std(axis=0)
    return Table(features, response, tuple(str(name) for name in names))


def path(name: str) -> Path:
    """The checked `.npz` file of the data set `name`, downloaded into the cache if need be."""
    if name not in SOURCES:
        raise ValueError(f"name must be one of {', '.join(SOURCES)}; not {name!r}.")
    source, found = SOURCES[name], local_copy(name)
    if found is None:
        return _download(name, source)
    _check(found, name, source)
    return found


def local_copy(name: str) -> Path | None:
    """The file of the data set `name` in $PROVI_DATA or in the cache, unchecked; `None` when neither has it."""
    folder = _user_folder()
    candidates = [place / f"{name}.npz" for place in (folder, cache_folder()) if place is not None]
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def cache_folder() -> Path:
    """$XDG_CACHE_HOME/provi, or ~/.cache/provi."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "provi"


def content_sha256(arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 over the arrays in the order of their names: a line `name dtype shape`, then little-endian bytes."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.asarray(arrays[name])
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _user_folder() -> Path | None:
    folder = os.environ.get("PROVI_DATA")
    return Path(folder).expanduser() if folder else None


def _check(file: Path, name: str, source: Source) -> None:
    """The file is the known one, or holds the same arrays (as one made from a download does)."""
    check_memory(f"{file}", file.stat().st_size, "it is not the data set")
    content = file.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found == source.file_sha256:
        return
    try:
        # From memory: NumPy leaves a file open when it is not an archive.
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            size = sum(member.file_size for member in archive.zip.infolist())
            check_memory(f"{file}", size, "it is not the data set")
            found_content = content_sha256({key: archive[key] for key in archive.files})
    except Exception:  # A damaged file fails in many ways inside NumPy, zipfile and zlib: all mean the same here.
        found_content = "unreadable"
    if found_content != source.content_sha256:
        raise ValueError(
            f"{file} is not the data set {name!r}, or it is damaged: its SHA-256 is {found}, not "
            f"{source.file_sha256}, and that of its arrays is {found_content}, not {source.content_sha256}. "
            f"Delete it or replace it; its arrays should be {source.layout}."
        )


def _download(name: str, source: Source) -> Path:
    """Fetch the public files, make the arrays, check them and keep them in the cache."""
    if source.convert is None:
        raise _not_found(name, source, "there is no public file that ProVI can convert by itself")
    try:
        import pooch
    except ImportError:
        raise _not_found(name, source, "needs pooch: pip install 'provi[data]'") from None
    with tempfile.TemporaryDirectory() as scratch:
        try:
            # No checksum is known of the public files themselves; that of the arrays below is the stronger check.
            fetched = [Path(pooch.retrieve(url, None, fname=Path(url).name, path=scratch)) for url in source.urls]
        except OSError as error:
            raise _not_found(name, source, f"{', '.join(source.urls)} failed: {error}") from error
        try:
            arrays = source.convert(fetched)
        except ValueError as error:
            raise ValueError(f"The public source of {name!r} ({source.urls[0]}) has changed: {error}") from None
    content = content_sha256(arrays)
    if content != source.content_sha256:
        raise ValueError(
            f"The public source of {name!r} ({source.urls[0]}) has changed: the SHA-256 of its arrays is {content}, "
            f"not {source.content_sha256}. Nothing was kept."
        )
    return _keep(name, arrays)


def _keep(name: str, arrays: dict[str, Any]) -> Path:
    """Write the arrays to the cache; a killed process leaves no broken file."""
    path = cache_folder() / f"{name}.npz"
    with replacing(path) as draft:
        np.savez_compressed(draft, **arrays)
    return path


def _not_found(name: str, source: Source, download: str) -> FileNotFoundError:
    folder = _user_folder()
    return FileNotFoundError(
        f"The data set {name!r} is not on this machine. Looked for {name}.npz in\n"
        f"  1. the folder $PROVI_DATA: {'not set' if folder is None else folder};\n"
        f"  2. the cache: {cache_folder()};\n"
        f"  3. download: {download}.\n"
        f"By hand: {source.route}. Save {source.layout} as {name}.npz in one of the two folders."
    )
