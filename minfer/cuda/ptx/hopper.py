"""Hopper's asynchronous machinery: mbarriers, TMA and bulk copies, clusters, register budgets (sm_90 and
later)."""

import functools

from minfer.cuda.checks import check_whole
from minfer.cuda.instruction import Instruction, f32, instruction, s32, u32, u64

_TENSOR = "9.7.9.25.5.2 cp.async.bulk.tensor"
_TMA_LOAD = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
_TMA_STORE = "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group"
_TMA_ADD = "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group"
_REDUCE = "9.7.9.25.5.4 cp.reduce.async.bulk.tensor"
_ARRIVE = "9.7.13.15.13 mbarrier.arrive"


# ---- mbarriers: 8-byte objects in shared memory that count arrivals and bytes


@instruction("mbarrier.init.shared::cta.b64 [$0], $1;", section="9.7.13.15.9 mbarrier.init")
def mbarrier_init(address: u32, count: u32):
    """Make an mbarrier whose phases complete after `count` arrivals (and all the bytes expected)."""


@instruction("mbarrier.arrive.shared::cta.b64 _, [$0];", section=_ARRIVE)
def mbarrier_arrive(address: u32):
    """Arrive once."""


@instruction(
    "{\n.reg .pred p;\nsetp.ne.u32 p, $1, 0;\n@p mbarrier.arrive.shared::cta.b64 _, [$0];\n}", section=_ARRIVE
)
def mbarrier_arrive_if(address: u32, condition: u32):
    """Arrive once where the condition is nonzero, without a branch (a divergent branch while wgmma is in
    flight makes ptxas serialise it: C7518)."""


@instruction("mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;", section=_ARRIVE, arch=90)
def mbarrier_arrive_expect_tx(address: u32, bytes: u32):
    """Arrive once, and let the phase also wait for so many bytes of TMA or bulk copies."""


@instruction(
    "{\n.reg .pred p;\nsetp.ne.u32 p, $2, 0;\n@p mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;\n}",
    section=_ARRIVE,
    arch=90,
)
def mbarrier_arrive_expect_tx_if(address: u32, bytes: u32, condition: u32):
    """As `mbarrier_arrive_expect_tx`, where the condition is nonzero, without a branch."""


@instruction(
    "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [$0];",
    section="9.7.13.15.15 cp.async.mbarrier.arrive",
)
def cp_async_mbarrier_arrive(address: u32):
    """Arrive once as soon as all cp.async of this thread so far have landed, without waiting for that."""


@instruction(
    "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, $0, $1;\n"
    "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}",
    section=_ARRIVE,
    arch=90,
)
def mbarrier_arrive_cluster(address: u32, cta: u32):
    """Arrive once at the same mbarrier of block `cta` of the cluster."""


@instruction(
    "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, $0, $1;\n"
    "st.shared::cluster.v4.f32 [remote], {$2, $3, $4, $5};\n}",
    section="9.7.9.12 st",
    arch=90,
)
def st_cluster_v4_f32(address: u32, cta: u32, a: f32, b: f32, c: f32, d: f32):
    """Store to the same shared address of block `cta` of the cluster."""


@instruction(
    "{\n.reg .pred p;\nWAIT_${:uid}:\nmbarrier.try_wait.parity.shared::cta.b64 p, [$0], $1;\n"
    "@p bra DONE_${:uid};\nbra WAIT_${:uid};\nDONE_${:uid}:\n}",
    section="9.7.13.15.16 mbarrier.test_wait, mbarrier.try_wait",
    arch=90,
)
def mbarrier_wait(address: u32, parity: u32):
    """Wait until the phase of this parity (0 for the first) has completed. A fresh mbarrier passes for parity
    1."""


@instruction(
    "{\n.reg .pred p;\nmbarrier.test_wait.parity.shared::cta.b64 p, [$1], $2;\nselp.u32 $0, 1, 0, p;\n}",
    section="9.7.13.15.16 mbarrier.test_wait, mbarrier.try_wait",
    arch=90,
)
def mbarrier_test(address: u32, parity: u32) -> u32:
    """1 if the phase of this parity has completed, else 0, at once. (try_wait with a time limit sleeps two
    microseconds at least, on an H200 and with any limit.)"""


@instruction("fence.mbarrier_init.release.cluster;", section="9.7.13.4 membar, fence, fence.proxy", arch=90)
def fence_mbarrier_init():
    """Make the mbarriers initialised by this thread visible to the cluster and to the async proxy."""


@instruction("fence.proxy.async.shared::cta;", section="9.7.13.4 membar, fence, fence.proxy", arch=90)
def fence_proxy_async():
    """Order this thread's ordinary shared-memory writes before later TMA stores that read them."""


@instruction("fence.proxy.async.global;", section="9.7.13.4 membar, fence, fence.proxy", arch=90)
def fence_proxy_async_global():
    """Order what this thread knows to be written in global memory before later bulk copies that read it."""


# ---- TMA and bulk copies


@instruction(f"{_TMA_LOAD} [$0], [$1, {{$3, $4}}], [$2];", section=_TENSOR, arch=90)
def tma_load_2d(shared: u32, tensor_map: u64, mbarrier: u32, x: s32, y: s32):
    """Load the box at column x (a multiple of 16 bytes), row y into shared memory; its bytes count towards
    the mbarrier. Out of range is zero."""


@instruction(
    f"{{\n.reg .pred p;\nsetp.ne.u32 p, $5, 0;\n@p {_TMA_LOAD} [$0], [$1, {{$3, $4}}], [$2];\n}}",
    section=_TENSOR,
    arch=90,
)
def tma_load_2d_if(shared: u32, tensor_map: u64, mbarrier: u32, x: s32, y: s32, condition: u32):
    """As `tma_load_2d`, where the condition is nonzero, without a branch."""


