"""Every command and every line of Python in README.md runs."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from minfer import cli

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)


COMMANDS = [line for block in blocks("sh") for line in block.splitlines() if line.strip()]
MINFER = [command for command in COMMANDS if command.startswith("minfer ")]
# Run by tests/test_make.py; `make test` by whoever runs these tests, `make test-gpu` where there is a GPU.
MAKE = {"make run", "make lab", "make test", "make test-gpu"}


def test_every_command_is_one_that_tests_run():
    assert len(MINFER) >= 8
    assert set(COMMANDS) - set(MINFER) == MAKE
    assert set(re.findall(r"^```(\w+)\n", README, flags=re.MULTILINE)) == {"sh", "python"}


@pytest.mark.network
@pytest.mark.parametrize("command", MINFER)
def test_command_runs(command, smollm2_path, tmp_path, monkeypatch, capsys):
    shutil.copy(ROOT / "README.md", tmp_path)
    monkeypatch.chdir(tmp_path)
    status = cli.main(shlex.split(command)[1:])
    captured = capsys.readouterr()
    assert status == 0, captured.err
    assert captured.out.strip()


@pytest.mark.network
# The other block is a probe: tests/campaign/test_probes.py runs it.
@pytest.mark.parametrize("source", [block for block in blocks("python") if "PROBE = " not in block])
def test_python_runs(source, smollm2_path, capsys):
    names: dict[str, object] = {}
    exec(compile(source, "README.md", "exec"), names)
    assert "Paris" in names["result"].text
    assert "Paris" in capsys.readouterr().out


def test_every_command_of_the_command_line_is_in_the_readme():
    for name in (*cli._COMMANDS, *cli._GROUPS):
        assert f"minfer {name} " in README, name


def test_every_notebook_is_in_the_readme_by_its_title():
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        heading = json.loads(path.read_text())["cells"][0]["source"][0]
        assert f"| `{path.stem}` | {heading.partition(' · ')[2].strip()} |" in README
