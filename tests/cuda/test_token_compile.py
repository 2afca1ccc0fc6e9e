"""The token kernel compiled without a GPU."""

import pytest

from minfer.cuda.runtime import compile_kernel
from minfer.cuda.token import shipped


@pytest.mark.slow
def test_integer_mma_and_bulk_copies():
    (kernel,) = shipped()
    compiled = compile_kernel(kernel, "sm_90a")
    resources = compiled.resources
    assert resources.registers == 128  # 16 warps an SM
    assert resources.spill_store_bytes + resources.spill_load_bytes <= kernel.allowed_spill_bytes
    assert not resources.warnings
    # 8 mma a block of 16 rows, of either format.
    assert compiled.ptx.count("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32") == 16
    assert "cp.async.bulk.shared::cluster.global.mbarrier" in compiled.ptx
