"""A team of threads that runs a program of kernels: every step is cut into parts, whoever is free takes
the next.

A decoded token is about 300 small steps, many of them a few microseconds long: too short for a fork and a
join of threads, or for a call from Python, each. So the whole token is one table of (kernel address,
arguments), and each thread walks through that table inside compiled code, without the interpreter lock. It
is the host's counterpart of a captured CUDA graph.

A step is over when all its parts are done, not when all threads have come by: a thread that the system has
put aside holds up the others only by the one part that it was working on. (A barrier of threads was tried
first: on a machine with other work on its cores, each wait then costs a scheduler's time slice.)
"""

from __future__ import annotations

import ctypes
import os
import queue
import threading
from functools import cache
from pathlib import Path

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from minfer.engine.errors import InputError
from minfer.engine.host.compile import MAX_ARGUMENTS, Kernel, helper, kernel
from minfer.engine.host.simd import load_i64

STEP_WORDS = 3 + MAX_ARGUMENTS
"""int64 words of a step: kernel address, parts, parts to wait for afterwards (0: go on), arguments."""
SPINS_BEFORE_YIELD = 1000

_I64 = ir.IntType(64)


@helper
def share(count, part, parts):
    """The range [begin, end) of `count` items that belongs to one part."""
    return count * part // parts, count * (part + 1) // parts


@intrinsic
def _call_step(typingctx, step, part, parts):
    """Call the kernel of the step at address `step`.

    Every argument slot is passed; a kernel that declares fewer ignores the rest, which the C calling
    conventions allow (the caller owns the argument area).
    """

    def codegen(context, builder, signature, arguments):
        step_address, part, parts = arguments
        words = builder.inttoptr(step_address, _I64.as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [_I64] * (2 + MAX_ARGUMENTS))
        target = builder.inttoptr(builder.load(words), kind.as_pointer())
        slots = [builder.load(builder.gep(words, [_I64(3 + i)])) for i in range(MAX_ARGUMENTS)]
        builder.call(target, [part, parts, *slots])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@intrinsic
def _count_up(typingctx, counter):
    """Atomically add 1 to the int64 at `counter`, releasing earlier writes; returns what it was."""

    def codegen(context, builder, signature, arguments):
        pointer = builder.inttoptr(arguments[0], _I64.as_pointer())
        return builder.atomic_rmw("add", pointer, _I64(1), "acq_rel")

    return types.int64(types.int64), codegen


@intrinsic
def _read(typingctx, counter):
    """Atomically read the int64 at `counter`, acquiring what others wrote before they counted it up."""

    def codegen(context, builder, signature, arguments):
        return builder.load_atomic(builder.inttoptr(arguments[0], _I64.as_pointer()), "acquire", 8)

    return types.int64(types.int64), codegen


@intrinsic
def _pause(typingctx):
    """Tell the core that this is a spinning loop."""

    def codegen(context, builder, signature, arguments):
        if builder.module.triple.startswith(("x86_64", "i686")):
            name = "llvm.x86.sse2.pause"
            kind = ir.FunctionType(ir.VoidType(), [])
            builder.call(builder.module.globals.get(name) or ir.Function(builder.module, kind, name), [])
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def _yield_core(typingctx):
    """Let another thread have this core: it may be the one we wait for."""

    def codegen(context, builder, signature, arguments):
        kind = ir.FunctionType(ir.IntType(32), [])
        function = builder.module.globals.get("sched_yield") or ir.Function(
            builder.module, kind, "sched_yield"
        )
        builder.call(function, [])
        return context.get_dummy_value()

    return types.void(), codegen


