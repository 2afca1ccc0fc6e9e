"""Loads and stores, ldmatrix and stmatrix.

Addresses are bytes: u64 in global, u32 in shared memory; an access of n bytes needs an address that is a
multiple of n. `nc` loads go through the read-only path: the data must not be written while the kernel runs.
"""

from minfer.cuda.instruction import Instruction, Scalar, f32, instruction, s32, u32, u64
from minfer.cuda.ptx.stub import stub_of

_TYPES = {"u8": u32, "u16": u32, "u32": u32, "f32": f32, "s8": s32}
_LD, _LDNC, _ST = "9.7.9.8 ld", "9.7.9.9 ld.global.nc", "9.7.9.11 st"


def _load(name: str, qualifiers: str, dtype: str, count: int = 1, section: str = _LD) -> Instruction:
    """`ld.<qualifiers>[.v<count>].<dtype>`; a byte or half arrives extended to 32 bits."""
    scalar = _TYPES[dtype]
    address = u32 if qualifiers.startswith("shared") else u64
    vector = f".v{count}" if count > 1 else ""
    results = ", ".join(f"${i}" for i in range(count))
    target = f"{{{results}}}" if count > 1 else results
    text = f"ld.{qualifiers}{vector}.{dtype} {target}, [${count}];"
    if dtype == "u16":
        text = f"{{.reg .u16 h;\nld.{qualifiers}.u16 h, [$1];\ncvt.u32.u16 $0, h;}}"
    return _memory(
        name, text, section, {"address": address}, (scalar,) * count, _load_text(qualifiers, dtype, count)
    )


def _store(name: str, space: str, dtype: str, count: int = 1) -> Instruction:
    """`st.<space>[.v<count>].<dtype>`; a byte or half is the low bits of the operand."""
    scalar: Scalar = _TYPES[dtype]
    address = u32 if space == "shared" else u64
    values = [f"v{i}" for i in range(count)] if count > 1 else ["value"]
    sources = ", ".join(f"${i + 1}" for i in range(count))
    if dtype == "u16":
        text = f"{{.reg .u16 h;\ncvt.u16.u32 h, $1;\nst.{space}.u16 [$0], h;}}"
    elif count > 1:
        text = f"st.{space}.v{count}.{dtype} [$0], {{{sources}}};"
    else:
        text = f"st.{space}.{dtype} [$0], $1;"
    return _memory(
        name,
        text,
        _ST,
        {"address": address, **dict.fromkeys(values, scalar)},
        (),
        f"Store {count} x {dtype} to {space} memory.",
    )


def _load_text(qualifiers: str, dtype: str, count: int) -> str:
    path = " through the read-only path" if ".nc" in qualifiers else ""
    stream = ", not kept in L1" if "no_allocate" in qualifiers else ""
    return f"Load {count} x {dtype} from {qualifiers.split('.')[0]} memory{path}{stream}."


def _memory(
    name: str, text: str, section: str, operands: dict, returns: tuple, documentation: str
) -> Instruction:
    return instruction(text, section=section, name=name)(stub_of(operands, documentation, returns))


ld_global_u8 = _load("ld_global_u8", "global", "u8")
ld_global_u16 = _load("ld_global_u16", "global", "u16")
ld_global_u32 = _load("ld_global_u32", "global", "u32")
ld_global_f32 = _load("ld_global_f32", "global", "f32")
ld_global_v2_u32 = _load("ld_global_v2_u32", "global", "u32", 2)
ld_global_v4_u32 = _load("ld_global_v4_u32", "global", "u32", 4)
ld_global_v2_f32 = _load("ld_global_v2_f32", "global", "f32", 2)
ld_global_v4_f32 = _load("ld_global_v4_f32", "global", "f32", 4)

ld_global_nc_u8 = _load("ld_global_nc_u8", "global.nc", "u8", section=_LDNC)
ld_global_nc_u16 = _load("ld_global_nc_u16", "global.nc", "u16", section=_LDNC)
ld_global_nc_u32 = _load("ld_global_nc_u32", "global.nc", "u32", section=_LDNC)
ld_global_nc_f32 = _load("ld_global_nc_f32", "global.nc", "f32", section=_LDNC)
ld_global_nc_v2_u32 = _load("ld_global_nc_v2_u32", "global.nc", "u32", 2, _LDNC)
ld_global_nc_v4_u32 = _load("ld_global_nc_v4_u32", "global.nc", "u32", 4, _LDNC)
ld_global_nc_v2_f32 = _load("ld_global_nc_v2_f32", "global.nc", "f32", 2, _LDNC)
ld_global_nc_v4_f32 = _load("ld_global_nc_v4_f32", "global.nc", "f32", 4, _LDNC)
ld_global_stream_v4_u32 = _load(
    "ld_global_stream_v4_u32", "global.nc.L1::no_allocate.L2::128B", "u32", 4, _LDNC
)

