"""The kernel view: PTX and SASS joined to the source by line, instructions by class, two configs compared."""

import sys
import time

import pytest

from minfer.cuda.gemm import GemmConfig, make_gemm
from minfer.cuda.kernel import ToolchainError
from minfer.cuda.runtime import compile_kernel
from minfer.lab import kernel_code
from minfer.lab.background import BackgroundCompiler
from minfer.lab.kernel_code import CLASSES, REST, Change, Line, class_rows, difference, listing
from minfer.lab.kernel_view import KernelView, code_html, difference_html, draw_classes, line_of

CONFIGS = {
    "TM=32": GemmConfig(32, 32, 16, warps=2, warps_n=1),
    "TM=64": GemmConfig(32, 64, 16, warps=2, warps_n=1),
}


@pytest.fixture(scope="module")
def codes():
    """The listings of both configs."""
    return [listing(compile_kernel(make_gemm(c), "sm_90a", lineinfo=True)) for c in CONFIGS.values()]


@pytest.fixture(scope="module")
def line():
    return line_of(make_gemm(CONFIGS["TM=32"]), "multiply_k16(")


class TestListing:
    def test_source_is_the_kernel_function(self, codes):
        code = codes[0]
        assert code.file == "gemm.py" and code.source[0].startswith("def gemm_f16(")
        assert code.source[-1].strip().startswith("store(")

    def test_tensor_cores_sit_at_the_line_that_multiplies(self, codes, line):
        for code in codes:
            assert code.text_of(line).startswith("multiply_k16(")
            for language, names in (("ptx", ("mma.sync", "ldmatrix")), ("sass", ("HMMA", "LDSM"))):
                for name in names:
                    lines = [x for x in getattr(code, language) if x.text.startswith(name)]
                    assert lines and {x.source for x in lines} == {line}

    def test_copies_waits_and_barriers_sit_at_theirs(self, codes):
        code = codes[0]
        kernel = make_gemm(CONFIGS["TM=32"])
        assert any("LDGSTS" in x.text for x in code.of("sass", line_of(kernel, "copy_a(ring + fill_next")))
        assert any("bar.sync" in x.text for x in code.of("ptx", line_of(kernel, "cuda.syncthreads()")))
        assert any(
            "cp.async.wait_group" in x.text for x in code.of("ptx", line_of(kernel, "            wait()"))
        )

    def test_a_wider_warp_tile_multiplies_more_for_each_load(self, codes, line):
        # 32 x 16 a warp: 2 + 1 fragments for 4 products; 32 x 32: 2 + 2 for 8
        for code, ratio in zip(codes, (4 / 3, 2), strict=True):
            counts = code.counts(line)
            assert counts["tensor cores"] / counts["ldmatrix"] == ratio

    def test_counts_add_up(self, codes):
        for code in codes:
            assert sum(code.counts().values()) == sum(code.by_line().values()) == len(code.instructions())
            assert code.counts()["local memory (spills)"] == 0
            # ptxas plants loads that are never executed; they are none of the kernel's
            assert code.counts()["shared memory"] == 0

    def test_class_rows_leave_out_what_no_kernel_has(self, codes):
        rows = class_rows(codes)
        assert rows[0]["class"] == "tensor cores" and rows[-1]["class"] == REST
        assert "float arithmetic" not in [row["class"] for row in rows]
        assert rows[0]["32x32x16 2 stages 2 warps padded 1 along nt"] == codes[0].counts()["tensor cores"]

    def test_no_opcode_is_in_two_classes(self):
        opcodes = [opcode for names in CLASSES.values() for opcode in names]
        assert len(opcodes) == len(set(opcodes))

    def test_json_brings_it_back(self, codes):
        import json
        from dataclasses import asdict

        assert kernel_code.Listing.from_json(json.loads(json.dumps(asdict(codes[0])))) == codes[0]

    def test_without_nvdisasm_there_is_ptx_and_a_sentence(self, monkeypatch):
        def missing(*_, **__):
            raise ToolchainError("no nvdisasm of CUDA 13.0 or newer was found: pip install it")

        monkeypatch.setattr("minfer.cuda.runtime.resources.disassemble", missing)
        code = listing(compile_kernel(make_gemm(CONFIGS["TM=32"]), "sm_90a", lineinfo=True))
        assert code.ptx and not code.sass
        html = code_html(code, code.first)
        assert "no nvdisasm of CUDA 13.0" in html and "PTX" in html
        picture = draw_classes([code], code.first)
        assert picture.alt.startswith("No machine code of gemm_f16")
        assert "no nvdisasm" in difference_html(code, code, code.first)


