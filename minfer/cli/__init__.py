"""The `minfer` command: thin over the library, one module for each group of commands.

To add a command, write a function of its name in a module here and list it in `_COMMANDS`.
"""

from __future__ import annotations

import errno
import os
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Annotated

import typer

from minfer import __version__
from minfer.cli.errors import expected_errors

# command -> the module that holds the function of that name, in the order that `--help` shows
_COMMANDS = {
    "pull": "models",
    "inspect": "models",
    "tokenize": "text",
    "run": "generate",
    "bench": "measure",
    "perplexity": "measure",
    "synth": "models",
    "kernels": "kernels",
    "ceilings": "campaign",
    "decompose": "campaign",
    "report": "campaign",
}
# group of commands -> the module that holds its app
_GROUPS = {"probe": "probe"}

_OK, _UNEXPECTED, _BAD_INPUT, _INTERRUPTED = 0, 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (default: the process's own) and return the exit status.

    0 done; 2 bad input or a resource that is missing, with one line on stderr that says so; 130 interrupted;
    1 the reader of our output went away, or a bug (one line; MINFER_TRACEBACK=1 shows where).
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by the caller; no file of ours may take its number
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # A terminal that cannot show a character is no error.
            stream.reconfigure(errors="backslashreplace")
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            status = _run(argv)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return _fail("interrupted", _INTERRUPTED)
    except BrokenPipeError:
        _discard_output()
        return _UNEXPECTED
    except OSError as error:
        if error.errno == errno.ENOSPC:
            _discard_output()
        return _fail(_describe(error), _BAD_INPUT)
    except MemoryError as error:
        return _fail(f"not enough memory: {error}" if str(error) else "not enough memory", _BAD_INPUT)
    except Exception as error:
        if os.environ.get("MINFER_TRACEBACK"):
            raise
        return _fail(
            f"unexpected {type(error).__name__}: {error} (a bug; MINFER_TRACEBACK=1 shows where)", _UNEXPECTED
        )


def _run(argv: Sequence[str] | None) -> int:
    usage_error, command_line_error = typer.BadParameter.__mro__[1:3]  # click's, or typer's own copy of them
    try:
        status = _command().main(args=argv, prog_name="minfer", standalone_mode=False) or _OK
        return _fail("interrupted", status) if status == _INTERRUPTED else status
    except usage_error as error:
        command = error.ctx.command_path if error.ctx else "minfer"
        return _fail(f"{error.format_message()} ({command} --help shows what it takes)", _BAD_INPUT)
    except command_line_error as error:
        return _fail(error.format_message(), _BAD_INPUT)
    except typer.Abort:
        return _fail("interrupted", _INTERRUPTED)
    except expected_errors() as error:
        return _fail(str(error), _BAD_INPUT)


def _command():
    app = typer.Typer(
        help="Run GGUF language models on kernels written in Python.",
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )

    @app.callback(invoke_without_command=True)
    def minfer(
        context: typer.Context,
        version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
    ) -> None:
        if version:
            print(f"minfer {__version__}")
        elif context.invoked_subcommand is None:
            print(context.get_help())

    for name, module in _COMMANDS.items():
        app.command(name)(getattr(import_module(f"minfer.cli.{module}"), name))
    for name, module in _GROUPS.items():
        app.add_typer(import_module(f"minfer.cli.{module}").app, name=name)
    return typer.main.get_command(app)


def _describe(error: OSError) -> str:
    if error.strerror is None:  # raised by us, with a message of its own
        return str(error)
    return (
        f"{error.filename}: {error.strerror}"
        if error.filename
        else f"cannot write the output: {error.strerror}"
    )


def _show_warning(message: Warning | str, *_where: object) -> None:
    """A warning as one line: where in the code it was given tells a user nothing."""
    with suppress(OSError):
        print(f"minfer: warning: {' '.join(str(message).split())}", file=sys.stderr, flush=True)


def _discard_output() -> None:
    """Send what stdout still buffers nowhere, so that the interpreter's last flush cannot fail again."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str, status: int) -> int:
    with suppress(OSError):
        print(f"minfer: {' '.join(message.split())}", file=sys.stderr, flush=True)
    return status
