"""Synthetic models: shapes, types, scales, determinism, and failures that leave nothing behind."""

import hashlib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from gguf import TokenType
from gguf.constants import GGMLQuantizationType

from minfer.model import synth as synth_module
from minfer.model.errors import ModelFileError
from minfer.model.model import Model
from minfer.model.quants import FORMATS, dequantize
from minfer.model.synth import PRESETS, q4_k_m_type, synth
from minfer.model.synth_blocks import CHUNK_BLOCKS, random_blocks
from minfer.model.synth_vocabulary import toy_vocabulary

T = GGMLQuantizationType
COMMITTED = Path(__file__).parents[2] / "data" / "qwen2-tiny.gguf"


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return synth("qwen2-tiny", tmp_path_factory.mktemp("synth") / "tiny.gguf", progress=False)


def test_the_committed_tiny_model_is_seed_0(tiny):
    assert digest(COMMITTED) == digest(tiny)
    assert COMMITTED.stat().st_size < 2e6


def test_seeds_differ_and_repeat(tmp_path, tiny):
    one = synth("qwen2-tiny", tmp_path / "1.gguf", seed=1, progress=False)
    again = synth("qwen2-tiny", tmp_path / "again.gguf", seed=1, progress=False)
    assert digest(one) == digest(again) != digest(tiny)


def test_the_tiny_model(tiny):
    model = Model.load(tiny)
    config = model.config
    assert (config.hidden, config.n_layers, config.n_heads, config.n_kv_heads, config.head_dim) == (
        256,
        2,
        2,
        1,
        128,
    )
    assert not config.tied_output
    assert config.has_qkv_bias
    types = Counter(info.type for info in model.file.tensors.values() if len(info.shape) == 2)
    assert types == {T.Q4_K: 13, T.Q6_K: 3}
    for name, info in model.file.tensors.items():
        values = model.file.dequantized(name)
        if len(info.shape) == 2:
            assert values.std() == pytest.approx(info.shape[1] ** -0.5, rel=0.06)
            assert abs(values.mean()) < 0.05 * values.std()
            assert np.abs(values).max() < 5 * values.std()
        elif name == "output_norm.weight":
            assert values.mean() == pytest.approx(2.5, rel=0.02)
        else:
            assert values.mean() == pytest.approx(float("norm" in name), abs=0.03)


@pytest.mark.parametrize(
    "text", ["Hello, world", "the thing", "naïve 日本語 🙂", "\x00\xff\n\t", "<|im_start|>user\nhi<|im_end|>"]
)
def test_any_text_round_trips(tiny, text):
    tokenizer = Model.load(tiny).tokenizer
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert len(ids) <= len(text.encode())


def test_the_chat_template_renders(tiny):
    from minfer.model.chat import ChatTemplate

    model = Model.load(tiny)
    text = ChatTemplate.for_tokenizer(model.chat_template, model.tokenizer).render(
        [{"role": "user", "content": "hi"}], add_generation_prompt=True
    )
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert model.tokenizer.encode(text)[0] == 510


class TestTypes:
    """llama.cpp's Q4_K_M recipe."""

    def test_7b(self):
        q6 = {0, 1, 2, 5, 8, 11, 14, 17, 20, 23, 24, 25, 26, 27}
        for layer in range(28):
            expected = T.Q6_K if layer in q6 else T.Q4_K
            assert q4_k_m_type("attn_v", layer, 28, 3584, tied_output=False) == expected
            assert q4_k_m_type("ffn_down", layer, 28, 18944, tied_output=False) == expected
            assert q4_k_m_type("attn_q", layer, 28, 3584, tied_output=False) == T.Q4_K
        assert q4_k_m_type("output", 0, 28, 3584, tied_output=False) == T.Q6_K
        assert q4_k_m_type("token_embd", 0, 28, 3584, tied_output=False) == T.Q4_K

    def test_tied(self):
        assert q4_k_m_type("token_embd", 0, 28, 1536, tied_output=True) == T.Q6_K
        assert q4_k_m_type("token_embd", 0, 24, 896, tied_output=True) == T.Q8_0

    def test_fallbacks(self):
        assert q4_k_m_type("attn_q", 0, 24, 896, tied_output=True) == T.Q5_0
        assert q4_k_m_type("attn_v", 0, 24, 896, tied_output=True) == T.Q8_0
        assert q4_k_m_type("ffn_down", 0, 24, 4864, tied_output=True) == T.Q6_K
        assert q4_k_m_type("ffn_down", 3, 24, 4864, tied_output=True) == T.Q4_K

    @pytest.mark.parametrize(
        ("preset", "n_weights", "nbytes", "types"),
        [
            (
                "qwen2.5-0.5b",
                494_032_768,
                391_859_712,
                {T.Q5_0: 132, T.Q8_0: 13, T.Q4_K: 12, T.Q6_K: 12, T.F32: 121},
            ),
            ("qwen2.5-1.5b", 1_543_714_304, 980_097_536, {T.Q4_K: 168, T.Q6_K: 29, T.F32: 141}),
            ("qwen2.5-7b", 7_615_616_512, 4_677_120_000, {T.Q4_K: 169, T.Q6_K: 29, T.F32: 141}),
        ],
    )
    def test_presets_have_the_published_size(self, preset, n_weights, nbytes, types):
        """The weights and bytes that llama.cpp prints: 6.35, 5.08 and 4.91 bits a weight."""
        tensors = list(synth_module._tensors(PRESETS[preset]))
        assert sum(int(np.prod(tensor.shape)) for tensor in tensors) == n_weights
        assert sum(tensor.nbytes for tensor in tensors) == nbytes
        assert Counter(tensor.type for tensor in tensors) == types


