"""Damaged files: whatever is done to a valid file, it loads or it is a ModelFileError, in bounded memory."""

import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minfer.model.errors import ModelFileError
from minfer.model.model import Model
from minfer.model.quants import can_dequantize
from minfer.model.rope import frequencies
from minfer.model.summary import summarize
from tests.model.tiny_models import write_model

MEMORY_BOUND = 32 << 20  # bytes; the file has 130 kB
INTERESTING = [0, 1, 2, 3, 7, 31, 32, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**63, 2**64 - 1]

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def valid(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mutations")
    settings = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 2.0,
        "rope.scaling.original_context_length": 16,
    }
    tensors = {"rope_freqs.weight": np.ones(4, np.float32)}
    return write_model(folder / "valid.gguf", settings=settings, tensors=tensors).read_bytes()


@pytest.fixture(scope="module")
def tensors(valid, tmp_path_factory):
    path = tmp_path_factory.mktemp("whole") / "m.gguf"
    path.write_bytes(valid)
    return Model.load(path).file.tensors.values()


@pytest.fixture(scope="module")
def data_start(tensors):
    return min(info.offset for info in tensors)


@pytest.fixture(scope="module")
def data_end(tensors):
    """Where the last tensor ends; only padding comes after it."""
    return max(info.offset + info.nbytes for info in tensors)


def use_all(path):
    """Load a model and touch everything that its file defines."""
    model = Model.load(path)
    for name, info in model.file.tensors.items():
        assert model.file.raw(name).nbytes == info.nbytes
        assert can_dequantize(info.type)
        assert model.file.dequantized(name).shape == info.shape
    inv_freq, scale = frequencies(model.config, model.rope_freqs)
    assert np.isfinite(inv_freq).all()
    assert np.isfinite(scale)
    for index in range(model.config.n_layers):
        model.layer(index)
    for key in model.file.metadata:
        assert model.file.metadata[key] is not None
    assert model.chat_template is None or isinstance(model.chat_template, str)
    ids = model.tokenizer.encode("hello, world")
    assert all(0 <= token < model.config.vocab_size for token in ids)
    assert summarize(model.file).config == model.config


def check(path, raw):
    """True when the file loads; a ModelFileError of one line is the only other way out."""
    path.write_bytes(raw)
    tracemalloc.start()
    try:
        use_all(path)
        return True
    except ModelFileError as error:
        assert "\n" not in str(error)
        assert str(error).startswith(f"{path}: ")
        return False
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < MEMORY_BOUND


position = st.floats(0, 1, exclude_max=True)  # a share of the header, so that examples shrink well
edit = st.one_of(
    st.tuples(st.just("byte"), position, st.integers(0, 255)),
    st.tuples(st.just("u32"), position, st.sampled_from([value % 2**32 for value in INTERESTING])),
    st.tuples(st.just("u64"), position, st.sampled_from(INTERESTING)),
    st.tuples(st.just("add"), position, st.integers(-3, 3)),
    st.tuples(st.just("delete"), position, st.integers(1, 64)),
    st.tuples(st.just("insert"), position, st.integers(1, 64)),
    st.tuples(st.just("copy"), position, position),
)


def mutate(raw, header, edits):
    raw = bytearray(raw)
    for kind, share, value in edits:
        at = int(share * header)
        if kind == "byte":
            raw[at] = value
        elif kind == "u32":
            raw[at : at + 4] = struct.pack("<I", value)
        elif kind == "u64":
            raw[at : at + 8] = struct.pack("<Q", value)
        elif kind == "add":
            raw[at] = (raw[at] + value) % 256
        elif kind == "delete":
            del raw[at : at + value]
        elif kind == "insert":
            raw[at:at] = bytes(value)
        else:
            source = int(value * header)
            raw[at : at + 16] = raw[source : source + 16]
    return bytes(raw)


def test_the_valid_file_loads(tmp_path, valid):
    assert check(tmp_path / "m.gguf", valid)


@settings(max_examples=300)
@given(edits=st.lists(edit, min_size=1, max_size=4))
def test_edits_of_the_header(tmp_path, valid, data_start, edits):
    check(tmp_path / "m.gguf", mutate(valid, data_start, edits))


@settings(max_examples=60)
@given(share=position, edits=st.lists(edit, max_size=2))
def test_truncations(tmp_path, valid, data_start, data_end, share, edits):
    raw = mutate(valid, data_start, edits)
    size = min(int(share * data_end), data_end - 1)  # a share just below 1 rounds to the whole
    assert not check(tmp_path / "m.gguf", raw[:size]) or edits


@settings(max_examples=40)
@given(noise=st.binary(max_size=400), keep=st.integers(0, 64))
def test_noise_after_a_valid_start(tmp_path, valid, noise, keep):
    assert not check(tmp_path / "m.gguf", valid[:keep] + noise)


def test_every_byte_of_the_first_records_set_to_extremes(tmp_path, valid):
    """Exhaustive where most of the structure is: counts, lengths and types of the first keys."""
    for at in range(0, 700, 3):
        for value in (0, 0x7F, 0xFF):
            if valid[at] != value:
                check(tmp_path / "m.gguf", valid[:at] + bytes([value]) + valid[at + 1 :])
