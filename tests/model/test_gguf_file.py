"""Opened files: raw and dequantized tensors, shards."""

import os
import struct

import gguf.quants
import numpy as np
import pytest
from gguf import GGUFReader
from gguf.constants import GGMLQuantizationType, GGUFValueType

from minfer.model.errors import ModelFileError
from minfer.model.gguf_file import GGUFFile
from minfer.model.quants import dequantizable_types
from tests.model.tiny_models import gguf_bytes, key, tensor, write_model

V = GGUFValueType
T = GGMLQuantizationType
ORACLES = ["qwen2-k", "llama-legacy", "qwen3-k"]


@pytest.mark.parametrize("name", ORACLES)
def test_reads_what_the_gguf_package_reads(data_dir, name):
    path = data_dir / f"{name}.gguf"
    file = GGUFFile.open(path)
    reference = GGUFReader(path)
    assert [file.tensors[t.name].offset for t in reference.tensors] == [
        t.data_offset for t in reference.tensors
    ]
    assert list(file.tensors) == [t.name for t in reference.tensors]
    for expected in reference.tensors:
        info = file.tensors[expected.name]
        assert (info.type, info.nbytes) == (expected.tensor_type, expected.n_bytes)
        assert info.shape == tuple(reversed(expected.shape.tolist()))
        np.testing.assert_array_equal(file.raw(info.name).ravel(), expected.data.view(np.uint8).ravel())
        values = gguf.quants.dequantize(expected.data, expected.tensor_type).reshape(info.shape)
        np.testing.assert_array_equal(file.dequantized(info.name), values)
    fields = {k: f.contents() for k, f in reference.fields.items() if not k.startswith("GGUF.")}
    assert dict(file.metadata) == fields
    assert file.nbytes == path.stat().st_size
    assert file.paths == [path]


def test_raw_is_a_read_only_view(data_dir):
    file = GGUFFile.open(data_dir / "qwen2-k.gguf")
    raw = file.raw("blk.0.attn_k.weight")
    assert (raw.dtype, raw.shape) == (np.uint8, (128, 144))
    assert not raw.flags.writeable
    assert not raw.flags.owndata
    assert file.raw("blk.0.attn_k.bias").shape == (1, 512)
    assert file.dequantized("blk.0.attn_k.bias").shape == (128,)


@pytest.mark.parametrize("kind", dequantizable_types(), ids=lambda kind: kind.name)
def test_every_type_loads(tmp_path, kind):
    """Three dimensions, so that shapes, rows and bytes are all exercised."""
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    raw = np.random.default_rng(0).integers(0, 256, 2 * 3 * 2 * block_bytes, np.uint8)
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_bytes([], [tensor("t", [2 * block, 3, 2], kind)], raw.tobytes()))
    file = GGUFFile.open(path)
    assert file.raw("t").shape == (6, 2 * block_bytes)
    with np.errstate(all="ignore"):
        expected = gguf.quants.dequantize(raw.reshape(6, -1), kind).reshape(2, 3, 2 * block)
    np.testing.assert_array_equal(file.dequantized("t"), expected)


def test_a_type_that_cannot_be_dequantized_is_named(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_bytes([], [tensor("t", [4], T.I32)], bytes(16)))
    file = GGUFFile.open(path)
    assert file.raw("t").shape == (1, 16)
    with pytest.raises(ModelFileError) as caught:
        file.dequantized("t")
    assert str(caught.value).startswith(
        f"{path}: tensor 't': type I32 cannot be dequantized (supported: F32, "
    )


def test_a_missing_tensor_is_named(data_dir):
    file = GGUFFile.open(data_dir / "qwen2-k.gguf")
    for read in (file.raw, file.dequantized):
        with pytest.raises(ModelFileError, match=r"qwen2-k\.gguf: tensor 'nope' is missing"):
            read("nope")


def test_a_path_that_is_no_readable_file(tmp_path):
    with pytest.raises(ModelFileError, match=r"nope\.gguf: No such file or directory"):
        GGUFFile.open(tmp_path / "nope.gguf")
    with pytest.raises(ModelFileError, match="Is a directory"):
        GGUFFile.open(tmp_path)


def test_the_vocabulary_file_opens_without_tensors(data_dir):
    file = GGUFFile.open(data_dir / "vocab-qwen2.5.gguf")
    assert file.tensors == {}
    assert len(file.metadata["tokenizer.ggml.tokens"]) == 151936
    assert len(file.metadata["tokenizer.ggml.merges"]) == 151387