@instruction(
    f"{{\n.reg .b16 mask;\ncvt.u16.u32 mask, $5;\n"
    f"{_TMA_LOAD}.multicast::cluster [$0], [$1, {{$3, $4}}], [$2], mask;\n}}",
    section=_TENSOR,
    arch=90,
    arch_specific=True,
)
def tma_load_2d_multicast(shared: u32, tensor_map: u64, mbarrier: u32, x: s32, y: s32, mask: u32):
    """As `tma_load_2d`, into the same offset of every block of the cluster whose bit is in the mask; each
    block's own mbarrier counts."""


@instruction(f"{_TMA_STORE} [$0, {{$2, $3}}], [$1];", section=_TENSOR, arch=90)
def tma_store_2d(tensor_map: u64, shared: u32, x: s32, y: s32):
    """Store a box from shared memory at column x, row y; out of range is clipped. Part of the next bulk
    group."""


@instruction(
    f"{{\n.reg .pred p;\nsetp.ne.u32 p, $4, 0;\n@p {_TMA_STORE} [$0, {{$2, $3}}], [$1];\n}}",
    section=_TENSOR,
    arch=90,
)
def tma_store_2d_if(tensor_map: u64, shared: u32, x: s32, y: s32, condition: u32):
    """As `tma_store_2d`, where the condition is nonzero, without a branch."""


@instruction(f"{_TMA_ADD} [$0, {{$2, $3}}], [$1];", section=_REDUCE, arch=90)
def tma_add_2d(tensor_map: u64, shared: u32, x: s32, y: s32):
    """As `tma_store_2d`, but L2 adds the box to what is there, each element rounded once."""


@instruction(
    f"{{\n.reg .pred p;\nsetp.ne.u32 p, $4, 0;\n@p {_TMA_ADD} [$0, {{$2, $3}}], [$1];\n}}",
    section=_REDUCE,
    arch=90,
)
def tma_add_2d_if(tensor_map: u64, shared: u32, x: s32, y: s32, condition: u32):
    """As `tma_add_2d`, where the condition is nonzero, without a branch."""


@instruction(
    "{\n.reg .b64 policy;\ncreatepolicy.fractional.L2::evict_first.b64 policy, 1.0;\n"
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
    "[$0], [$1], $2, [$3], policy;\n}",
    section="9.7.9.25.4.1 cp.async.bulk",
    arch=90,
)
def bulk_load(shared: u32, source: u64, bytes: u32, mbarrier: u32):
    """Copy a contiguous range (addresses and size multiples of 16) into shared memory; its bytes count
    towards the mbarrier. L2 keeps what is read by others rather than this."""


@instruction(
    "cp.async.bulk.prefetch.L2.global [$0], $1;",
    section="9.7.9.25.4.3 cp.async.bulk.prefetch",
    arch=90,
)
def bulk_prefetch_l2(source: u64, bytes: u32):
    """Bring a contiguous range (address and size multiples of 16) into L2. No effect on results."""


@instruction("cp.async.bulk.commit_group;", section="9.7.9.25.6.1 cp.async.bulk.commit_group", arch=90)
def bulk_commit_group():
    """Close the group of this thread's bulk stores."""


@functools.cache
def bulk_wait_group_read(n: int) -> Instruction:
    """Factory: wait until at most `n` bulk groups of this thread have still to READ their shared memory."""
    check_whole("bulk_wait_group_read: pending groups", n, 0)

    @instruction(
        f"cp.async.bulk.wait_group.read {n};",
        name="bulk_wait_group_read",
        section="9.7.9.25.6.2 cp.async.bulk.wait_group",
        arch=90,
        parameters={"n": n},
    )
    def build():
        """Wait until the shared memory of all but the `n` latest bulk groups may be overwritten."""

    return build


@instruction("prefetch.tensormap [$0];", section="9.7.9.15 prefetch, prefetchu", arch=90)
def prefetch_tensor_map(address: u64):
    """Bring a tensor map into the cache that TMA reads it from."""


# ---- clusters, registers, dependent launches


@functools.cache
def setmaxnreg(how: str, n: int) -> Instruction:
    """Factory: give registers back ("dec") or take them ("inc"): `n` a thread, for the whole warpgroup."""
    if how not in ("inc", "dec") or n % 8 or not 24 <= n <= 256:
        raise ValueError(f"setmaxnreg: {how!r} {n}: 'inc' or 'dec' to a multiple of 8 from 24 to 256")

    @instruction(
        f"setmaxnreg.{how}.sync.aligned.u32 {n};",
        name="setmaxnreg",
        section="9.7.19.5 setmaxnreg",
        arch=90,
        arch_specific=True,
        collective=True,
        parameters={"how": how, "n": n},
    )
    def build():
        """Change the warpgroup's registers a thread. The kernel needs `min_blocks`, else it is ignored
        (C7508)."""

    return build


@instruction("mov.u32 $0, %cluster_ctarank;", section="10.16 Special Registers: %cluster_ctarank", arch=90)
def cluster_rank() -> u32:
    """This block's number within its cluster."""


@instruction(
    "barrier.cluster.arrive;\nbarrier.cluster.wait;",
    section="9.7.13.3 barrier.cluster",
    arch=90,
    collective=True,
)
def cluster_sync():
    """Wait for all threads of the cluster; their memory accesses before it are visible after it."""


@instruction("griddepcontrol.wait;", section="9.7.13.13 griddepcontrol", arch=90)
def griddepcontrol_wait():
    """Wait until the kernels that this one depends on have finished and their writes are visible."""


@instruction("griddepcontrol.launch_dependents;", section="9.7.13.13 griddepcontrol", arch=90)
def griddepcontrol_launch_dependents():
    """Allow kernels that depend on this one to start."""
