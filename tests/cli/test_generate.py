"""`minfer run`: JSON fields, streaming, stop strings, chat, and requests that cannot be met."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from minfer import cli
from minfer.model.gguf_file import GGUFFile
from minfer.model.tokenizer import Tokenizer

TINY = Path(__file__).parents[2] / "data" / "qwen2-tiny.gguf"
FIELDS = [
    "model",
    "backend",
    "prompt_tokens",
    "generated_tokens",
    "ids",
    "text",
    "prefill_tok_s",
    "decode_tok_s",
]


def run(capsys, *argv):
    status = cli.main(["run", "--backend", "host", *map(str, argv)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def run_json(capsys, *argv):
    status, out, err = run(capsys, *argv, "--json")
    assert status == 0, err
    return json.loads(out)


def assert_one_line_error(status, err, *parts):
    assert status == 2
    assert err.startswith("minfer: ") and err.count("\n") == 1, err
    for part in parts:
        assert part in err


def test_json_has_the_promised_fields(capsys):
    out = run_json(capsys, "-m", TINY, "-p", "Hello", "-n", "8", "--greedy")
    assert list(out) == FIELDS
    tokenizer = Tokenizer.from_file(GGUFFile.open(TINY))
    assert out["model"] == str(TINY)
    assert out["backend"] == "host"
    assert out["prompt_tokens"] == len(tokenizer.encode("Hello"))
    assert 1 <= out["generated_tokens"] == len(out["ids"]) <= 8
    assert out["text"] == tokenizer.decode(out["ids"], skip_special=True)
    assert out["prefill_tok_s"] > 0


def test_greedy_and_seeded_runs_repeat(capsys):
    argv = ("-m", TINY, "-p", "Hello", "-n", "12")
    assert run_json(capsys, *argv, "--greedy")["ids"] == run_json(capsys, *argv, "--temp", "0")["ids"]
    seeded = [run_json(capsys, *argv, "--temp", "2", "--seed", seed)["ids"] for seed in (1, 1, 2)]
    assert seeded[0] == seeded[1] != seeded[2]


def test_the_text_is_streamed_and_speeds_go_to_stderr(capsys):
    argv = ("-m", TINY, "-p", "Hello", "-n", "8", "--greedy")
    expected = run_json(capsys, *argv)["text"]
    status, out, err = run(capsys, *argv)
    assert (status, out) == (0, expected + "\n")
    assert err.startswith("prefill ") and "tok/s" in err and err.count("\n") == 1
    assert run(capsys, *argv, "--echo")[1] == "Hello" + expected + "\n"


def test_a_stop_string_ends_the_text_before_it(capsys):
    argv = ("-m", TINY, "-p", "Hello", "-n", "24", "--greedy")
    text = run_json(capsys, *argv)["text"]
    stop = text[4:6]
    out = run_json(capsys, *argv, "--stop", stop)
    assert out["text"] == text[: text.index(stop)]


def test_a_prompt_from_a_file_and_from_stdin(capsys, tmp_path):
    file = tmp_path / "prompt.txt"
    file.write_text("Hello")
    argv = ("-m", TINY, "-n", "4", "--greedy", "--json", "--backend", "host")
    expected = run_json(capsys, "-m", TINY, "-p", "Hello", "-n", "4", "--greedy")["ids"]
    assert run_json(capsys, "-m", TINY, "-f", file, "-n", "4", "--greedy")["ids"] == expected
    done = subprocess.run(
        [sys.executable, "-m", "minfer", "run", *map(str, argv), "-f", "-"],
        input="Hello",
        capture_output=True,
        text=True,
    )
    assert json.loads(done.stdout)["ids"] == expected


def test_chat_puts_the_prompt_through_the_template(capsys):
    plain = run_json(capsys, "-m", TINY, "-p", "Hello", "-n", "1", "--greedy")
    chat = run_json(capsys, "-m", TINY, "-p", "Hello", "-n", "1", "--greedy", "--chat")
    with_system = run_json(capsys, "-m", TINY, "-p", "Hello", "-n", "1", "--chat", "--system", "Be brief.")
    assert plain["prompt_tokens"] < chat["prompt_tokens"] < with_system["prompt_tokens"]


def test_chat_without_template(capsys, data_dir):
    status, _, err = run(capsys, "-m", data_dir / "qwen2-k.gguf", "-p", "Hello", "--chat")
    assert_one_line_error(status, err, "has no chat template")


def test_a_template_that_raises(capsys, tmp_path):
    template = GGUFFile.open(TINY).metadata["tokenizer.chat_template"].encode()
    broken = b"{{ raise_exception('no system role') }}".ljust(len(template))
    model = tmp_path / "broken.gguf"
    model.write_bytes(TINY.read_bytes().replace(template, broken))
    status, out, err = run(capsys, "-m", model, "-p", "Hello", "--chat")
    assert_one_line_error(status, err, "chat template raises: no system role")
    assert out == ""


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (["-p", ""], ["empty"]),
        (["-p", "Hello", "-n", "2048"], ["2048"]),
        (["-p", "Hello", "-n", "8", "-c", "8"], ["8"]),
        (["-p", "Hello", "-n", "8", "-c", "4096"], ["4096", "2048"]),
    ],
)
def test_requests_that_cannot_be_met(capsys, argv, parts):
    status, out, err = run(capsys, "-m", TINY, *argv)
    assert_one_line_error(status, err, *parts)
    assert out == ""


def test_a_model_that_is_no_model(capsys, tmp_path):
    for content, part in (
        (b"", "empty"),
        (b"hello world", "not a GGUF"),
        (TINY.read_bytes()[:5000], "truncated"),
    ):
        file = tmp_path / "model.gguf"
        file.write_bytes(content)
        status, _, err = run(capsys, "-m", file, "-p", "Hello")
        assert_one_line_error(status, err, str(file), part)


def test_a_backend_that_is_not_to_be_had():
    done = subprocess.run(
        [sys.executable, "-m", "minfer", "run", "--backend", "cuda", "-m", str(TINY), "-p", "Hello"],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
    )
    assert_one_line_error(done.returncode, done.stderr, "backend cuda cannot be used", "--backend host")


@pytest.mark.network
def test_paris(capsys, smollm2_path):
    out = run_json(capsys, "-m", "smollm2-135m", "-p", "The capital of France is", "-n", "4", "--greedy")
    assert out["text"].startswith(" Paris")
