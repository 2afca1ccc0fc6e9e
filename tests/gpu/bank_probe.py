"""Runs one kernel a shared-memory layout, each a known number of ldmatrix.x4 on it: for a profiler to
count."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numba import cuda
from numba.cuda import types

from minfer.arithmetic.banks import ldmatrix_request, ldmatrix_rows, padded
from minfer.cuda import ptx
from minfer.cuda.kernel import Argument, Kernel

ROWS, COLUMN_BYTES = 16, 256  # f16 [16, 128]: the K tile of attention with head dimension 128
LOADS = COLUMN_BYTES // 32


@dataclass(frozen=True)
class BankConfig:
    """A tile of 16 rows: bytes of padding a row, or 16-byte units XORed with the row modulo 8."""

    pad_bytes: int = 0
    swizzle: bool = False

    def __str__(self) -> str:
        return "swizzled" if self.swizzle else f"padded_{self.pad_bytes}"

    def address(self) -> Callable[[int, int], int]:
        """(row, byte column) -> byte offset in shared memory."""
        if not self.swizzle:
            return padded(COLUMN_BYTES, self.pad_bytes)
        return lambda row, column: row * COLUMN_BYTES + (column ^ (row % 8 * 16))

    def wavefronts(self) -> int:
        """Shared-memory passes of all loads of the kernel, by minfer.arithmetic.banks."""
        tile = self.address()
        requests = (ldmatrix_request(ldmatrix_rows(tile, 0, 32 * i)) for i in range(LOADS))
        return sum(sum(request.degrees) for request in requests)


LAYOUTS = (BankConfig(), BankConfig(16), BankConfig(8 * 16), BankConfig(32), BankConfig(swizzle=True))


def bank_kernel(config: BankConfig) -> Kernel:
    """One warp, `LOADS` x ldmatrix.x4 along the tile's rows; the sum of all registers goes out."""
    stride, swizzle = COLUMN_BYTES + config.pad_bytes, config.swizzle

    def bank_probe(out):
        lane = types.int32(cuda.threadIdx.x)
        base = ptx.shared_address(cuda.shared.array(0, types.uint8))
        row, column = lane % 16, lane // 16 * 16
        total = types.uint32(0)
        for i in range(LOADS):
            at = column + 32 * i
            if swizzle:
                at = at ^ (row % 8 * 16)
            r = ptx.ldmatrix_x4(base + types.uint32(row * stride + at))
            total = types.uint32(total + r[0] + r[1] + r[2] + r[3])
        out[lane] = total

    arguments = (Argument("out", "out", "uint32"),)
    return Kernel(
        name="bank_probe",
        config=config,
        function=bank_probe,
        threads=32,
        shared_bytes=ROWS * stride,
        arguments=arguments,
    )


if __name__ == "__main__":
    from minfer.cuda import runtime

    for layout in LAYOUTS:
        runtime.launch(bank_kernel(layout), (1, 1, 1), runtime.empty(32, "uint32"))
    runtime.device().synchronize()
