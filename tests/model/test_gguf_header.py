"""The header walker: what it reads, and every way in which a header can be wrong."""

import mmap
import struct

import pytest
from gguf.constants import GGMLQuantizationType, GGUFValueType

from minfer.model.errors import ModelFileError
from minfer.model.gguf_file import GGUFFile
from minfer.model.gguf_header import read_header
from tests.model.tiny_models import gguf_bytes, key, string, tensor

V = GGUFValueType
T = GGMLQuantizationType
F32_TENSOR = tensor("t", [4, 2], T.F32)
DATA = bytes(range(32))

EVERY_TYPE = [
    key("u8", V.UINT8, 200),
    key("i8", V.INT8, -3),
    key("u16", V.UINT16, 65535),
    key("i16", V.INT16, -300),
    key("u32", V.UINT32, 2**32 - 1),
    key("i32", V.INT32, -(2**31)),
    key("f32", V.FLOAT32, 0.5),
    key("yes", V.BOOL, 1),
    key("no", V.BOOL, 0),
    key("text", V.STRING, "naïve ☃"),
    key("u64", V.UINT64, 2**64 - 1),
    key("i64", V.INT64, -(2**63)),
    key("f64", V.FLOAT64, 1e300),
    key("strings", V.ARRAY, (V.STRING, ["", "a", "日本"])),
    key("ints", V.ARRAY, (V.INT32, [1, -2, 3])),
    key("floats", V.ARRAY, (V.FLOAT32, [0.25, -1.0])),
    key("bools", V.ARRAY, (V.BOOL, [1, 0])),
    key("empty", V.ARRAY, (V.UINT64, [])),
    key("no strings", V.ARRAY, (V.STRING, [])),
]


def write(tmp_path, raw):
    path = tmp_path / "m.gguf"
    path.write_bytes(raw)
    return path


def failure(tmp_path, raw):
    """The message of the error that opening `raw` gives: one line that names the file."""
    path = write(tmp_path, raw)
    with pytest.raises(ModelFileError) as caught:
        file = GGUFFile.open(path)
        for name in file.metadata:
            file.metadata[name]
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message.removeprefix(f"{path}: ")


def test_every_value_type(tmp_path):
    metadata = GGUFFile.open(write(tmp_path, gguf_bytes(EVERY_TYPE))).metadata
    assert dict(metadata) == {
        "u8": 200,
        "i8": -3,
        "u16": 65535,
        "i16": -300,
        "u32": 2**32 - 1,
        "i32": -(2**31),
        "f32": 0.5,
        "yes": True,
        "no": False,
        "text": "naïve ☃",
        "u64": 2**64 - 1,
        "i64": -(2**63),
        "f64": 1e300,
        "strings": ["", "a", "日本"],
        "ints": [1, -2, 3],
        "floats": [0.25, -1.0],
        "bools": [True, False],
        "empty": [],
        "no strings": [],
    }
    assert metadata["yes"] is True
    assert metadata["strings"] is metadata["strings"]
    assert metadata.type_of("i16") == V.INT16
    assert metadata.array_span("ints").count == 3
    assert metadata.array_span("text") is None
    assert "missing" not in metadata
    assert len(metadata) == 19


def test_arrays_are_not_decoded_before_they_are_asked_for(tmp_path):
    path = write(tmp_path, gguf_bytes([key("bad", V.ARRAY, (V.STRING, [b"\xff"]))]))
    metadata = GGUFFile.open(path).metadata
    assert metadata.array_span("bad").count == 1
    with pytest.raises(ModelFileError, match="'bad', element 0, is not UTF-8"):
        metadata["bad"]


@pytest.mark.parametrize("version", [2, 3])
def test_versions_2_and_3(tmp_path, version):
    file = GGUFFile.open(write(tmp_path, gguf_bytes([], [F32_TENSOR], DATA, version=version)))
    assert file.version == version
    info = file.tensors["t"]
    assert (info.shape, info.nbytes, info.rows, info.row_bytes, info.n_elements) == ((2, 4), 32, 2, 16, 8)
    assert file.raw("t").tobytes() == DATA