st_global_u8 = _store("st_global_u8", "global", "u8")
st_global_u16 = _store("st_global_u16", "global", "u16")
st_global_u32 = _store("st_global_u32", "global", "u32")
st_global_f32 = _store("st_global_f32", "global", "f32")
st_global_v2_u32 = _store("st_global_v2_u32", "global", "u32", 2)
st_global_v4_u32 = _store("st_global_v4_u32", "global", "u32", 4)
st_global_v2_f32 = _store("st_global_v2_f32", "global", "f32", 2)
st_global_v4_f32 = _store("st_global_v4_f32", "global", "f32", 4)

ld_shared_u8 = _load("ld_shared_u8", "shared", "u8")
ld_shared_s8 = _load("ld_shared_s8", "shared", "s8")
ld_shared_u16 = _load("ld_shared_u16", "shared", "u16")
ld_shared_u32 = _load("ld_shared_u32", "shared", "u32")
ld_shared_f32 = _load("ld_shared_f32", "shared", "f32")
ld_shared_v2_u32 = _load("ld_shared_v2_u32", "shared", "u32", 2)
ld_shared_v4_u32 = _load("ld_shared_v4_u32", "shared", "u32", 4)
ld_shared_v2_f32 = _load("ld_shared_v2_f32", "shared", "f32", 2)
ld_shared_v4_f32 = _load("ld_shared_v4_f32", "shared", "f32", 4)

st_shared_u8 = _store("st_shared_u8", "shared", "u8")
st_shared_u16 = _store("st_shared_u16", "shared", "u16")
st_shared_u32 = _store("st_shared_u32", "shared", "u32")
st_shared_f32 = _store("st_shared_f32", "shared", "f32")
st_shared_v2_u32 = _store("st_shared_v2_u32", "shared", "u32", 2)
st_shared_v4_u32 = _store("st_shared_v4_u32", "shared", "u32", 4)
st_shared_v2_f32 = _store("st_shared_v2_f32", "shared", "f32", 2)
st_shared_v4_f32 = _store("st_shared_v4_f32", "shared", "f32", 4)


@instruction("atom.acq_rel.gpu.global.add.u32 $0, [$1], $2;", section="9.7.13.5 atom")
def atom_add_global_u32(address: u64, value: u32) -> u32:
    """Add to a word that all blocks share; the word before. Orders this thread's memory accesses, and with a
    barrier before (after) it the block's, before (after) those of the blocks that add later (added
    before)."""


@instruction("atom.relaxed.gpu.global.or.b32 $0, [$1], $2;", section="9.7.13.5 atom")
def atom_or_global_u32(address: u64, bits: u32) -> u32:
    """Set bits of a word that all blocks share; the word before. Orders no other accesses."""


@instruction("red.release.gpu.global.add.u32 [$0], $1;", section="9.7.13.7 red")
def red_add_release_u32(address: u64, value: u32):
    """Add to a word that all blocks share, after everything that this thread (and before a barrier its block)
    has written."""


MOST_POLLS = 1 << 23  # some seconds


@instruction(
    "{\n.reg .pred p, q;\n.reg .b32 found, polls;\nmov.u32 polls, 0;\nPOLL_${:uid}:\n"
    "ld.acquire.gpu.global.u32 found, [$0];\nadd.u32 polls, polls, 1;\n"
    f"setp.gt.u32 q, polls, {MOST_POLLS};\n@q trap;\n"
    "setp.lo.u32 p, found, $1;\n@p bra POLL_${:uid};\n}",
    section="9.7.9.8 ld",
)
def wait_global_u32(address: u64, least: u32):
    """Wait until a word that other blocks add to has reached `least`; what they had written before is then
    visible to this thread, and behind a barrier to its block. Traps after some seconds: a block that never
    runs is an error, not a hang."""


@instruction("red.relaxed.gpu.global.max.u64 [$0], $1;", section="9.7.13.7 red")
def red_max_u64(address: u64, value: u64):
    """Raise 8 bytes that all blocks share to `value`, if they are less; orders nothing."""


@instruction("red.relaxed.gpu.global.add.u32 [$0], $1;", section="9.7.13.7 red")
def red_add_u32(address: u64, value: u32):
    """Add to a word that all blocks share; orders nothing."""


