"""Writes a GGUF file of 16-bit floats from one of Q4_1, Q8_0 and floats: the same model a second time.

Tokenizer, template and all other metadata are copied as they are; no weight changes but for its rounding.
"""

import struct
from pathlib import Path
from typing import BinaryIO, Final

import numpy

F32, F16, Q4_1, Q8_0 = 0, 1, 3, 8
BLOCK: Final = 32
ALIGNMENT: Final = 32
BYTES: Final = {F32: 4 * BLOCK, Q4_1: 4 + BLOCK // 2, Q8_0: 2 + BLOCK}  #: of a block
WIDTHS: Final = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  #: of metadata's types
STRING, ARRAY = 8, 9


def write_half_precision(source: Path, into: Path) -> None:
    with source.open("rb") as file:
        magic, version, tensors, pairs = struct.unpack("<4sIQQ", file.read(24))
        assert magic == b"GGUF"
        begin = file.tell()
        for _ in range(pairs):
            _skip_string(file)
            _skip_value(file, *struct.unpack("<I", file.read(4)))
        end = file.tell()
        infos = [_read_info(file) for _ in range(tensors)]
        data = -(-file.tell() // ALIGNMENT) * ALIGNMENT
        file.seek(begin)
        head = struct.pack("<4sIQQ", magic, version, tensors, pairs) + file.read(end - begin)
        bodies, offset = [], 0
        for name, shape, kind, at in infos:
            count = int(numpy.prod(shape))
            file.seek(data + at)
            raw = numpy.frombuffer(
                file.read(-(-count // BLOCK) * BYTES[kind])[: _size(kind, count)], numpy.uint8
            )
            new = F32 if kind == F32 else F16
            body = raw.tobytes() if kind == F32 else _dequantize(raw, kind).astype("<f2").tobytes()
            head += struct.pack("<Q", len(name)) + name + struct.pack("<I", len(shape))
            head += struct.pack(f"<{len(shape)}QIQ", *shape, new, offset)
            padding = -len(body) % ALIGNMENT
            bodies.append(body + b"\0" * padding)
            offset += len(body) + padding
    with into.open("wb") as out:
        out.write(head + b"\0" * (-len(head) % ALIGNMENT))
        out.writelines(bodies)


def _size(kind: int, count: int) -> int:
    return 4 * count if kind == F32 else count // BLOCK * BYTES[kind]


def _dequantize(raw: "numpy.ndarray", kind: int) -> "numpy.ndarray":
    blocks = raw.reshape(-1, BYTES[kind])
    scale = blocks[:, :2].copy().view("<f2").astype(numpy.float32)
    if kind == Q8_0:
        return scale * blocks[:, 2:].copy().view(numpy.int8)
    least, pairs = blocks[:, 2:4].copy().view("<f2").astype(numpy.float32), blocks[:, 4:]
    return scale * numpy.concatenate((pairs & 0xF, pairs >> 4), axis=1) + least


def _read_info(file: BinaryIO) -> tuple[bytes, tuple[int, ...], int, int]:
    (length,) = struct.unpack("<Q", file.read(8))
    name = file.read(length)
    (rank,) = struct.unpack("<I", file.read(4))
    shape = struct.unpack(f"<{rank}Q", file.read(8 * rank))
    kind, at = struct.unpack("<IQ", file.read(12))
    return name, shape, kind, at


def _skip_string(file: BinaryIO) -> None:
    (length,) = struct.unpack("<Q", file.read(8))
    file.seek(length, 1)


def _skip_value(file: BinaryIO, kind: int) -> None:
    if kind == STRING:
        _skip_string(file)
    elif kind == ARRAY:
        inner, count = struct.unpack("<IQ", file.read(12))
        if inner in WIDTHS:
            file.seek(WIDTHS[inner] * count, 1)
            return
        for _ in range(count):
            _skip_value(file, inner)
    else:
        file.seek(WIDTHS[kind], 1)
