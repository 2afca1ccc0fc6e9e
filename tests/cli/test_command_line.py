"""The command line's manners: exit status, one-line errors, output that goes nowhere."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from minfer import __main__, __version__, cli

TINY = Path(__file__).parents[2] / "data" / "qwen2-tiny.gguf"


def run(capsys, *argv):
    """(status, stdout, stderr) of one command line, run in this process."""
    status = cli.main([str(arg) for arg in argv])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def spawn(*argv, **options):
    return subprocess.run(
        [sys.executable, "-m", "minfer", *map(str, argv)], stderr=subprocess.PIPE, text=True, **options
    )


def assert_one_line_error(status, err, *parts):
    assert status == 2
    assert err.startswith("minfer: ") and err.count("\n") == 1, err
    for part in parts:
        assert str(part) in err


def test_help_and_version(capsys):
    status, out, _ = run(capsys)
    assert status == 0
    for command in ("pull", "inspect", "tokenize", "run", "bench", "perplexity", "synth"):
        assert command in out
    assert run(capsys, "--version")[:2] == (0, f"minfer {__version__}\n")
    assert run(capsys, "run", "--help")[0] == 0


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (["nonsense"], "nonsense"),
        (["run", "--nonsense"], "--nonsense"),
        (["run"], "--model"),
        (["run", "-m", "x", "-p", "hi", "-n", "0"], "-n"),
        (["run", "-m", "x", "-p", "hi", "--temp", "-1"], "--temp"),
        (["run", "-m", "x", "-p", "hi", "--backend", "tpu"], "tpu"),
        (["run", "-m", "x"], "give either -p PROMPT or -f FILE"),
        (["run", "-m", "x", "-p", "a", "-f", "b"], "not both"),
        (["run", "-m", "x", "-p", "a", "--system", "b"], "--system needs --chat"),
        (["run", "-m", "x", "-p", "a", "--stop", "\udcff"], "--stop is not UTF-8: character 0"),
        (["tokenize", "-m", "x"], "give either TEXT or -f FILE"),
        (["inspect", "no-such-model"], "no-such-model"),
        (["inspect", "x", "-c", "9" * 400], "less than or equal to 2147483647"),
        (["bench", "-m", "x", "--sustained", "inf"], "less than or equal to 3600"),
        (["pull", "no-such-model"], "no-such-model"),
        (["synth", "no-such-preset", "-o", "x.gguf"], "no-such-preset"),
    ],
)
def test_bad_usage_is_one_line_and_status_2(capsys, argv, part):
    status, out, err = run(capsys, *argv)
    assert_one_line_error(status, err, part)
    assert out == ""


def test_a_file_that_is_no_text(capsys, data_dir, tmp_path):
    file = tmp_path / "latin1.txt"
    file.write_bytes(b"caf\xe9")
    status, _, err = run(capsys, "tokenize", "-m", data_dir / "vocab-qwen2.5.gguf", "-f", file)
    assert_one_line_error(status, err, file, "not UTF-8 text: byte 0xe9 at offset 3")
    status, _, err = run(capsys, "tokenize", "-m", data_dir / "vocab-qwen2.5.gguf", "-f", tmp_path / "none")
    assert_one_line_error(status, err, tmp_path / "none", "No such file")
    status, _, err = run(capsys, "tokenize", "-m", data_dir / "vocab-qwen2.5.gguf", "-f", tmp_path)
    assert_one_line_error(status, err, "Is a directory")


def test_an_argument_that_is_not_utf8(data_dir):
    done = subprocess.run(
        [sys.executable, "-m", "minfer", "tokenize", "-m", data_dir / "vocab-qwen2.5.gguf", b"caf\xe9"],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert_one_line_error(done.returncode, done.stderr, "TEXT is not UTF-8: character 3")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_output_on_a_full_disk(data_dir):
    with open("/dev/full", "w") as full:
        done = spawn("inspect", data_dir / "qwen2-k.gguf", stdout=full)
    assert_one_line_error(done.returncode, done.stderr, "cannot write the output: No space left on device")


def test_a_reader_that_goes_away(data_dir):
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "w") as pipe:
        done = spawn("inspect", data_dir / "qwen2-k.gguf", stdout=pipe)
    assert (done.returncode, done.stderr) == (1, "")


def test_an_output_that_cannot_show_the_text(data_dir):
    done = spawn(
        "tokenize",
        "-m",
        data_dir / "vocab-qwen2.5.gguf",
        "日",
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert done.returncode == 0, done.stderr
    assert "\\u65e5" in done.stdout


def test_json_where_the_output_is_not_utf8(tmp_path, data_dir):
    model = tmp_path / "modèle.gguf"
    model.symlink_to(data_dir / "vocab-qwen2.5.gguf")
    argv = ("tokenize", "-m", model, "x", "--json")
    for encoding in ("ascii", "latin-1", "utf-8"):
        environment = {**os.environ, "PYTHONIOENCODING": encoding}
        done = subprocess.run(
            [sys.executable, "-m", "minfer", *map(str, argv)], stdout=subprocess.PIPE, env=environment
        )
        assert json.loads(done.stdout.decode(encoding))["model"] == str(model)


def test_a_warning_is_one_line(capsys, monkeypatch, data_dir):
    def warned(self, *args, **kwargs):
        warnings.warn("first line\nsecond line", stacklevel=2)
        return [1]

    monkeypatch.setattr("minfer.model.tokenizer.Tokenizer.encode", warned)
    status, _, err = run(capsys, "tokenize", "-m", data_dir / "vocab-qwen2.5.gguf", "x")
    assert (status, err) == (0, "minfer: warning: first line second line\n")


def test_interrupted(tmp_path, data_dir):
    fifo = tmp_path / "never-written"
    os.mkfifo(fifo)
    process = subprocess.Popen(
        [sys.executable, "-m", "minfer", "tokenize", "-m", data_dir / "vocab-qwen2.5.gguf", "-f", fifo],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background ignores it
    )
    with open(fifo, "w"):  # opens once the command waits for the text
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert err.strip().splitlines()[-1] == "minfer: interrupted"
    assert "Traceback" not in err


def test_interrupted_while_it_starts(capsys, monkeypatch):
    def interrupted(name, *args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "minfer.cli")
    monkeypatch.setattr("builtins.__import__", interrupted)
    status = __main__.main()
    monkeypatch.undo()
    assert (status, capsys.readouterr().err) == (130, "minfer: interrupted\n")


def test_a_bug_shows_no_traceback_unless_asked(capsys, monkeypatch, data_dir):
    def broken(self, *args, **kwargs):
        raise RuntimeError("first line\nsecond line")

    monkeypatch.setattr("minfer.model.tokenizer.Tokenizer.encode", broken)
    monkeypatch.delenv("MINFER_TRACEBACK", raising=False)
    argv = ("tokenize", "-m", data_dir / "vocab-qwen2.5.gguf", "x")
    status, _, err = run(capsys, *argv)
    assert status == 1
    assert err.startswith("minfer: unexpected RuntimeError: first line second line (a bug")
    assert err.count("\n") == 1
    monkeypatch.setenv("MINFER_TRACEBACK", "1")
    with pytest.raises(RuntimeError):
        run(capsys, *argv)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_that_the_caller_closed(closed, tmp_path):
    """Nobody reads what would have gone there, and no file takes the place of the stream."""
    model = tmp_path / "tiny.gguf"
    shell = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-m", "minfer"]
    done = subprocess.run([*shell, "synth", "qwen2-tiny", "-o", str(model)], capture_output=True, text=True)
    assert done.returncode == 0 and model.read_bytes() == TINY.read_bytes(), done.stderr
    done = subprocess.run(
        [*shell, "run", "-m", str(model), "-f", "-"], input="", capture_output=True, text=True
    )
    assert done.returncode == 2 and (done.stderr == "" or "the prompt is empty" in done.stderr)


def test_every_summary_fits_a_line_of_80_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    status, out, _ = run(capsys, "--help")
    assert status == 0 and "probe" in out and "..." not in out.split("Commands:")[1]
