"""One way to write a file, and one to read tensors that were written so: nothing lost, nothing silently wrong.

A file is written under a name of its own in its folder, brought to the disk, and renamed: until then what was there
before is untouched, and two that write to one path cannot mix. Tensors have a digest of all that the file holds.
"""

import contextlib
import errno
import hashlib
import json
import os
import secrets
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from provi.core.limits import host_bytes

_TOKEN = 6  # random bytes in the name of a draft


class DamagedFileError(ValueError):
    """What was read is not what was written, or was never written by ProVI."""


@contextlib.contextmanager
def replacing(path: str | Path, keep: Path | None = None) -> Iterator[Path]:
    """A file to write to, which takes the place of `path` when the block has ended, and is removed if it fails.

    Folders on the way are made. An error of the disk is an `OSError` that names `path`.

    **Arguments:**

    - `keep`: where the old version stays; None for nowhere.
    """
    final = Path(os.path.realpath(path))  # a link goes on to point to the file
    if final.exists() and not final.is_file() and not final.is_dir():
        yield final  # a device or a pipe (/dev/null): it cannot be replaced, and must not be
        return
    draft: Path | None = None
    try:
        draft, mode = _new_draft(final)
        yield draft
        _bring_to_disk(draft)
        os.chmod(draft, mode)  # libraries that write by renaming leave another
        if keep is not None and final.exists():
            _keep_old(final, keep)
        os.replace(draft, final)
        with contextlib.suppress(OSError):  # not all systems open folders
            _bring_to_disk(final.parent)
    except OSError as error:
        reason = error.strerror or str(error)
        raise OSError(error.errno, f"cannot be written ({reason}); what was there is untouched", str(path)) from error
    finally:
        if draft is not None:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> Path:
    """Write a text, in UTF-8 and with \\n at the ends of lines on all systems, and return the path."""
    with replacing(path) as draft:
        draft.write_text(text, encoding="utf-8", newline="\n")
    return Path(path)


def try_writing(path: str | Path) -> None:
    """`OSError` where `replacing(path)` would fail now: before the work, not after it.

    By trial: what permissions say is not all (a full or read-only disk, a folder such as /proc).
    """
    final = Path(os.path.realpath(path))
    if final.is_dir():
        raise IsADirectoryError(errno.EISDIR, "is a folder; give a file in it", str(path))
    if final.exists() and not final.is_file():
        return
    draft, _ = _new_draft(final)
    try:
        draft.write_bytes(bytes(4096))
        _bring_to_disk(draft)
    finally:
        with contextlib.suppress(OSError):
            draft.unlink()


def remove_drafts(path: str | Path) -> None:
    """Remove what killed processes left of `path`; for those only who know that nobody else is writing to it."""
    final = Path(os.path.realpath(path))
    for draft in final.parent.glob(f".{_escaped(final.stem)}.{'[0-9a-f]' * 2 * _TOKEN}{_escaped(final.suffix)}"):
        with contextlib.suppress(OSError):
            draft.unlink()


def _escaped(text: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in text)


def _new_draft(final: Path) -> tuple[Path, int]:
    """An empty file beside `final`, and the permissions that `final` has or a new file gets."""
    final.parent.mkdir(parents=True, exist_ok=True)
    # With the ending of `final`, from which some writers take the format.
    draft = final.with_name(f".{final.stem}.{secrets.token_hex(_TOKEN)}{final.suffix}")
    descriptor = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    try:
        mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
    finally:
        os.close(descriptor)
    with contextlib.suppress(FileNotFoundError):
        mode = stat.S_IMODE(final.stat().st_mode)
    return draft, mode


def _bring_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)  # Windows needs the right to write
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _keep_old(final: Path, keep: Path) -> None:
    """A second name of the old version, so that there is no moment without `final`."""
    second = keep.with_name(f".{keep.name}.{secrets.token_hex(_TOKEN)}")
    try:
        try:
            os.link(final, second)
        except OSError:  # a disk without links
            shutil.copyfile(final, second)
        os.replace(second, keep)
    finally:
        with contextlib.suppress(OSError):
            second.unlink(missing_ok=True)


