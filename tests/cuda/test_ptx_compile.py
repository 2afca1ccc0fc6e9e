"""Every instruction compiles for its least architecture, and the expected machine instructions come out."""

import functools
import re

import pytest

from minfer.cuda import ptx
from minfer.cuda.instruction import Instruction, Registers, f32, u64
from minfer.cuda.kernel import Argument, CompileError, Kernel
from minfer.cuda.runtime import compile_kernel

FACTORIES = {
    "cp_async_wait_group": [(1,), (0,)],
    "lop3": [(0xEA,)],
    "bulk_wait_group_read": [(0,)],
    "setmaxnreg": [("dec", 40), ("inc", 232)],
    "wgmma": [
        (64, "f16", "shared", 4, True),
        (32, "f16", "registers", 2, False),
        (24, "bf16", "shared", 2, "operand"),
        (16, "f16", "registers", 1, True, None, None, True),
        (8, "tf32", "registers", 1, True),
        (64, "s8", "registers", 2, False),
        (32, "u8", "shared", 1, True),
        (16, "f16", "shared", 1, True, None, None, False, 128, None, None, 1, "operand"),
    ],
    "wgmma_wait": [(0, 32, "f32"), (1, 16, "s32")],
    "pin": [(4, "u32"), (4, "f32")],
}


def instructions() -> list[Instruction]:
    """All instructions of the package; factories by a few of their products."""
    found = []
    for name in ptx.__all__:
        value = getattr(ptx, name)
        if isinstance(value, Instruction):
            found.append(value)
        elif name in FACTORIES:
            found += [value(*arguments) for arguments in FACTORIES[name]]
        else:
            assert name.startswith("wgmma_"), f"{name} has no case in this test"
    return found


def calls_kernel(chosen: list[Instruction]) -> Kernel:
    """A kernel that calls each instruction once with run-time operands and stores every result."""
    lines, scope = [], {}
    for index, item in enumerate(chosen):
        arguments = []
        for place, (_, kind) in enumerate(item.operands):
            if isinstance(kind, Registers):
                array = f"a{index}_{place}"
                lines += [
                    f"{array} = cuda.local.array({kind.count}, types.{kind.dtype.numba_name})",
                    f"for i in range({kind.count}):",
                    f"    {array}[i] = {'x' if kind.dtype is f32 else 'n'} + i",
                ]
                arguments.append(array)
            elif kind is f32:
                arguments.append("x")
            elif item.name == "shared_address":
                arguments.append("shared")
            elif item.name.endswith("_address"):
                arguments.append("words")
            elif kind is u64:
                arguments.append("address")
            else:
                arguments.append(f"n + {place}")
        call = f"f{index}({', '.join(arguments)})"
        scope[f"f{index}"] = item
        if not item.returns:
            lines.append(call)
        else:
            parts = (
                [f"r{index}"]
                if len(item.returns) == 1
                else [f"r{index}[{i}]" for i in range(len(item.returns))]
            )
            output = "floats" if item.returns[0] is f32 else "words"
            lines.append(f"r{index} = {call}")
            lines += [f"{output}[{4 * index + i}] = {part}" for i, part in enumerate(parts)]
        for place, (_, kind) in enumerate(item.operands):
            if isinstance(kind, Registers) and kind.role != "in":
                output = "floats" if kind.dtype is f32 else "words"
                lines += [f"for i in range({kind.count}):", f"    {output}[i + n] = a{index}_{place}[i]"]
    body = "\n".join("    " + line for line in lines)
    source = (
        "def calls(words, floats, address, n, x):\n"
        "    shared = cuda.shared.array(0, dtype=types.uint8)\n"
        "    n += cuda.threadIdx.x\n"
        "    x += types.float32(n)\n"
        f"{body}\n"
    )
    from numba import cuda, types
    from numba.cuda import types as cuda_types

    scope |= {"cuda": cuda, "types": cuda_types}
    exec(source, scope)

    def signature():
        pointer = cuda_types.CPointer
        return types.void(
            pointer(cuda_types.uint32), pointer(cuda_types.float32), types.uint64, types.int32, types.float32
        )

    names = ("words", "floats", "address", "n", "x")
    return Kernel(
        name="calls",
        config=" ".join(str(item) for item in chosen),
        function=scope["calls"],
        signature=signature,
        threads=128,
        shared_bytes=1024,
        arguments=tuple(Argument(name, "scalar") for name in names),
        min_blocks=1,
    )


GROUPS = {"sm_80": [], "sm_90": [], "sm_90a": []}
for each in instructions():
    GROUPS["sm_90a" if each.arch_specific else "sm_90" if each.arch >= 90 else "sm_80"].append(each)


def mnemonics(item: Instruction) -> list[str]:
    """First words of the instruction's PTX statements."""
    statements = [part.strip() for part in re.split(r"[;\n{}]|\$\{:uid\}", item.ptx)]
    words = [re.sub(r"^@\w+ ", "", statement).split(" ")[0] for statement in statements]
    return [word for word in words if "." in word and not word.startswith((".", "$"))]


@functools.cache
def compiled_group(arch: str):
    return compile_kernel(calls_kernel(GROUPS[arch]), arch, strict=False)


@pytest.mark.parametrize("arch", GROUPS)
def test_every_instruction_compiles_for_its_least_architecture(arch):
    compiled = compiled_group(arch)
    for item in GROUPS[arch]:
        for word in mnemonics(item):
            assert word in compiled.ptx, f"{item}: {word}"
    assert ".local" not in compiled.ptx