def test_lines_are_told_whatever_folder_they_were_compiled_in():
    text = (
        '\t//## File "/elsewhere/minfer/cuda/gemm.py", line 7\n'
        "        /*0010*/              @!P3 LDGSTS.E.BYPASS.128 [R41], desc[UR12][R28.64], P1 ;\n"
        '\t//## File "/elsewhere/numba/other.py", line 9\n'
        "        /*0020*/                   HMMA.16816.F32 R12, R24.reuse, R20, R12 ;\n.L_x_1:\n"
    )
    lines = kernel_code.parse_sass(text, "/here/minfer/cuda/gemm.py")
    assert [(x.source, x.opcode) for x in lines] == [(7, "LDGSTS"), (None, "HMMA"), (None, "")]


class TestDifference:
    def test_registers_do_not_count(self):
        def code(*texts):
            lines = tuple(Line(text, 5) for text in texts)
            return kernel_code.Listing("k [c]", "sm_90a", "k.py", 1, ("def k():",), (), lines, 8)

        a = code("LDSM.16.M88.4 R4, [R2]", "HMMA.16816.F32 R0, R4, R6, R0", "EXIT")
        b = code("LDSM.16.M88.4 R8, [R9]", "HMMA.16816.F32 R1, R2, R3, R1", "@P0 BRA 0x10", "EXIT")
        assert difference(a, a) == [Change(" ", x) for x in ("LDSM.16.M88.4", "HMMA.16816.F32", "EXIT")]
        assert [change for change in difference(a, b) if change.sign != " "] == [Change("+", "@P0 BRA")]

    def test_it_rebuilds_both_sides(self, codes, line):
        changes = difference(*codes, line)
        for code, gone in zip(codes, "+-", strict=True):
            kept = [change.text for change in changes if change.sign != gone]
            assert len(kept) == code.by_line()[line]


class TestView:
    def test_the_picture_holds_its_data(self, codes, line, sound):
        picture = sound(draw_classes(codes, line))
        own = [row for row in picture.rows if row["of"] == f"line {line}" and row["class"] == "tensor cores"]
        assert list(own[0].values())[2:] == [code.counts(line)["tensor cores"] for code in codes]

    def test_columns_are_linked_by_line(self, codes, line):
        html = code_html(codes[0], line)
        assert f".minfer-code:has(.l{line}:hover) .l{line}" in html
        assert html.count(f'class="l{line}"') == 1 + len(codes[0].of("ptx", line)) + len(
            codes[0].of("sass", line)
        )
        assert "EXIT" not in html and "EXIT" in code_html(codes[0], line, whole=True)

    def test_a_line_without_code_says_so(self, codes):
        assert code_html(codes[0], codes[0].first + 1).count("nothing of its own") in (1, 2)


ANSWERS = """
import json, sys
from minfer.lab.compile_worker import compile_described
request = json.load(sys.stdin)
if request["fields"]["tile_k"] == 32:
    print(json.dumps({"error": "the tile is refused: use 16"}))
else:
    print(json.dumps(compile_described(request)))
"""


def until(true, seconds=120):
    """Wait for what another thread will show."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


class TestWidget:
    def test_configs_are_compared_and_a_failure_is_a_sentence(self, line):
        worker = BackgroundCompiler(
            "minfer.cuda.gemm:make_gemm", delay=0.01, command=(sys.executable, "-c", ANSWERS), listing=True
        )
        configs = {**CONFIGS, "refused": GemmConfig(32, 32, 32, warps=4)}
        view = KernelView(worker, configs, line)
        assert "multiply_k16" in view.panel.value and "HMMA" in view.panel.value
        assert view.controls["line"].min < line <= view.controls["line"].max
        view.set(against="TM=64")
        until(lambda: "→" in view.panel.value)
        assert len(view.report.listings) == 2 and "+ 32x64x16" in view.panel.value
        view.set(line=view.controls["line"].min)
        assert view.picture.alt.endswith(f"line {view.controls['line'].min}")
        view.set(against="", config="refused")
        until(lambda: "the tile is refused: use 16" in view.panel.value)
        view.set(config="TM=32")
        assert "HMMA" not in view.panel.value and len(view.report.listings) == 1
