"""cp.async: copies from global to shared memory that land when their group is waited for.

A barrier does not wait for them: commit, wait for the group, then synchronise.
"""

import functools

from minfer.cuda.checks import check_whole
from minfer.cuda.instruction import Instruction, instruction, u32, u64

_SECTION = "9.7.9.25.3.1 cp.async"


@instruction("cp.async.ca.shared.global [$0], [$1], 4, $2;", section=_SECTION)
def cp_async_ca_4(shared: u32, source: u64, source_bytes: u32):
    """Copy 4 bytes, of which the first `source_bytes` are read and the rest is zero (0: nothing is read).
    Cached in L1."""


@instruction("cp.async.ca.shared.global [$0], [$1], 8, $2;", section=_SECTION)
def cp_async_ca_8(shared: u32, source: u64, source_bytes: u32):
    """Copy 8 bytes; see `cp_async_ca_4`."""


@instruction("cp.async.ca.shared.global [$0], [$1], 16, $2;", section=_SECTION)
def cp_async_ca_16(shared: u32, source: u64, source_bytes: u32):
    """Copy 16 bytes; see `cp_async_ca_4`."""


@instruction("cp.async.cg.shared.global [$0], [$1], 16, $2;", section=_SECTION)
def cp_async_cg_16(shared: u32, source: u64, source_bytes: u32):
    """Copy 16 bytes past L1; see `cp_async_ca_4`."""


@instruction("cp.async.commit_group;", section="9.7.9.25.3.2 cp.async.commit_group")
def cp_async_commit():
    """Close the group of this thread's copies since the last commit. An empty group is legal."""


@functools.cache
def cp_async_wait_group(n: int) -> Instruction:
    """Factory: wait until at most the `n` latest groups of this thread are pending."""
    check_whole("cp_async_wait_group: pending groups", n, 0)

    @instruction(
        f"cp.async.wait_group {n};",
        name="cp_async_wait_group",
        section="9.7.9.25.3.3 cp.async.wait_group, cp.async.wait_all",
        parameters={"n": n},
    )
    def build():
        """Wait until at most `n` groups of this thread's cp.async are pending."""

    return build