@kernel
def _run_steps(steps, count, counters):
    """Run a program's steps, together with any other thread that runs this with the same arguments.

    `counters`: 2 * count int64, all 0: parts taken of each step, then parts finished of each group of
    steps. A group ends at a step that waits.
    """
    group = counters + 8 * count
    for i in range(count):
        step = steps + i * (8 * STEP_WORDS)
        parts = load_i64(step + 8)
        part = _count_up(counters + 8 * i)
        while part < parts:
            _call_step(step, part, parts)
            _count_up(group)
            part = _count_up(counters + 8 * i)
        awaited = load_i64(step + 16)
        if awaited != 0:
            spins = 0
            while _read(group) < awaited:
                spins += 1
                if spins < SPINS_BEFORE_YIELD:
                    _pause()
                else:
                    _yield_core()
            group += 8


def default_threads() -> int:
    """Cores this process may use: its CPU set, cut to the cgroup's quota and to one thread a physical core.

    $MINFER_THREADS overrides it.
    """
    asked = os.environ.get("MINFER_THREADS")
    if asked is not None:
        if not asked.isdecimal() or not 1 <= int(asked) <= 1024:
            raise InputError(f"MINFER_THREADS is {asked!r}: give a number of threads from 1 to 1024")
        return int(asked)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        siblings = Path("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list").read_text()
        cores = max(1, cores // len(siblings.replace("-", ",").strip().split(",")))
    except OSError:
        pass  # not Linux: no such file
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            cores = min(cores, max(1, int(quota) // int(period)))
    except (OSError, ValueError):
        pass  # no cgroup v2 here
    return cores


class Team:
    """`threads` threads, the caller's included; the others sleep between programs. Callers may share it."""

    def __init__(self, threads: int):
        self.threads = threads
        self._lock = threading.Lock()
        self._run_steps = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3)(_run_steps.address)
        self._inbox = [queue.SimpleQueue() for _ in range(threads - 1)]
        for number, inbox in enumerate(self._inbox, start=1):
            name = f"minfer-host-{number}"
            threading.Thread(target=self._work, args=(inbox,), name=name, daemon=True).start()

    def _work(self, inbox: queue.SimpleQueue) -> None:
        while True:
            self._walk(*inbox.get())

    def _walk(self, steps: np.ndarray, counters: np.ndarray) -> None:
        self._run_steps(steps.ctypes.data, len(steps), counters.ctypes.data)

    def run(self, steps: np.ndarray) -> None:
        """Run a program, int64 (count, STEP_WORDS); returns when all of it is done.

        Each run has counters of its own, so a thread that wakes up late finds nothing left to do, whatever
        has been started since.
        """
        with self._lock:
            job = steps, np.zeros(2 * len(steps), np.int64)
            try:
                for inbox in self._inbox:
                    inbox.put(job)
            finally:  # even when interrupted here: parts in flight must not outlive this call
                self._walk(*job)


@cache
def team(threads: int) -> Team:
    """The process's team of that size."""
    return Team(threads)


class Program:
    """Steps in the making: (kernel, arguments), to be run by a team, once or many times."""

    def __init__(self):
        self._rows: list[tuple[int, ...]] = []
        self._group_parts = 0

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, step: Kernel, *arguments: int, parts: int = 1, wait: bool = True) -> None:
        """Append a step cut into `parts`. With `wait`, the next step starts when this one (and all before) is
        done.
        """
        if len(arguments) != step.argument_count:
            raise TypeError(f"{step.__name__} takes {step.argument_count} arguments, {len(arguments)} given")
        self._group_parts += parts
        awaited = self._group_parts if wait else 0
        if wait:
            self._group_parts = 0
        padding = (0,) * (MAX_ARGUMENTS - len(arguments))
        self._rows.append((step.address, parts, awaited, *arguments, *padding))

    def table(self) -> np.ndarray:
        """The steps as int64 (count, STEP_WORDS). The last step must be one that waits."""
        return np.array(self._rows, np.int64).reshape(-1, STEP_WORDS)


def float_bits(value: float) -> int:
    """The bits of a float32, to be passed as a kernel argument (read by `simd.f32_of_bits`)."""
    return int(np.float32(value).view(np.int32))