def test_alignment_key_moves_the_data(tmp_path):
    raw = gguf_bytes([key("general.alignment", V.UINT32, 64)], [F32_TENSOR], DATA, alignment=64)
    file = GGUFFile.open(write(tmp_path, raw))
    assert file.tensors["t"].offset % 64 == 0
    assert file.raw("t").tobytes() == DATA


def test_every_truncation_is_an_error(tmp_path):
    """Cut anywhere, a header or its tensor data is incomplete, and the message says so."""
    raw = gguf_bytes(EVERY_TYPE, [F32_TENSOR, tensor("u", [4], T.F32, 32)], DATA + bytes(16))
    GGUFFile.open(write(tmp_path, raw))
    for length in range(len(raw)):
        message = failure(tmp_path, raw[:length])
        assert "truncated" in message or "not a GGUF file" in message, (length, message)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "not a GGUF file: it is empty"),
        (b"PK\x03\x04" + bytes(40), r"not a GGUF file: it starts with b'PK\x03\x04', not b'GGUF'"),
        (b"FUGG" + bytes(40), "not a GGUF file: it starts with b'FUGG', not b'GGUF'"),
        (
            b"GGUF" + struct.pack(">IQQ", 3, 0, 0),
            "a big-endian GGUF file; only little-endian files are supported",
        ),
        (gguf_bytes(version=1), "GGUF version 1 is not supported (supported: 2, 3)"),
        (gguf_bytes(version=4), "GGUF version 4 is not supported (supported: 2, 3)"),
        (gguf_bytes(version=0), "GGUF version 0 is not supported (supported: 2, 3)"),
        (gguf_bytes([key("a", V.BOOL, 2)]), "metadata key 'a' is a bool that is neither 0 nor 1 but 2"),
        (
            gguf_bytes([key("a", V.ARRAY, (V.BOOL, [0, 7]))]),
            "metadata key 'a' holds a bool that is neither 0 nor 1",
        ),
        (gguf_bytes([key("a", V.UINT8, 1)] * 2), "metadata key 'a' appears twice"),
        (
            gguf_bytes([key(b"\xc3\x28", V.UINT8, 1)]),
            "metadata key 0 of 1 is not UTF-8 (invalid continuation byte)",
        ),
        (gguf_bytes([key("a", V.STRING, b"\xff")]), "metadata key 'a' is not UTF-8 (invalid start byte)"),
        (
            gguf_bytes([string("a") + struct.pack("<IB", 13, 0)]),
            "metadata key 'a' has the unknown value type 13 (supported: 0 to 12)",
        ),
        (
            gguf_bytes([key("a", V.ARRAY, (V.ARRAY, [(V.UINT8, [1])]))]),
            "metadata key 'a' is an array of arrays, which is not supported",
        ),
        (
            gguf_bytes([key("k" * 65536, V.UINT8, 1)]),
            "metadata key 0 of 1 is 65,536 bytes long, over the limit of 65,535",
        ),
        (gguf_bytes([], [F32_TENSOR] * 2, DATA), "tensor 't' appears twice"),
        (
            gguf_bytes([], [tensor("n" * 65, [4], T.F32)], DATA),
            "a tensor's name is 65 bytes long, over the limit of 64",
        ),
        (gguf_bytes([], [tensor("t", [], T.F32)], DATA), "tensor 't' has 0 dimensions (supported: 1 to 4)"),
        (
            gguf_bytes([], [tensor("t", [1] * 5, T.F32)], DATA),
            "tensor 't' has 5 dimensions (supported: 1 to 4)",
        ),
        (gguf_bytes([], [tensor("t", [4, 0], T.F32)], DATA), "tensor 't' is empty: its shape is (0, 4)"),
        (
            gguf_bytes([], [tensor("t", [48], T.Q8_0)], DATA),
            "tensor 't' has rows of 48, not a multiple of Q8_0's block of 32",
        ),
        (
            gguf_bytes([], [tensor("t", [4], T.F32, offset=8)], DATA),
            "tensor 't' has offset 8, not a multiple of the alignment 32",
        ),
        (
            gguf_bytes([], [F32_TENSOR, tensor("u", [4], T.F32)], DATA),
            "tensors 't' and 'u' overlap in the file",
        ),
        (
            gguf_bytes([key("general.alignment", V.UINT32, 48)], [F32_TENSOR], DATA),
            "general.alignment is 48; it must be a u32 power of two of at least 8",
        ),
        (
            gguf_bytes([key("general.alignment", V.UINT32, 0)], [F32_TENSOR], DATA),
            "general.alignment is 0; it must be a u32 power of two of at least 8",
        ),
        (
            gguf_bytes([key("general.alignment", V.STRING, "32")], [F32_TENSOR], DATA),
            "general.alignment is '32'; it must be a u32 power of two of at least 8",
        ),
    ],
)
def test_a_bad_header_is_one_clear_line(tmp_path, raw, message):
    assert failure(tmp_path, raw) == message