class TestBlocks:
    @pytest.mark.parametrize("kind", [T.Q4_K, T.Q6_K, T.Q5_0, T.Q8_0], ids=lambda kind: kind.name)
    def test_deviation_and_mean(self, kind):
        fmt = FORMATS[kind]
        blocks = random_blocks(kind, 4096, 0.02, (0, 1, 2))
        values = dequantize(blocks.view(np.uint8).reshape(64, -1), kind)
        assert values.std() == pytest.approx(0.02, rel=0.01)
        assert abs(values.mean()) < 0.01 * values.std()
        per_place = values.reshape(-1, fmt.block_size).mean(axis=0)  # no place in a block is biased
        assert np.abs(per_place).max() < 0.1 * values.std()

    def test_blocks_depend_on_their_seed_only(self):
        first = random_blocks(T.Q4_K, CHUNK_BLOCKS, 0.02, (7, 3, 0))
        random_blocks(T.Q6_K, 5, 0.02, (7, 3, 1))
        np.testing.assert_array_equal(first, random_blocks(T.Q4_K, CHUNK_BLOCKS, 0.02, (7, 3, 0)))
        assert (first != random_blocks(T.Q4_K, CHUNK_BLOCKS, 0.02, (7, 3, 1))).any()

    def test_q8_0_has_no_minus_128(self):
        assert random_blocks(T.Q8_0, 4096, 0.02, (0,))["qs"].min() == -127


class TestVocabulary:
    def test_big_one(self):
        """Qwen2.5's size: merges all apply, tokens are distinct, specials sit where the real ones do."""
        vocabulary = toy_vocabulary(152064, 151643)
        assert len(vocabulary.tokens) == len(vocabulary.types) == len(set(vocabulary.tokens)) == 152064
        assert len(vocabulary.merges) == 151643 - 256
        assert vocabulary.tokens[151643:151646] == ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
        assert vocabulary.types[151644] == TokenType.CONTROL
        assert vocabulary.types[-1] == TokenType.UNUSED
        known = set(vocabulary.tokens[:256])
        for merge, token in zip(vocabulary.merges, vocabulary.tokens[256:], strict=False):
            left, right = merge.split(" ")
            assert left in known
            assert right in known
            assert left + right == token
            known.add(token)

    @pytest.mark.parametrize(("size", "first_special"), [(100, 90), (300, 299), (10**6, 990_000)])
    def test_impossible_ones(self, size, first_special):
        with pytest.raises(ValueError, match="no toy vocabulary"):
            toy_vocabulary(size, first_special)


class TestFailures:
    def test_an_unknown_preset_lists_the_known(self, tmp_path):
        with pytest.raises(
            ModelFileError, match=r"gpt5: no such preset \(presets: qwen2-tiny, qwen2\.5-0\.5b"
        ):
            synth("gpt5", tmp_path / "m.gguf")

    def test_a_negative_seed(self, tmp_path):
        with pytest.raises(ModelFileError, match="seed -1 is negative"):
            synth("qwen2-tiny", tmp_path / "m.gguf", seed=-1)

    @pytest.mark.parametrize("problem", [OSError(28, "No space left on device"), KeyboardInterrupt()])
    def test_nothing_is_left_behind(self, tmp_path, monkeypatch, problem):
        calls = 0

        def fails_later(*args):
            nonlocal calls
            calls += 1
            if calls == 9:
                raise problem
            return random_blocks(*args)

        monkeypatch.setattr(synth_module, "random_blocks", fails_later)
        expected = ModelFileError if isinstance(problem, OSError) else KeyboardInterrupt
        with pytest.raises(expected):
            synth("qwen2-tiny", tmp_path / "m.gguf", progress=False)
        assert not list(tmp_path.iterdir())

    def test_an_unwritable_place(self, tmp_path):
        (tmp_path / "file").write_bytes(b"")
        with pytest.raises(ModelFileError, match="cannot be written"):
            synth("qwen2-tiny", tmp_path / "file" / "m.gguf", progress=False)