class TestShards:
    def test_any_shard_opens_the_set(self, tmp_path):
        whole = GGUFFile.open(write_model(tmp_path / "whole.gguf"))
        first = write_model(tmp_path / "m.gguf", shards=3)
        shards = [first.with_name(f"m-0000{n}-of-00003.gguf") for n in (1, 2, 3)]
        for path in shards:
            file = GGUFFile.open(path)
            assert file.paths == shards
            assert {info.shard for info in file.tensors.values()} == {0, 1, 2}
            assert list(file.tensors) == list(whole.tensors)
            for name in whole.tensors:
                np.testing.assert_array_equal(file.raw(name), whole.raw(name))
            assert file.metadata["qwen2.block_count"] == 2
            assert file.nbytes == sum(shard.stat().st_size for shard in shards)

    @pytest.mark.parametrize("lost", [1, 2, 3])
    def test_a_missing_shard_is_named(self, tmp_path, lost):
        first = write_model(tmp_path / "m.gguf", shards=3)
        (tmp_path / f"m-0000{lost}-of-00003.gguf").unlink()
        opened = first if lost > 1 else first.with_name("m-00002-of-00003.gguf")
        with pytest.raises(ModelFileError) as caught:
            GGUFFile.open(opened)
        missing = tmp_path / f"m-0000{lost}-of-00003.gguf"
        expected = f"{missing}: this shard is missing; {opened.name} is one of 3 and needs them all"
        assert str(caught.value) == expected

    def test_a_shard_under_another_name(self, tmp_path):
        first = write_model(tmp_path / "m.gguf", shards=2)
        first.rename(tmp_path / "other.gguf")
        with pytest.raises(
            ModelFileError, match=r"split\.count is 2, so the file's name must end in -0000N-of-00002"
        ):
            GGUFFile.open(tmp_path / "other.gguf")

    def test_shards_in_the_wrong_order(self, tmp_path):
        first = write_model(tmp_path / "m.gguf", shards=2)
        second = first.with_name("m-00002-of-00002.gguf")
        spare = tmp_path / "spare"
        os.rename(first, spare)
        os.rename(second, first)
        os.rename(spare, second)
        with pytest.raises(
            ModelFileError, match=r"m-00001-of-00002\.gguf: split\.no is 1, not 0: it is no part"
        ):
            GGUFFile.open(first)

    def test_a_shard_of_another_set(self, tmp_path):
        def shard(number, count, total, name):
            keys = [key("split.no", V.UINT16, number), key("split.count", V.UINT16, count)]
            keys.append(key("split.tensors.count", V.INT32, total))
            return gguf_bytes(keys, [tensor(name, [4], T.F32)], bytes(16))

        first, second = (tmp_path / f"m-0000{n}-of-00002.gguf" for n in (1, 2))
        first.write_bytes(shard(0, 2, 2, "a"))
        second.write_bytes(shard(1, 3, 2, "b"))
        with pytest.raises(ModelFileError, match=r"m-00002-of-00002\.gguf: split\.count is 3, not 2"):
            GGUFFile.open(first)
        second.write_bytes(shard(1, 2, 2, "a"))
        with pytest.raises(ModelFileError, match=r"tensor 'a' is also in m-00001-of-00002\.gguf"):
            GGUFFile.open(first)
        second.write_bytes(shard(1, 2, 2, "b"))
        assert list(GGUFFile.open(first).tensors) == ["a", "b"]
        first.write_bytes(shard(0, 2, 5, "a"))
        with pytest.raises(
            ModelFileError, match=r"split\.tensors\.count is 5, but the shards hold 2 tensors"
        ):
            GGUFFile.open(first)
        second.write_bytes(second.read_bytes()[:-1])
        with pytest.raises(ModelFileError, match=r"m-00002-of-00002\.gguf: tensor 'b' reaches byte"):
            GGUFFile.open(first)

    @pytest.mark.parametrize("value", [(V.STRING, "2"), (V.FLOAT32, 2.0), (V.INT32, -1), (V.BOOL, 1)])
    def test_a_split_count_that_is_no_whole_number(self, tmp_path, value):
        path = tmp_path / "m.gguf"
        path.write_bytes(gguf_bytes([key("split.count", *value)]))
        with pytest.raises(ModelFileError, match=r"split\.count is .*a shard needs a whole number there"):
            GGUFFile.open(path)

    def test_an_absurd_split_count_fails_at_the_first_missing_shard(self, tmp_path):
        path = tmp_path / "m-00001-of-65535.gguf"
        path.write_bytes(gguf_bytes([key("split.count", V.UINT16, 65535), key("split.no", V.UINT16, 0)]))
        with pytest.raises(ModelFileError, match=r"m-00002-of-65535\.gguf: this shard is missing"):
            GGUFFile.open(path)
        path.write_bytes(gguf_bytes([key("split.count", V.UINT64, 2**64 - 1)]))
        with pytest.raises(ModelFileError, match=r"split\.count is 18446744073709551615"):
            GGUFFile.open(path)


def test_an_empty_array_at_the_very_end_of_the_file(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_bytes([key("a", V.ARRAY, (V.FLOAT32, []))]))
    assert GGUFFile.open(path).metadata["a"] == []
    assert path.read_bytes()[-8:] == struct.pack("<Q", 0)
