"""`minfer tokenize` and `minfer inspect`."""

from __future__ import annotations

import json

import pytest

from minfer import cli


def run_ok(capsys, *argv):
    status = cli.main([str(arg) for arg in argv])
    captured = capsys.readouterr()
    assert status == 0, captured.err
    return captured.out


def test_tokenize_prints_ids_and_texts(capsys, data_dir):
    out = run_ok(capsys, "tokenize", "-m", data_dir / "vocab-qwen2.5.gguf", "Hello, world!")
    assert out.splitlines() == [
        "    9707  'Hello'",
        "      11  ','",
        "    1879  ' world'",
        "       0  '!'",
        "4 tokens",
    ]


def test_tokenize_json_from_a_file_keeps_its_newlines(capsys, data_dir, tmp_path):
    file = tmp_path / "text.txt"
    file.write_bytes(b"\r\n\r\nwin lines\r\n")
    model = data_dir / "vocab-qwen2.5.gguf"
    cases = json.loads((data_dir / "tokens-llamacpp.json").read_text())["qwen2.5-coder-0.5b"]
    expected = next(case["ids"] for case in cases if case["text"] == "\r\n\r\nwin lines\r\n")
    out = json.loads(run_ok(capsys, "tokenize", "-m", model, "-f", file, "--json"))
    assert out == {"model": str(model), "n_tokens": len(expected), "ids": expected}


def test_tokenize_control_tokens_as_text(capsys, data_dir):
    argv = ("tokenize", "-m", data_dir / "vocab-qwen2.5.gguf", "<|im_end|>", "--json")
    assert json.loads(run_ok(capsys, *argv))["ids"] == [151645]
    assert len(json.loads(run_ok(capsys, *argv, "--no-special"))["ids"]) > 1


def test_inspect_json(capsys, data_dir):
    file = data_dir / "qwen2-k.gguf"
    out = json.loads(run_ok(capsys, "inspect", file, "--json", "-c", "100"))
    assert out["files"] == [str(file)]
    assert out["metadata"]["general.architecture"] == "qwen2"
    assert out["metadata"]["tokenizer.ggml.tokens"] == "[288 x string]"
    assert out["tensors"] == 39
    assert sum(counts["tensors"] for counts in out["types"].values()) == 39
    assert (
        out["weights_bytes"] == sum(counts["bytes"] for counts in out["types"].values()) < file.stat().st_size
    )
    assert out["runs"]
    assert (
        out["kv_cache_f16_bytes"] == 2 * 3 * 2 * 64 * 2 * 100
    )  # k and v, layers, kv heads, head size, f16, tokens
    assert out["memory_bytes"] == out["weights_bytes"] + out["kv_cache_f16_bytes"]


def test_inspect_text(capsys, data_dir):
    out = run_ok(capsys, "inspect", data_dir / "qwen2-k.gguf")
    assert "qwen2.attention.head_count" in out
    assert "Q4_K" in out and "4.5 bits a weight" in out
    assert "memory: " in out and "512 tokens" in out


def test_inspect_a_file_that_minfer_cannot_run(capsys, data_dir):
    out = run_ok(capsys, "inspect", data_dir / "vocab-qwen2.5.gguf")
    assert "minfer cannot run this file: " in out
    assert "token_embd.weight" in out


@pytest.mark.network
def test_inspect_a_pulled_model_by_name(capsys, smollm2_path):
    out = json.loads(run_ok(capsys, "inspect", "smollm2-135m", "--json"))
    assert out["files"] == [str(smollm2_path)]
    assert out["parameters"] == 134_515_008


def test_synth_makes_a_model_that_its_name_finds(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("MINFER_MODELS", str(tmp_path / "models"))
    out = run_ok(capsys, "synth", "qwen2-tiny")
    assert out == f"{tmp_path / 'models' / 'qwen2-tiny-synth.gguf'}\n"
    assert json.loads(run_ok(capsys, "inspect", "qwen2-tiny-synth", "--json"))["files"] == [out.strip()]