@pytest.mark.parametrize("kind", [4, 5, 31, 33, 36, 999, 2**32 - 1])
def test_an_unknown_tensor_type_lists_the_known_ones(tmp_path, kind):
    message = failure(tmp_path, gguf_bytes([], [tensor("t", [4], kind)], DATA))
    assert message.startswith(f"tensor 't' has the unknown type {kind} (supported: F32, F16, Q4_0, ")
    assert "Q6_K" in message


@pytest.mark.parametrize("offset", [32, 2**40, 2**64 - 32])
def test_a_tensor_past_the_end_is_an_error(tmp_path, offset):
    message = failure(tmp_path, gguf_bytes([], [tensor("t", [4, 2], T.F32, offset)], DATA))
    assert message.startswith("tensor 't' reaches byte ")
    assert "past the end of the file at 128: it is truncated" in message


def test_sizes_whose_product_overflows_64_bits(tmp_path):
    raw = gguf_bytes([], [tensor("t", [2**62, 2**62, 2**62, 2**62], T.F32)], DATA)
    assert "past the end of the file" in failure(tmp_path, raw)


@pytest.mark.parametrize("count", [3, 2**20, 2**63, 2**64 - 1])
def test_counts_that_the_file_cannot_hold(tmp_path, count):
    assert "tensor count is" in failure(tmp_path, gguf_bytes(n_tensors=count))
    assert "metadata key count is" in failure(tmp_path, gguf_bytes(n_keys=count))
    for kind in (V.STRING, V.UINT8, V.FLOAT64):
        array = string("a") + struct.pack("<IIQ", V.ARRAY, kind, count)
        assert "metadata key 'a', array count is" in failure(tmp_path, gguf_bytes([array]))
    long = string("a") + struct.pack("<IQ", V.STRING, count)
    assert "metadata key 'a', a string of" in failure(tmp_path, gguf_bytes([long]))
    element = string("a") + struct.pack("<IIQQ", V.ARRAY, V.STRING, 1, count)
    assert "inside metadata key 'a', its last element" in failure(tmp_path, gguf_bytes([element]))


def test_a_key_that_the_file_cannot_hold(tmp_path):
    message = failure(tmp_path, gguf_bytes([struct.pack("<Q", 2**63) + bytes(8)]))
    assert "inside metadata key 0 of 1, a string of 9,223,372,036,854,775,808 bytes" in message


def test_read_header_of_a_map(tmp_path):
    path = write(tmp_path, gguf_bytes([key("a", V.UINT8, 1)], [F32_TENSOR], DATA))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as buffer:
        header = read_header("name", buffer, shard=3)
        assert header.tensors["t"].shard == 3
        assert header.data_start == header.tensors["t"].offset
