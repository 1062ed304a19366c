"""CIFAR-10's binary archive to arrays, on an archive of twelve images made here."""

import io
import tarfile

import numpy as np
import pytest

from provi.data import convert


def cifar_archive(file, batches):
    with tarfile.open(file, "w:gz") as archive:
        for name, content in batches.items():
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def test_cifar10_format(tmp_path):
    file = tmp_path / "cifar-10-binary.tar.gz"
    images = np.random.default_rng(0).integers(0, 256, (12, 32, 32, 3), np.uint8)
    labels = np.array([3, 9, 0, 1, 2, 4, 5, 6, 7, 8, 9, 0], np.uint8)

    def record(index):  # by hand: the label, then all of red, all of green, all of blue, rows from the top
        pixels = [(row, column) for row in range(32) for column in range(32)]
        planes = [bytes(images[index, row, column, colour] for row, column in pixels) for colour in range(3)]
        return bytes([labels[index]]) + b"".join(planes)

    # Batches are found by name, in whatever order they are packed.
    names = ["test_batch.bin", *(f"data_batch_{number}.bin" for number in (3, 1, 2, 5, 4))]
    batches = {name: record(2 * place) + record(2 * place + 1) for place, name in enumerate(names)}
    cifar_archive(file, {"readme.html": b"<html>"} | batches)
    arrays = convert.cifar10([file])
    order = [4, 5, 6, 7, 2, 3, 10, 11, 8, 9]
    np.testing.assert_array_equal(arrays["X_train"], images[order], strict=True)
    np.testing.assert_array_equal(arrays["y_train"], labels[order], strict=True)
    np.testing.assert_array_equal(arrays["X_test"], images[:2], strict=True)
    np.testing.assert_array_equal(arrays["y_test"], labels[:2], strict=True)
    whole = file.read_bytes()
    for broken in (whole[:-200], b"<html>", b""):
        file.write_bytes(broken)
        with pytest.raises(ValueError, match="^cifar-10-binary.tar.gz cannot be unpacked"):
            convert.cifar10([file])
    for change, message in (
        ({"data_batch_2.bin": record(0)[:-1]}, r"^data_batch_2.bin of cifar-10.* has 3072 bytes"),
        ({"test_batch.bin": b"\x0a" + record(0)[1:]}, r"^test_batch.bin of cifar-10.* has the label 10"),
        ({"test_batch.bin": b""}, r"^test_batch.bin of cifar-10.* has 0 bytes"),
    ):
        cifar_archive(file, batches | change)
        with pytest.raises(ValueError, match=message):
            convert.cifar10([file])