@contextlib.contextmanager
def sole_use(path: str | Path, argument: str) -> Iterator[None]:
    """Inside, no other run has `path`: a second one is refused with a `ValueError` that names `argument`.

    The system's own lock, which ends with the process however that ends. Where there is none (Windows, some network
    disks) nobody is refused; files stay whole all the same, as each writes to a draft of its own.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    final = Path(os.path.realpath(path))
    lock = final.with_name(f".{final.name}.lock")
    descriptor = -1
    try:
        while True:
            try:
                descriptor = os.open(lock, os.O_CREAT | os.O_RDWR, 0o666)
            except OSError:  # a disk that is full or gone since the path was tried: the run says so when it saves
                break
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError(
                    f"{argument}={path} is in use by another run that has not ended: give each run a path of its own, "
                    f"or wait for it."
                ) from None
            except OSError:  # no locks on this disk
                break
            with contextlib.suppress(FileNotFoundError):
                if os.fstat(descriptor).st_ino == lock.stat().st_ino:
                    break  # else its last owner has removed it between our two calls
            os.close(descriptor)
            descriptor = -1
        yield
        with contextlib.suppress(OSError):
            lock.unlink()
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def write_tensors(
    path: str | Path, tensors: Mapping[str, Any], metadata: Mapping[str, str], keep: Path | None = None
) -> None:
    """Write arrays and texts as safetensors, with the digest of them all that `opened_tensors` checks."""
    import numpy as np
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    arrays = {name: np.asarray(array, order="C") for name, array in tensors.items()}
    digest = _digest(metadata, arrays)
    with replacing(path, keep) as draft:
        try:
            save_file(arrays, draft, metadata={**metadata, "digest": digest})
        except SafetensorError as error:
            raise OSError(errno.EIO, str(error)) from None


@contextlib.contextmanager
def opened_tensors(path: str | Path, formats: Sequence[str], what: str) -> Iterator[Any]:
    """A file of `write_tensors`, open, its digest checked: `.metadata()`, `.keys()`, `.get_tensor(name)`.

    Whatever a damaged, truncated or foreign file leads to, also inside the block, is a `DamagedFileError` that names
    it. Files of earlier formats than the last of `formats` have no such digest: what is checked of them is up to the
    block.

    **Arguments:**

    - `formats`: those that are read, oldest first, "provi-fit-2". - `what`: is expected, "a fit saved by ProVI".
    """
    from safetensors import safe_open

    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(errno.ENOENT, "There is no such file", str(path))
    if not path.is_file():
        raise DamagedFileError(f"{path} is not {what}, but a folder or a device.")
    _check_memory(path)
    try:
        with safe_open(path, framework="numpy") as file:
            _check(file, path, formats, what)
            yield file
    except (OSError, DamagedFileError, Warning):  # the last where the user has made errors of warnings
        raise
    except Exception as error:
        if isinstance(error, ValueError) and str(path) in str(error):
            raise
        words = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise DamagedFileError(f"{path} is not {what}, or damaged ({words}).") from None


def _check_memory(path: Path) -> None:
    size, free = path.stat().st_size, host_bytes()
    if size > free:
        raise ValueError(f"{path} holds {size / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB of memory are free.")


def _check(file: Any, path: Path, formats: Sequence[str], what: str) -> None:
    metadata = dict(file.metadata() or {})
    written, digest = metadata.get("format", ""), metadata.pop("digest", None)
    family, _, number = formats[-1].rpartition("-")
    if written.rpartition("-")[0] == family and written.rpartition("-")[2].isdecimal():
        if int(written.rpartition("-")[2]) > int(number):
            raise DamagedFileError(f"{path} is of a later version of ProVI ({written}): update ProVI to read it.")
    if written not in formats:
        raise DamagedFileError(f"{path} is not {what}.")
    if written != formats[-1]:
        return
    if digest != _digest(metadata, _Lazily(file)):
        raise DamagedFileError(f"{path} is damaged: its content is not what was written (the digest differs).")


class _Lazily(Mapping):
    """The tensors of an open file, one in memory at a time."""

    def __init__(self, file: Any) -> None:
        self.file, self.names = file, list(file.keys())

    def __getitem__(self, name: str) -> Any:
        return self.file.get_tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def _digest(metadata: Mapping[str, str], tensors: Mapping[str, Any]) -> str:
    """SHA-256 of all texts, and of the names, types, shapes and bytes of all arrays."""
    found = hashlib.sha256(json.dumps(dict(metadata), sort_keys=True).encode())
    for name in sorted(tensors):
        array = tensors[name]
        found.update(json.dumps([name, array.dtype.name, array.shape]).encode())
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)  # as in the file
        found.update(little.tobytes() if little.ndim == 0 or little.size == 0 else little.view("u1").data)
    return found.hexdigest()
