"""Addresses as integers: what the memory instructions take."""

from minfer.cuda.instruction import address_of, array, instruction, pointer, u32, u64


@address_of(section="5.1.7 Shared State Space")
def shared_address(shared: array) -> u32:
    """Address of a shared array's first byte in the shared window: what `ld_shared_*` and `ldmatrix_*`
    take."""


@address_of(section="5.1.4 Global State Space")
def global_address(data: pointer) -> u64:
    """Address of a pointer's (or global array's) first byte; 0 for an optional argument that is not present.
    Add byte offsets yourself, as uint64."""


@address_of(section="5.5.8 Tensor-map")
def tensor_map_address(tensor_map: pointer) -> u64:
    """Address of a tensor map argument (argument kind "tensor_map": 128 bytes passed by value)."""


@instruction("prefetch.global.L2 [$0];", section="9.7.9.15 prefetch, prefetchu")
def prefetch_global_l2(address: u64):
    """Bring the line with this global address into L2. No effect on results."""
