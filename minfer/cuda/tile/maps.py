"""Fragment maps: which element of a matrix a lane holds in which place (PTX ISA 9.7.14.5.8 and 9.7.14.5.10).

Pure Python. The fragments have wmma's shapes: A is 16 x k, B is k x 16, the accumulator 16 x 16, with k = 16
for 16-bit types and 32 for bytes; B and the accumulator are two mma operands of 8 columns side by side. A
lane is 0 ... 31; an element counts through the lane's registers, low parts first.

The identity that attention kernels rest on: a 16 x 16 accumulator and a 16 x 16 A fragment of 16-bit elements
have the same map, element for element. A product's result becomes the A operand of the next product by
converting each element in place: no shuffle, no shared memory.
"""

from __future__ import annotations

from dataclasses import dataclass

USES = ("matrix_a", "matrix_b", "accumulator")
LAYOUTS = ("row_major", "col_major")
ELEMENT_BITS = {"f16": 16, "bf16": 16, "s8": 8, "f32": 32, "s32": 32}
ACCUMULATORS = {"f16": "f32", "bf16": "f32", "s8": "s32"}


@dataclass(frozen=True)
class Fragment:
    """A warp's share of a 16-row matrix operand.

    `use` is "matrix_a", "matrix_b" or "accumulator"; `dtype` "f16", "bf16", "s8" for operands and "f32",
    "s32" for accumulators; `layout` says how an operand lies in memory: "row_major" (a row's elements are
    contiguous) or "col_major". Raises ValueError for combinations that the hardware lacks."""

    use: str
    dtype: str
    layout: str = "row_major"

    def __post_init__(self):
        if self.use not in USES or self.layout not in LAYOUTS:
            raise ValueError(f"fragment: use {self.use!r} in {USES}, layout {self.layout!r} in {LAYOUTS}")
        wanted = ACCUMULATORS.values() if self.use == "accumulator" else ACCUMULATORS
        if self.dtype not in wanted:
            raise ValueError(f"fragment: {self.use} of {self.dtype}: must be one of {', '.join(wanted)}")
        if self.dtype == "s8" and self.layout != ("row_major" if self.use == "matrix_a" else "col_major"):
            raise ValueError(
                f"fragment: s8 {self.use} must have its k elements contiguous; ldmatrix transposes b16 only"
            )

    @property
    def k(self) -> int:
        """The product's inner dimension: elements in 32 bytes."""
        return 256 // ELEMENT_BITS[self.dtype]

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, columns) of the matrix."""
        return {"matrix_a": (16, self.k), "matrix_b": (self.k, 16)}.get(self.use, (16, 16))

    @property
    def elements(self) -> int:
        """Elements a lane holds."""
        return self.shape[0] * self.shape[1] // 32

    @property
    def per_register(self) -> int:
        """Elements in one 32-bit register."""
        return 32 // ELEMENT_BITS[self.dtype]

    @property
    def registers(self) -> int:
        """32-bit registers a lane holds: the length of the local array."""
        return self.elements // self.per_register

    @property
    def transposed(self) -> bool:
        """Whether ldmatrix must transpose: memory rows run along k for A's columns, or along n for B's."""
        return self.layout == ("col_major" if self.use == "matrix_a" else "row_major")

    def position(self, lane: int, element: int) -> tuple[int, int]:
        """(row, column) of the lane's element, of all `self.elements`."""
        group, thread = lane // 4, lane % 4
        if self.use == "accumulator":
            return group + 8 * (element // 2 % 2), 2 * thread + element % 2 + 8 * (element // 4)
        register, part = divmod(element, self.per_register)
        along_k = self.per_register * thread + part
        half = 4 * self.per_register
        if self.use == "matrix_a":
            return group + 8 * (register % 2), along_k + half * (register // 2)
        return along_k + half * (register % 2), group + 8 * (register // 2)

    def source(self, lane: int) -> tuple[int, int]:
        """(memory row, byte in it) of the 16-byte row whose address the lane gives to `ldmatrix_x4`, with
        matrix i of the four landing in register i."""
        if (self.use == "matrix_a") != self.transposed:
            return lane % 16, lane // 16 * 16
        return lane % 8 + lane // 16 * 8, lane // 8 % 2 * 16


def holders(fragment: Fragment) -> dict[tuple[int, int], tuple[int, int]]:
    """{(row, column): (lane, element)}: the inverse of `Fragment.position`."""
    return {
        fragment.position(lane, element): (lane, element)
        for lane in range(32)
        for element in range(fragment.elements)
    }