@instruction(
    "{\n.reg .b64 pair;\nmov.b64 pair, {$1, $2};\nst.relaxed.gpu.global.b64 [$0], pair;\n}",
    section="9.7.9.11 st",
)
def st_pair(address: u64, low: u32, high: u32):
    """Store 8 bytes that other blocks see whole or not at all."""


@instruction(
    "{\n.reg .b64 a, b;\nld.relaxed.gpu.global.v2.b64 {a, b}, [$4];\nmov.b64 {$0, $1}, a;\n"
    "mov.b64 {$2, $3}, b;\n}",
    section="9.7.9.8 ld",
)
def ld_two_pairs(address: u64) -> (u32, u32, u32, u32):
    """Load twice 8 bytes that other blocks store meanwhile, each whole (`st_pair`)."""


@instruction("st.relaxed.gpu.global.u32 [$0], $1;", section="9.7.9.11 st")
def st_relaxed_u32(address: u64, value: u32):
    """Store a word that other blocks look for meanwhile."""


@instruction("ld.relaxed.gpu.global.u32 $0, [$1];", section="9.7.9.8 ld")
def ld_relaxed_u32(address: u64) -> u32:
    """Load a word that other blocks store (`st_relaxed_u32`), not from L1."""


@instruction("ld.relaxed.gpu.global.v4.u32 {$0, $1, $2, $3}, [$4];", section="9.7.9.8 ld")
def ld_relaxed_v4_u32(address: u64) -> (u32, u32, u32, u32):
    """Load four words that other blocks store meanwhile (`st_relaxed_u32`), each old or new."""


@instruction(
    f"{{\n.reg .pred q;\nsetp.gt.u32 q, $0, {MOST_POLLS};\n@q trap;\n}}",
    section="9.7.19.4 trap",
)
def poll_again(polls: u32):
    """What has been loaded has not come yet: look again. polls: how often that has been so; as
    `wait_global_u32`, traps after some seconds."""


@instruction("fence.acq_rel.gpu;", section="9.7.13.4 membar, fence, fence.proxy")
def fence_gpu():
    """Order this thread's memory accesses before the fence, and what it has observed, before those after it,
    for all threads of the device. What L1 holds is forgotten."""


def _ldmatrix(count: int, trans: str = "") -> dict:
    results = ", ".join(f"${i}" for i in range(count))
    return {
        "text": f"ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {{{results}}}, [${count}];",
        "section": "9.7.14.5.15 ldmatrix",
        "arch": 75,
        "collective": True,
    }


@instruction(**_ldmatrix(1))
def ldmatrix_x1(address: u32) -> u32:
    """One 8x8 matrix of 16-bit elements: lanes 0-7 give the addresses of its 16-byte rows; lane l receives
    elements 2 (l % 4) and 2 (l % 4) + 1 of row l // 4."""


@instruction(**_ldmatrix(2))
def ldmatrix_x2(address: u32) -> (u32, u32):
    """Two matrices: lanes 0-7 give the first one's rows, 8-15 the second one's. See `ldmatrix_x1`."""


@instruction(**_ldmatrix(4))
def ldmatrix_x4(address: u32) -> (u32, u32, u32, u32):
    """Four matrices: lanes 8 i ... 8 i + 7 give matrix i's rows. See `ldmatrix_x1`."""


@instruction(**_ldmatrix(1, ".trans"))
def ldmatrix_x1_trans(address: u32) -> u32:
    """One 8x8 matrix, transposed: lane l receives rows 2 (l % 4) and 2 (l % 4) + 1 of column l // 4."""


@instruction(**_ldmatrix(2, ".trans"))
def ldmatrix_x2_trans(address: u32) -> (u32, u32):
    """Two transposed matrices. See `ldmatrix_x1_trans`."""


@instruction(**_ldmatrix(4, ".trans"))
def ldmatrix_x4_trans(address: u32) -> (u32, u32, u32, u32):
    """Four transposed matrices. See `ldmatrix_x1_trans`."""


@instruction(
    "stmatrix.sync.aligned.m8n8.x4.shared.b16 [$0], {$1, $2, $3, $4};",
    section="9.7.14.5.16 stmatrix",
    arch=90,
    collective=True,
)
def stmatrix_x4(address: u32, r0: u32, r1: u32, r2: u32, r3: u32):
    """Store four 8x8 matrices of 16-bit elements: the inverse of `ldmatrix_x4`."""


@instruction(
    "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [$0], {$1, $2, $3, $4};",
    section="9.7.14.5.16 stmatrix",
    arch=90,
    collective=True,
)
def stmatrix_x4_trans(address: u32, r0: u32, r1: u32, r2: u32, r3: u32):
    """Store four 8x8 matrices of 16-bit elements transposed: the inverse of `ldmatrix_x4_trans`."""
