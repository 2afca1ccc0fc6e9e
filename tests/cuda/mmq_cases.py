"""Launches of the MMQ family with their expected outputs."""

import numpy as np

from minfer.cuda.mmq import MmqConfig, mmq, reference
from tests.cuda.block_data import random_matrix
from tests.cuda.parity import Case, poisoned


def operands(weight_type: str, nt: int, od: int, depth: int) -> tuple[np.ndarray, np.ndarray]:
    """(blocks of random bits, chunks of random int8 with a zero one among them)."""
    packed, _ = random_matrix(weight_type, od, depth, seed=od + depth)
    draw = np.random.default_rng([nt, od, depth])
    q = draw.integers(-127, 127, (nt, depth), endpoint=True).astype(np.int8)
    q[-1, -32:] = 0
    d = draw.uniform(0.001, 0.02, (nt, depth // 32))
    d[-1, -1] = 0
    return packed, reference.pad40(q, d)


def mmq_case(config: MmqConfig, nt: int, od: int, depth: int, sms: int = 1) -> Case:
    """One launch (of a stream-k kernel for so many multiprocessors): the product within the f32 sums' error,
    or the integers exactly."""
    config.check(nt, od, depth)
    packed, activations = operands(config.weight_type, nt, od, depth)
    if config.out == "sums":
        out = poisoned(config.sums_shape(nt, od, depth), np.int32)
        expected = reference.integer_sums(config.weight_type, packed, activations, config.variant == "folded")
    else:
        out = poisoned((nt, od), np.float32)
        wanted, magnitude = reference.product(config.weight_type, packed, activations)
        bound = (1e-6 if config.minimum == "fma" else 8e-6) * magnitude + 1e-9

        def expected(got: np.ndarray) -> None:
            off = np.abs(got.astype(np.float64) - wanted)
            assert (off <= bound).all(), (
                f"{config} {nt}x{od}x{depth}: {(~(off <= bound)).sum()} of {got.size} off, "
                f"worst {np.nanmax(off / bound):.3g} bounds, {np.isnan(got).sum()} NaN"
            )

    workspace, checks = {}, {"out": expected}
    if config.stream:
        parts, ready = config.workspace(sms)
        workspace = {"parts": poisoned(parts, np.float32), "ready": np.zeros(ready, np.uint32)}
        checks["ready"] = np.zeros(ready, np.uint32)
    arguments = {
        "weights": packed,
        "activations": activations,
        "out": out,
        **workspace,
        "nt": nt,
        "od": od,
        "id": depth,
        **({"stride": od} if config.stream else {}),
    }
    # The last line of a row of 2-byte aligned blocks is copied in part.
    whole = () if config.variant != "raw" or config.block_bytes % 16 == 0 else ("weights",)
    return Case(
        mmq(config),
        config.grid(nt, od, sms),
        arguments,
        checks,
        name=f"{nt}x{od}x{depth}",
        whole_chunks=whole,
    )
