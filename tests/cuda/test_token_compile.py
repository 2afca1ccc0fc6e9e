"""The token kernel compiled without a GPU."""

import pytest

from minfer.cuda.runtime import compile_kernel
from minfer.cuda.token import shipped


@pytest.mark.slow
def test_dot_products_and_bulk_copies():
    (kernel,) = shipped()
    compiled = compile_kernel(kernel, "sm_90a")
    resources = compiled.resources
    assert resources.registers <= 65536 // kernel.threads
    assert resources.spill_store_bytes == resources.spill_load_bytes == 0  # 24 bytes cost 0.5 % of a token
    assert not resources.warnings
    # A lane's weights, 4 at a time, of one row and of two; of Q6_K the bits above the nibbles apart.
    assert compiled.ptx.count("dp4a.u32.s32") == 3 * (16 + 32) * 4 // kernel.config.lanes
    assert "cp.async.bulk.shared::cluster.global.mbarrier" in compiled.ptx
    assert "cp.async.bulk.prefetch.L2.global" in compiled.ptx
