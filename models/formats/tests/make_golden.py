"""Makes the files in tests/golden with the Python package `gguf`.

    pip install gguf==0.19.0 numpy && python make_golden.py

decode.safetensors  for each format NAME: `NAME.blocks` (random bytes; the 16-bit scales of some
                    blocks are infinite, NaN, subnormal or negative zero) and `NAME.bits` (the bits
                    of the f32 numbers that `gguf.quants.dequantize` makes of them)
types.txt           name, id, elements a block, bytes a block of every type that the package knows
"""

import json
import struct
from pathlib import Path

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType as Type
from gguf.quants import dequantize

GOLDEN = Path(__file__).parent / "golden"

# Byte offsets of the 16-bit scales inside a block.
SCALES = {
    Type.F32: [],
    Type.F16: [0],
    Type.BF16: [0],
    Type.Q4_0: [0],
    Type.Q4_1: [0, 2],
    Type.Q5_0: [0],
    Type.Q5_1: [0, 2],
    Type.Q8_0: [0],
    Type.Q4_K: [0, 2],
    Type.Q5_K: [0, 2],
    Type.Q6_K: [208],
    Type.IQ4_NL: [0],
}
SPECIAL = [0x7C00, 0xFC00, 0x7E01, 0x7C01, 0x0001, 0x83FF, 0x8000, 0x0000, 0x7BFF]
ELEMENTS = 1536


def blocks_of(rng, ty):
    elements, size = GGML_QUANT_SIZES[ty]
    count = ELEMENTS // elements
    blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
    for i, at in enumerate(SCALES[ty]):
        # The second half of the blocks stays as it is: any bits at all.
        for block in range(count // 2):
            bits = SPECIAL[(block + 3 * i) % len(SPECIAL)] if block % 2 else rng.integers(0x2000, 0x3C00)
            blocks[block, at : at + 2] = list(struct.pack("<H", int(bits)))
    return blocks


def write_safetensors(path, tensors):
    header, data = {}, b""
    for name, (dtype, array) in tensors.items():
        raw = array.tobytes()
        header[name] = {"dtype": dtype, "shape": [array.size], "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header, separators=(",", ":")).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def main():
    rng = np.random.default_rng(20240607)
    tensors = {}
    with np.errstate(all="ignore"):
        for ty in SCALES:
            blocks = blocks_of(rng, ty)
            numbers = dequantize(blocks.reshape(1, -1), ty).astype(np.float32).reshape(-1)
            assert numbers.size == ELEMENTS
            tensors[f"{ty.name}.blocks"] = ("U8", blocks)
            tensors[f"{ty.name}.bits"] = ("U32", numbers.view(np.uint32))
    GOLDEN.mkdir(exist_ok=True)
    write_safetensors(GOLDEN / "decode.safetensors", tensors)
    lines = [f"{ty.name} {ty.value} {e} {b}" for ty, (e, b) in GGML_QUANT_SIZES.items()]
    (GOLDEN / "types.txt").write_text("\n".join(lines) + "\n")


main()
