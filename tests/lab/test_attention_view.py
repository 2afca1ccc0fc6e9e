"""Flash attention's steps: residency, tile costs, records beside the seeds' verdicts."""

import pytest

from minfer.arithmetic.devices import GB10, H200
from minfer.arithmetic.reference import figure
from minfer.lab import attention_view
from minfer.lab.attention_widgets import mask_explorer, softmax_explorer, tkv_explorer


def test_shared_memory_is_what_the_seed_audited():
    steps = attention_view.steps()
    for step, key in (("P5.3", "tkv64"), ("TKV=32", "tkv32"), ("FAP2", "register_softmax")):
        assert steps[step].shared_bytes / 1000 == pytest.approx(figure("002", f"fa.{key}.shared").value, 1e-3)


def test_every_step_has_registers_and_a_place():
    rows = attention_view.step_rows([GB10, H200])
    assert [row["step"] for row in rows] == list(attention_view.steps())
    assert all(attention_view.residency(row["step"], d).blocks >= 1 for row in rows for d in (GB10, H200))
    with pytest.raises(KeyError, match="no registers of step 'P9'"):
        attention_view.registers("P9", "sm_90a")


@pytest.mark.parametrize(("step", "arch"), [("TKV=16", "sm_90a"), ("FAP2", "sm_121a")])
def test_the_kept_registers_are_near_what_the_assembler_gives(step, arch):
    """Releases of ptxas differ by a few registers; the blocks an SM must not."""
    from minfer.arithmetic.occupancy import blocks_per_sm
    from minfer.cuda.attention import attention_prefill
    from minfer.cuda.runtime import compile_kernel

    kernel = attention_prefill(attention_view.steps()[step])
    resources = compile_kernel(kernel, arch).resources
    device = {"sm_90a": H200, "sm_121a": GB10}[arch]
    compiled = blocks_per_sm(device, kernel.threads, resources.registers, kernel.shared_bytes)
    assert compiled.blocks == attention_view.residency(step, device).blocks
    assert resources.spill_bytes == 0


def test_a_smaller_tile_wins_a_block_on_one_device_alone():
    held = {d: [attention_view.tile_cost(tkv, "shared", d).held for tkv in (64, 32)] for d in (GB10, H200)}
    assert [o.blocks for o in held[GB10]] == [1, 2]
    assert [o.blocks for o in held[H200]] == [2, 2]
    assert {o.limiter for o in held[H200]} == {"registers"}


def test_halving_the_tile_doubles_the_fixed_cost():
    for softmax in attention_view.STEPS_BY_TILE:
        wide, narrow = (attention_view.tile_cost(tkv, softmax, H200) for tkv in (64, 32))
        assert (narrow.tiles, narrow.barriers) == (2 * wide.tiles, 2 * wide.barriers)
    with pytest.raises(KeyError):
        attention_view.tile_cost(128, "shared", H200)


@pytest.mark.parametrize("softmax", attention_view.STEPS_BY_TILE)
def test_tile_pictures(softmax, sound):
    rows = sound(attention_view.draw_tile_costs(softmax, GB10)).rows
    assert [row["TKV"] for row in rows] == [16, 32, 64]


def test_the_record_has_every_step(sound):
    rows = sound(attention_view.draw_measured(attention_view.newest_record())).rows
    assert [row["step"] for row in rows] == list(attention_view.steps())
    # ms and TFLOPS are of one and the same work.
    work = [row["ms"] * row["TFLOPS"] for row in rows]
    assert max(work) / min(work) < 1.01


def test_verdicts():
    rows = {row["step"]: row for row in attention_view.verdict_rows(attention_view.newest_record())}
    assert rows["P5.0"]["time, gb10"] == f"x{4.24 / 10.06:.2f}"
    assert (rows["TKV=32"]["time, gb10"], rows["TKV=32"]["seed"]) == ("x0.93", "REVERTED")
    turned = {step for step, row in rows.items() if row["faster there, slower here"]}
    assert turned == {"TKV=32", "TKV=32, padded scores"}


def test_widgets(sound):
    softmax, mask, tile = softmax_explorer(), mask_explorer(), tkv_explorer()
    softmax.set(tkv=12, seen=12)
    assert len(softmax.report) == 1
    assert "lets columns through" in mask.panel.value
    mask.set(tkv=64)
    assert "Nothing slips through" in mask.panel.value
    tile.set(softmax="register", device="h200", tkv=64)
    assert "52,224" in tile.panel.value
    for explorer in (softmax, mask, tile):
        sound(explorer.picture)
