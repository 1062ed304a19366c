"""Files are replaced whole or not at all, and what was not written by us, or is damaged, is refused by name."""

import errno
import os
import stat
import threading
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from provi.core import files
from provi.core.files import (
    DamagedFileError,
    opened_tensors,
    remove_drafts,
    replacing,
    sole_use,
    try_writing,
    write_tensors,
    write_text,
)

FORMATS = ("test-1", "test-2")
TENSORS = {
    "a": np.arange(6.0).reshape(2, 3),
    "b": np.asarray(7),
    "c": np.zeros((0, 2)),
    "d": np.arange(3).astype(">i4"),
}
METADATA = {"format": "test-2", "words": "é and ü"}


def full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_leaves_the_old_version_and_says_which_file(tmp_path, monkeypatch):
    path = write_text(tmp_path / "page.html", "old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"cannot be written \(No space left on device\).*page\.html") as caught:
        write_text(path, "new")
    assert caught.value.errno == errno.ENOSPC
    with pytest.raises(OSError, match="tensors"):
        write_tensors(tmp_path / "tensors", TENSORS, METADATA)
    with pytest.raises(OSError, match="No space left"):
        try_writing(tmp_path / "other")
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["page.html"]


def test_an_error_while_writing_leaves_the_old_version(tmp_path):
    path = write_text(tmp_path / "page.html", "old")
    with pytest.raises(ZeroDivisionError), replacing(path) as draft:
        draft.write_text("half of the n")
        raise ZeroDivisionError
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["page.html"]


def test_folders_are_made_and_those_that_cannot_be_are_named(tmp_path):
    path = write_text(tmp_path / "a" / "b" / "page.html", "new\n")
    assert path.read_bytes() == b"new\n"
    for write in (try_writing, lambda path: write_text(path, "")):
        with pytest.raises(OSError, match="page"):
            write(path / "page")  # within a file
        with pytest.raises(IsADirectoryError, match="b'"):
            write(path.parent)


def test_links_permissions_and_devices_stay(tmp_path):
    path, link = tmp_path / "real.txt", tmp_path / "link.txt"
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to(path)
    write_text(link, "new")
    assert link.is_symlink() and path.read_text() == "new" and stat.S_IMODE(path.stat().st_mode) == 0o640
    fresh, plain = tmp_path / "fresh", tmp_path / "plain"
    write_tensors(fresh, TENSORS, METADATA)
    plain.touch()
    assert fresh.stat().st_mode == plain.stat().st_mode
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    try_writing(pipe)
    with replacing(pipe) as draft:
        assert draft == pipe
    assert pipe.is_fifo()


def test_many_writers_of_one_path_lose_nothing(tmp_path):
    """With one name for all drafts, as before, half of them failed."""
    path, failed = tmp_path / "file", []

    def write(number):
        try:
            for _ in range(10):
                write_text(path, f"{number}" * 1000)
        except OSError as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed and os.listdir(tmp_path) == ["file"]
    assert len(set(path.read_text())) == 1 and len(path.read_text()) == 1000


def test_what_a_killed_process_leaves_is_removed(tmp_path):
    path = tmp_path / "run [1].ckpt"
    draft, _ = files._new_draft(path)
    other, _ = files._new_draft(tmp_path / "run 1.ckpt")
    remove_drafts(path)
    assert not draft.exists() and other.exists()


def test_the_old_version_is_kept_where_it_is_wanted(tmp_path, monkeypatch):
    path, kept = tmp_path / "file", tmp_path / "kept"
    for number, link in enumerate((os.link, os.link, full)):  # the last on a disk without links
        monkeypatch.setattr(os, "link", link)
        with replacing(path, kept) as draft:
            draft.write_text(str(number))
        assert kept.exists() == (number > 0)
        assert number == 0 or kept.read_text() == str(number - 1)
    assert sorted(os.listdir(tmp_path)) == ["file", "kept"]


def test_a_path_in_use_is_refused(tmp_path):
    path = tmp_path / "run.ckpt"
    with sole_use(path, "checkpoint"):
        with pytest.raises(ValueError, match=r"checkpoint=.*run\.ckpt is in use by another run"):
            with sole_use(path, "checkpoint"):
                pass
        with sole_use(tmp_path / "other.ckpt", "checkpoint"):
            pass
    with sole_use(path, "checkpoint"):
        pass
    assert os.listdir(tmp_path) == []


def test_where_no_lock_can_be_made_nobody_is_refused(tmp_path, monkeypatch):
    """A disk that fills up between the trial of the path and the lock costs no run."""
    monkeypatch.setattr(os, "open", full)
    with sole_use(tmp_path / "run.ckpt", "checkpoint"):
        pass
    assert os.listdir(tmp_path) == []


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("written") / "file"
    write_tensors(path, TENSORS, METADATA)
    return path


def read(path, formats=FORMATS):
    with opened_tensors(path, formats, "a test file") as file:
        return file.metadata(), {name: file.get_tensor(name) for name in file.keys()}


def test_tensors_are_read_back(written):
    metadata, tensors = read(written)
    assert {name: metadata[name] for name in METADATA} == METADATA and set(tensors) == set(TENSORS)
    for name, array in TENSORS.items():
        np.testing.assert_array_equal(tensors[name], array)


def test_damaged_bits_are_found(written, tmp_path):
    """One bit at a time, in the length, the header, the padding, the digest and the numbers; and files cut short."""
    content, path = bytearray(written.read_bytes()), tmp_path / "file"
    for place in (*range(8), *range(8, len(content), 3)):
        content[place] ^= 1 << place % 8
        path.write_bytes(content)
        content[place] ^= 1 << place % 8
        with pytest.raises(DamagedFileError, match=str(path)):
            read(path)
    for length in range(0, len(content), 30):
        path.write_bytes(content[:length])
        with pytest.raises(DamagedFileError, match=str(path)):
            read(path)
    path.write_bytes(content)
    read(path)


CHANGES = {
    "dtype": {"a": TENSORS["a"].view(np.int64)},
    "shape": {"a": TENSORS["a"].reshape(3, 2)},
    "name": {"e": TENSORS["a"]},
    "number": {"a": TENSORS["a"] + 1},
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_digest_covers_types_shapes_and_names(written, tmp_path, change):
    metadata, path = read(written)[0], tmp_path / "changed"
    save_file(load_file(written) | CHANGES[change], path, metadata=metadata)
    with pytest.raises(DamagedFileError, match=r"changed is damaged: its content is not what was written"):
        read(path)


def test_other_files_are_refused_by_name(written, tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        read(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", Path(os.devnull)):
        with pytest.raises(DamagedFileError, match=f"{path} is not a test file, but a folder or a device"):
            read(path)
    with pytest.raises(DamagedFileError, match=r"of a later version of ProVI \(test-2\): update"):
        read(written, ("test-1",))
    with pytest.raises(DamagedFileError, match="file is not a test file"):
        read(written, ("other-1",))
    with pytest.raises(DamagedFileError, match=r"not a test file, or damaged \(KeyError: 'absent'\)"):
        with opened_tensors(written, FORMATS, "a test file") as file:
            file.metadata()["absent"]
    monkeypatch.setattr("provi.core.files.host_bytes", lambda: 100)
    with pytest.raises(ValueError, match="file holds .* GiB, and .* of memory are free"):
        read(written)