SASS = {
    "sm_80": {
        "mma_m16n8k16_f16": "HMMA.16816.F32",
        "mma_m16n8k16_bf16": "HMMA.16816.F32.BF16",
        "mma_m16n8k32_s8": "IMMA.16832.S8.S8",
        "mma_m16n8k32_u8s8": "IMMA.16832.U8.S8",
        "mma_m16n8k32_s8u8": "IMMA.16832.S8.U8",
        "mma_m16n8k16_s8": "IMMA.16816.S8.S8",
        "ldmatrix_x1": "LDSM.16.M88",
        "ldmatrix_x4": "LDSM.16.M88.4",
        "ldmatrix_x4_trans": "LDSM.16.MT88.4",
        "cp_async_ca_4": "LDGSTS.E",
        "cp_async_cg_16": "LDGSTS.E.BYPASS.128",
        "cp_async_commit": "LDGDEPBAR",
        "cp_async_wait_group": "DEPBAR.LE SB0, 0x1",
        "dp4a": "IDP.4A.S8.S8",
        "shfl_xor_f32": "SHFL.BFLY",
        "shfl_idx_u32": "SHFL.IDX",
        "shfl_down_f32": "SHFL.DOWN",
        "vote_any": "VOTE",
        "ld_global_v4_u32": "LDG.E.128",
        "ld_global_nc_v4_f32": "LDG.E.128.CONSTANT",
        "ld_shared_v4_u32": "LDS.128",
        "st_global_v2_f32": "STG.E.64",
        "st_shared_v4_u32": "STS.128",
        "prefetch_global_l2": "CCTL.E.PF2",
        "prmt": "PRMT",
        "lop3": "LOP3.LUT",
        "hfma2": "HFMA2",
        "ex2_approx": "MUFU.EX2",
        "rcp_approx": "MUFU.RCP",
        "bar_arrive": "BAR.ARV",
    },
    "sm_90": {
        "stmatrix_x4": "STSM.16.M88.4",
        "tma_load_2d": "UTMALDG.2D",
        "tma_store_2d": "UTMASTG.2D",
        "bulk_load": "UBLKCP",
        "mbarrier_wait": "SYNCS.PHASECHK.TRANS64.TRYWAIT",
        "mbarrier_arrive_expect_tx": "SYNCS.ARRIVE.TRANS64",
        "cluster_sync": "UCGABAR_WAIT",
        "griddepcontrol_wait": "ACQBULK",
    },
    "sm_90a": {
        "wgmma": "HGMMA.64x64x16.F32",
        "wgmma_s8": "IGMMA.64x64x32.S8.S8",
        "wgmma_wait": "WARPGROUP.DEPBAR",
        "setmaxnreg": "USETMAXREG",
        "tma_load_2d_multicast": "UTMALDG.2D.MULTICAST",
    },
}


@pytest.mark.parametrize("arch", SASS)
def test_machine_instructions(arch):
    sass = compiled_group(arch).sass
    missing = {name: word for name, word in SASS[arch].items() if word not in sass}
    assert not missing


def test_every_instruction_is_documented():
    for item in instructions():
        assert item.__doc__, item
        assert re.match(r"\d+(\.\d+)+ \w", item.section), (item, item.section)
        assert item.arch in (61, 75, 80, 90), item
        assert item.pure or item.constraints.endswith("~{memory}")


def test_a_float_is_not_an_address():
    from numba.cuda import types

    def truncates(floats, x):
        ptx.st_global_f32(x, x)

    kernel = Kernel(
        name="truncates",
        config=None,
        function=truncates,
        signature=lambda: types.void(types.CPointer(types.float32), types.float32),
        threads=32,
        shared_bytes=0,
        arguments=(Argument("floats", "out"), Argument("x", "scalar")),
    )
    with pytest.raises(CompileError, match="operand address takes"):
        compile_kernel(kernel, "sm_80")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ptx.wgmma(12), "n = 12"),
        (lambda: ptx.wgmma(40, "s8"), "s8 above 32: of 16"),
        (lambda: ptx.wgmma(264), "n = 264"),
        (lambda: ptx.wgmma(64, "f64"), "dtype 'f64'"),
        (lambda: ptx.wgmma(64, swizzle=48), "swizzle 48: must be one of 0, 128, 64, 32"),
        (lambda: ptx.wgmma(64, k_steps=0), "k steps: 0"),
        (lambda: ptx.wgmma(64, k_steps=2, b_offsets=(0,)), "2 k steps need as many offsets"),
        (lambda: ptx.wgmma(64, wait=-1), "pending groups: -1"),
        (lambda: ptx.wgmma(64, "s8", transpose_b=True), "cannot be transposed"),
        (lambda: ptx.wgmma(64.0), "n: 64.0: must be a whole number"),
        (lambda: ptx.wgmma("64"), "n: '64': must be a whole number"),
        (lambda: ptx.wgmma(64, row_blocks=1.5), "blocks of 64 rows: 1.5"),
        (lambda: ptx.wgmma(64, a="registers", high="operand"), "high = 'operand' with A in registers"),
        (lambda: ptx.wgmma_wait(-1, 32), "pending groups: -1: must be a whole number, at least 0"),
        (lambda: ptx.wgmma_wait(0, 0), "registers: 0"),
        (lambda: ptx.cp_async_wait_group(-1), "pending groups: -1"),
        (lambda: ptx.cp_async_wait_group(1.5), "pending groups: 1.5"),
        (lambda: ptx.bulk_wait_group_read(-1), "pending groups: -1"),
        (lambda: ptx.bulk_wait_group_read(1.5), "pending groups: 1.5"),
        (lambda: ptx.lop3(256), "lut 256"),
        (lambda: ptx.setmaxnreg("inc", 20), "'inc' 20"),
    ],
)
def test_instructions_that_do_not_exist_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
