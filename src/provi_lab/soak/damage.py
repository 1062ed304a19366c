"""Ways in which a file of tensors is damaged, forged or exchanged: bytes in, other bytes out."""

import json
import struct
from collections.abc import Callable

import numpy as np

Damage = Callable[[np.random.Generator, bytes, bytes], bytes]
"""Of random numbers, the file's bytes and those of another good file of its kind."""


def one_bit(rng: np.random.Generator, content: bytes, other: bytes) -> bytes:
    """A bit flips, anywhere."""
    return _flipped(content, [int(rng.integers(8 * len(content)))])


def one_bit_of_numbers(rng: np.random.Generator, content: bytes, other: bytes) -> bytes:
    """A bit flips in the tensors, where safetensors itself sees nothing."""
    start = _start(content)
    return _flipped(content, [8 * start + int(rng.integers(8 * (len(content) - start)))])


def some_bits(rng: np.random.Generator, content: bytes, other: bytes) -> bytes:
    """Up to twenty bits flip."""
    return _flipped(content, rng.integers(8 * len(content), size=int(rng.integers(2, 21))).tolist())


def cut(rng: np.random.Generator, content: bytes, other: bytes) -> bytes:
    """The end is missing."""
    return content[: int(rng.integers(len(content)))]


def grown(rng: np.random.Generator, content: bytes, other: bytes) -> bytes:
    """There is something behind the end, or in front of the beginning."""
    more = rng.bytes(int(rng.integers(1, 200)))
    return content + more if rng.random() < 0.5 else more + content


def zeros(rng: np.random.Generator, content: bytes, other: bytes) -> bytes:
    """A block of zeros, as a disk leaves it that has lost its power."""
    begin, size = int(rng.integers(len(content))), 2 ** int(rng.integers(3, 12))
    return content[:begin] + bytes(len(content[begin : begin + size])) + content[begin + size :]


def spliced(rng: np.random.Generator, content: bytes, other: bytes) -> bytes:
    """The beginning of one file, the end of another."""
    place = int(rng.integers(1, min(len(content), len(other))))
    return content[:place] + other[place:]


def other_numbers(rng: np.random.Generator, content: bytes, other: bytes) -> bytes:
    """The texts of one file, the tensors of another."""
    return content[: _start(content)] + other[_start(other) :]


def length_lies(rng: np.random.Generator, content: bytes, other: bytes) -> bytes:
    """The first eight bytes, which say how long the header is."""
    lies = (0, 1, _start(content) - 9, len(content), 2**31, 2**62, 2**63 - 1, 2**64 - 1, int(rng.integers(2**40)))
    return struct.pack("<Q", lies[int(rng.integers(len(lies)))]) + content[8:]


def size_lies(rng: np.random.Generator, content: bytes, other: bytes) -> bytes:
    """A tensor of another size, type or place than it has: as large as 2^60 bytes."""
    header = json.loads(content[8 : _start(content)])
    name = str(rng.choice([name for name in header if name != "__metadata__"]))
    entry, way = header[name], int(rng.integers(5))
    if way == 0:
        entry["shape"] = [2**40, 2**20] if rng.random() < 0.5 else [*entry["shape"], 2]
    elif way == 1:
        entry["data_offsets"] = [entry["data_offsets"][0], entry["data_offsets"][1] + 2 ** int(rng.integers(3, 60))]
    elif way == 2:
        entry["dtype"] = str(rng.choice(["F32", "I64", "BOOL", "F16", "U8", "F64", "C64"]))
    elif way == 3:
        entry["shape"], entry["data_offsets"] = [2**36], [0, 2**39]
    else:
        del header[name]
    return _with_header(header, content)


def text_lies(rng: np.random.Generator, content: bytes, other: bytes) -> bytes:
    """A digit of the texts is another: of a certificate, a setting, an identity, the format."""
    header = json.loads(content[8 : _start(content)])
    texts = header["__metadata__"]
    name = str(rng.choice(sorted(texts)))
    digits = [k for k, letter in enumerate(texts[name]) if letter.isdigit()]
    if not digits:
        return one_bit(rng, content, other)
    place = digits[int(rng.integers(len(digits)))]
    new = (int(texts[name][place]) + int(rng.integers(1, 10))) % 10
    texts[name] = f"{texts[name][:place]}{new}{texts[name][place + 1 :]}"
    return _with_header(header, content)


def exchanged_numbers(rng: np.random.Generator, content: bytes, other: bytes) -> bytes:
    """Two tensors have exchanged their places."""
    header = json.loads(content[8 : _start(content)])
    names = sorted(name for name in header if name != "__metadata__")
    first, second = (str(name) for name in rng.choice(names, 2, replace=False))
    header[first], header[second] = header[second], header[first]
    return _with_header(header, content)


def nonsense(rng: np.random.Generator, content: bytes, other: bytes) -> bytes:
    """Not a file of tensors at all."""
    deep = b"[" * 50_000
    texts = (b"", b"{}", b"\x00" * 64, rng.bytes(300), b"PK\x03\x04" + rng.bytes(100), b"not a fit\n")
    texts += (struct.pack("<Q", len(deep)) + deep, struct.pack("<Q", 2) + b"{}")
    return texts[int(rng.integers(len(texts)))]


DAMAGES: dict[str, Damage] = {
    made.__name__.replace("_", " "): made
    for made in (
        one_bit,
        one_bit_of_numbers,
        some_bits,
        cut,
        grown,
        zeros,
        spliced,
        other_numbers,
        length_lies,
        size_lies,
        text_lies,
        exchanged_numbers,
        nonsense,
    )
}


def _start(content: bytes) -> int:
    """Where the tensors begin."""
    return 8 + struct.unpack("<Q", content[:8])[0]


def _with_header(header: dict, content: bytes) -> bytes:
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + content[_start(content) :]


def _flipped(content: bytes, bits: list[int]) -> bytes:
    found = bytearray(content)
    for bit in bits:
        found[bit // 8] ^= 1 << (bit % 8)
    return bytes(found)
