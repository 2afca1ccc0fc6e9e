"""Kernels compiled behind a control: after a pause, in a process of their own, once; overtaken, cancelled."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any

from minfer.cuda.kernel import CompileError, Kernel, ToolchainError
from minfer.lab.kernel_code import Listing, listing
from minfer.lab.tile_view import Registers

ROOT = Path(__file__).resolve().parents[2]
WORKER = (sys.executable, "-m", "minfer.lab.compile_worker")
DELAY = 0.4
"""Seconds without a further request before a compile starts: a slider still moving compiles nothing."""


@dataclass(frozen=True)
class Compilation:
    """How one compile stands: `state` is "waiting", "compiling", "done", "failed" or "cancelled"."""

    config: Any
    arch: str
    state: str
    registers: Registers | None = None
    error: str | None = None
    listing: Listing | None = None

    def __str__(self) -> str:
        return {
            "waiting": f"compiling for {self.arch} when the sliders rest",
            "compiling": f"compiling for {self.arch} ...",
            "done": f"compiled for {self.arch}",
            "failed": f"not compiled for {self.arch}: {self.error}",
            "cancelled": f"compile for {self.arch} cancelled",
        }[self.state]


class BackgroundCompiler:
    """Compiles one config at a time and tells how it stands.

    Args:
        factory: where the kernel factory is, "module:function"; it takes the config and returns a Kernel.
        notify: called with a `Compilation` at every change, from a thread of this object's.
        delay: seconds to wait for a further request.
        command: the process that compiles: a request as JSON on its stdin, an answer on its stdout.
        listing: also ask for the kernel's code by line.
    """

    def __init__(
        self,
        factory: str,
        notify: Callable[[Compilation], None] = lambda _: None,
        delay: float = DELAY,
        command: Sequence[str] = WORKER,
        listing: bool = False,
    ) -> None:
        self.listing = listing
        self.factory, self.notify, self.delay, self.command = factory, notify, delay, tuple(command)
        self._known: dict[tuple[Any, str], Compilation] = {}
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._process: subprocess.Popen | None = None
        self._wanted: tuple[Any, str] | None = None

    def known(self, config: Any, arch: str) -> Compilation | None:
        """The finished compile of this config, if there was one."""
        return self._known.get((config, arch))

    def request(self, config: Any, arch: str) -> Compilation:
        """Compile this config soon, instead of what was asked for before; a known one is answered at once."""
        done = self.known(config, arch)
        self._stop()
        if done is not None:
            return done
        waiting = Compilation(config, arch, "waiting")
        with self._lock:
            self._wanted = (config, arch)
            self._timer = threading.Timer(self.delay, self._run, (config, arch))
            self._timer.daemon = True
            self._timer.start()
        return waiting

    def compile_now(self, config: Any, arch: str) -> Compilation:
        """Compile this config and wait for it."""
        done = self.known(config, arch)
        if done is None:
            self._stop()
            self._wanted = (config, arch)
            self._run(config, arch)
            done = self.known(config, arch) or Compilation(config, arch, "cancelled")
        return done

    def cancel(self) -> None:
        """Give up the compile that waits or runs, if any."""
        wanted = self._stop()
        if wanted is not None:
            self.notify(Compilation(*wanted, "cancelled"))

    def _stop(self) -> tuple[Any, str] | None:
        with self._lock:
            wanted, self._wanted = self._wanted, None
            if self._timer is not None:
                self._timer.cancel()
            if self._process is not None:
                self._process.kill()
            self._timer = self._process = None
        return wanted

    def _run(self, config: Any, arch: str) -> None:
        with self._lock:
            if self._wanted != (config, arch):
                return
            search = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
            process = subprocess.Popen(
                self.command,
                env={**os.environ, "PYTHONPATH": search},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            self._process = process
        self.notify(Compilation(config, arch, "compiling"))
        request = {"factory": self.factory, "arch": arch, "listing": self.listing, **described(config)}
        out, err = process.communicate(json.dumps(request))
        with self._lock:
            if self._wanted != (config, arch):
                return
            self._wanted = self._process = None
            done = _finished(config, arch, process.returncode, out, err)
            self._known[config, arch] = done
        self.notify(done)


class DirectCompiler:
    """Compiles kernels of this process alone (a notebook's, a probe file's) the moment they are asked for,
    each once. To a view it is a `BackgroundCompiler` that is always done; its configs are the kernels."""

    def __init__(self) -> None:
        self.notify: Callable[[Compilation], None] = lambda _: None
        self._known: dict[tuple[Kernel, str], Compilation] = {}

    def known(self, kernel: Kernel, arch: str) -> Compilation | None:
        """The finished compile of this kernel, if there was one."""
        return self._known.get((kernel, arch))

    def request(self, kernel: Kernel, arch: str) -> Compilation:
        """Compile this kernel, with its code by line."""
        done = self.known(kernel, arch)
        if done is None:
            done = self._known[kernel, arch] = _compiled(kernel, arch)
        return done

    compile_now = request

    def cancel(self) -> None:
        """Nothing ever waits."""


def _compiled(kernel: Kernel, arch: str) -> Compilation:
    from minfer.cuda.runtime import compile_kernel

    try:
        made = compile_kernel(kernel, arch, lineinfo=True)
    except (CompileError, ToolchainError) as error:
        return Compilation(kernel, arch, "failed", error=str(error))
    used = made.resources
    registers = Registers(used.registers, f"ptxas, {arch}", used.spill_bytes)
    return Compilation(kernel, arch, "done", registers, listing=listing(made))


def described(config: Any) -> dict:
    """A frozen config dataclass as JSON: its type and its fields.

    Raises:
        TypeError: not a dataclass.
    """
    if not is_dataclass(config):
        raise TypeError(f"a kernel config is a dataclass, not {type(config).__name__}")
    return {"type": f"{type(config).__module__}:{type(config).__qualname__}", "fields": asdict(config)}


def _finished(config: Any, arch: str, status: int, out: str, err: str) -> Compilation:
    if status != 0:
        last = err.strip().splitlines()[-1] if err.strip() else f"the compiler process ended with {status}"
        return Compilation(config, arch, "failed", error=last)
    answer = json.loads(out)
    if "error" in answer:
        return Compilation(config, arch, "failed", error=answer["error"])
    registers = Registers(answer["registers"], f"ptxas, {arch}", answer["spill_bytes"])
    code = Listing.from_json(answer["listing"]) if answer.get("listing") else None
    return Compilation(config, arch, "done", registers, listing=code)
