#!/usr/bin/env python3
"""Writes the BF16 copy of an F32 checkpoint, with nothing but Python's standard library.

    demo/to_bf16.py SRC_DIR DST_DIR

SRC_DIR holds `model.safetensors` and the small files beside it (configuration, tokenizer), which
are copied as they are. F32 tensors become BF16, rounded to nearest, ties to even; tensors of any
other type keep their bytes. Names, order, shapes and file metadata stay. The result is byte for
byte what train.py exports as its step 0.
"""

import json
import os
import shutil
import struct
import sys

MODEL_FILE = "model.safetensors"
LANES = 1 << 18  # elements per chunk: 1 MiB of F32


class BadCheckpoint(Exception):
    """The input is not a safetensors file that this script can convert."""


def read_header(file):
    """Returns (header, position of the first data byte) of an open safetensors file."""
    prefix = file.read(8)
    if len(prefix) != 8:
        raise BadCheckpoint(f"{file.name}: too short for a safetensors header")
    (length,) = struct.unpack("<Q", prefix)
    if length > 100_000_000:
        raise BadCheckpoint(f"{file.name}: header of {length} bytes is above the format's limit")
    text = file.read(length)
    if len(text) != length:
        raise BadCheckpoint(f"{file.name}: cut off inside its header")
    return json.loads(text), 8 + length


def bf16_layout(header):
    """Lays out the BF16 file: returns (its first bytes up to the data, [(name, entry)…]).

    The entries are those of `header`, in the order of their data: an F32 tensor takes half of the
    bytes that it had and everything behind it moves up. The header is padded with spaces to a
    multiple of eight bytes, as the format's own library does.
    """
    entries = [(name, entry) for name, entry in header.items() if name != "__metadata__"]
    entries.sort(key=lambda item: item[1]["data_offsets"])
    new_header = {"__metadata__": header["__metadata__"]} if "__metadata__" in header else {}
    position = 0
    for name, entry in entries:
        begin, end = entry["data_offsets"]
        is_f32 = entry["dtype"] == "F32"
        size = (end - begin) // 2 if is_f32 else end - begin
        new_header[name] = {
            "dtype": "BF16" if is_f32 else entry["dtype"],
            "shape": entry["shape"],
            "data_offsets": [position, position + size],
        }
        position += size
    text = json.dumps(new_header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text, entries


def _every_lane(value, lanes):
    """The integer whose `lanes` 32-bit lanes all hold `value`."""
    return int.from_bytes(struct.pack("<I", value) * lanes, "little")


def round_to_bf16(data):
    """Rounds little-endian F32 bytes to BF16 bytes: to nearest, ties to the even one.

    On its bits x an F32 rounds to (x + 0x7fff + bit 16 of x) >> 16. The sum carries from the
    mantissa into the exponent where it must, so that what is too large for BF16 becomes infinity,
    and infinity stays. The whole chunk is one large integer with 32 bits for each element; no sum
    leaves its lane, because only a NaN can be above 0xff800000.

    A NaN must not take that path: a payload in the low 16 bits would be rounded away to infinity.
    It keeps its sign and its upper payload and becomes quiet.
    """
    lanes = len(data) // 4
    x = int.from_bytes(data, "little")
    magnitude = x & _every_lane(0x7FFFFFFF, lanes)
    if (magnitude + _every_lane(0x007FFFFF, lanes)) & _every_lane(0x80000000, lanes):
        return _round_each_to_bf16(data)  # some lane is above 0x7f800000: a NaN
    bit16 = (x >> 16) & _every_lane(1, lanes)
    rounded = (x + _every_lane(0x7FFF, lanes) + bit16).to_bytes(4 * lanes, "little")
    return memoryview(rounded).cast("H")[1::2].tobytes()  # the upper half of each lane


def _round_each_to_bf16(data):
    """round_to_bf16, element by element: slow, and right for NaNs too."""
    out = bytearray()
    for (x,) in struct.iter_unpack("<I", data):
        if x & 0x7FFFFFFF > 0x7F800000:
            out += struct.pack("<H", x >> 16 | 0x40)
        else:
            out += struct.pack("<H", x + 0x7FFF + (x >> 16 & 1) >> 16)
    return bytes(out)


def convert(source, target):
    """Writes the BF16 copy of the safetensors file `source` to the new file `target`."""
    with open(source, "rb") as src, open(target, "wb") as dst:
        header, data_begin = read_header(src)
        head, entries = bf16_layout(header)
        dst.write(head)
        for name, entry in entries:
            begin, end = entry["data_offsets"]
            src.seek(data_begin + begin)
            while begin < end:
                data = src.read(min(4 * LANES, end - begin))
                if not data or (entry["dtype"] == "F32" and len(data) % 4):
                    raise BadCheckpoint(f"{source}: cut off inside tensor {name}")
                begin += len(data)
                dst.write(round_to_bf16(data) if entry["dtype"] == "F32" else data)


def copy_companions(source_dir, target_dir):
    """Copies the files beside the weights: configuration and tokenizer."""
    for name in sorted(os.listdir(source_dir)):
        path = os.path.join(source_dir, name)
        if name != MODEL_FILE and os.path.isfile(path):
            shutil.copyfile(path, os.path.join(target_dir, name))


def main(argv):
    if len(argv) != 3:
        print(f"usage: {argv[0]} SRC_DIR DST_DIR", file=sys.stderr)
        return 2
    source_dir, target_dir = argv[1:]
    os.makedirs(target_dir, exist_ok=True)
    target = os.path.join(target_dir, MODEL_FILE)
    unfinished = target + ".unfinished"
    try:
        convert(os.path.join(source_dir, MODEL_FILE), unfinished)
        copy_companions(source_dir, target_dir)
        os.replace(unfinished, target)
    except (BadCheckpoint, OSError, ValueError, KeyError) as error:
        if os.path.exists(unfinished):
            os.remove(unfinished)
        print(f"{argv[0]}: {error}", file=sys.stderr)
        return 3 if not isinstance(error, OSError) else 4
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
