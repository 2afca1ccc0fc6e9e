"""Seed 000, session P5: larger tiles and a rewritten attention; three probes that did not land."""

from __future__ import annotations

from dataclasses import replace

from minfer.arithmetic.devices import DEVICES
from minfer.arithmetic.ledger import GemmTile
from minfer.arithmetic.reference import figure
from minfer.campaign.probe import Prediction, Probe
from minfer.campaign.reasons import same_blocks
from minfer.campaign.statistics import upper_bound
from minfer.campaign.workloads import Attention, Gemm, Passes, PassesConfig
from minfer.campaign.workloads.attention import STEPS
from minfer.cuda.convert import ConvertConfig, StoreKvConfig
from minfer.cuda.gemm import GemmConfig

GEMM_SHARE = figure("002", "wall.share.gemm").value / 100
CONVERT_SHARE = figure("002", "wall.share.convert").value / 100

TM64 = GemmConfig()
TM128 = GemmConfig(tile_m=128)
TM256 = GemmConfig(tile_m=256, warps=16)
K64 = replace(TM128, tile_k=64)
AF32 = replace(TM128, a_source="f32_mirror")


def _pv_tensor_cores() -> Prediction:
    old, new = (figure("000", f"fa.pv_tensor.{when}").value for when in ("before", "after"))
    share = 28 * old / 1e3 / (2048 / figure("000", "prefill.before").value)
    text = (
        f"P.V is half of the attention's FLOP and, on scalar FMAs, most of its time. Attention took {old:g} "
        f"ms a layer of the GB10's prefill, {share:.0%} of the wall; the seed measured {new:g} ms after."
    )
    return Prediction(upper_bound(share), text)


def _tm128() -> Prediction:
    before, after = (GemmTile(tm=tm).bytes_per_kflop for tm in (64, 128))
    text = (
        f"{before:.2f} -> {after:.2f} staged bytes for 1000 FLOP ({after / before - 1:+.0%}), half the "
        f"barriers; GEMMs have {GEMM_SHARE:.0%} of the wall. If staging bounds them, they take "
        f"{after / before:.0%} of their time."
    )
    return Prediction(upper_bound(GEMM_SHARE, after / before), text)


def _k64() -> Prediction:
    old, new = TM128.shared_bytes, K64.shared_bytes
    blocks = [
        f"{key.upper()} {DEVICES[key].shared_per_sm // (old + 1024)} -> "
        f"{DEVICES[key].shared_per_sm // (new + 1024)}"
        for key in ("gb10", "h200")
    ]
    text = (
        f"Half the barriers for every FLOP, the same staged bytes; {old:,} -> {new:,} bytes of shared "
        f"memory, which alone allow these blocks an SM: {', '.join(blocks)}."
    )
    return Prediction(None, text)


def _tm256() -> Prediction:
    before, after = (GemmTile(tm=tm).bytes_per_kflop for tm in (128, 256))
    text = (
        f"{before:.2f} -> {after:.2f} staged bytes for 1000 FLOP ({after / before - 1:+.0%}); "
        f"{TM256.shared_bytes:,} bytes of shared memory and 512 threads a block."
    )
    return Prediction(upper_bound(GEMM_SHARE, after / before), text)


def _af32() -> Prediction:
    narrow, wide = GemmTile(tm=128).a_bytes, GemmTile(tm=128, a_bits=32).a_bytes
    text = (
        f"The convert pass has {CONVERT_SHARE:.0%} of the wall: free, it gives no more. The price: A is "
        f"staged as f32, {narrow:,} -> {wide:,} bytes a k-step, and converted in shared memory."
    )
    return Prediction(upper_bound(CONVERT_SHARE), text)


def _elementwise() -> Prediction:
    text = (
        f"The same bytes in 4 to 8 times fewer transactions. The passes have {CONVERT_SHARE:.0%} of the "
        "wall; free, they give no more."
    )
    return Prediction(upper_bound(CONVERT_SHARE), text)


def _softmax() -> Prediction:
    old, new = (figure("000", f"fa.softmax_pad.{when}").value for when in ("before", "after"))
    wall = 2048 / min(figure("000", "prefill.after").value) + 28 * (old - new) / 1e3
    text = (
        "8 warps share the softmax of 64 rows instead of 2; rows of 272 bytes end an 8-way conflict of "
        f"ldmatrix. Attention had {28 * old / 1e3 / wall:.0%} of the wall: {28 * old:.0f} ms on the GB10, "
        f"{28 * new:.0f} after."
    )
    return Prediction(upper_bound(28 * old / 1e3 / wall), text)


PROBES = [
    Probe(
        name="p5.0-pv-tensor-cores",
        title="P.V on tensor cores",
        hypothesis="P.V, half of the attention's arithmetic, moves from scalar FMAs to tensor cores.",
        prediction=_pv_tensor_cores,
        workload=Attention(),
        baseline=STEPS["before P5"],
        variant=STEPS["P5.0"],
        labels=("P.V scalar", "P.V mma"),
        mechanism="Scalar FMAs run at a small part of the tensor cores' rate.",
        retry="Never: nothing brings the scalar path back.",
    ),
    Probe(
        name="p5.1-vectorized-elementwise",
        title="Vectorised convert and KV store",
        hypothesis="8 (4) elements a thread instead of one: fewer transactions for the same bytes.",
        prediction=_elementwise,
        workload=Passes(),
        baseline=PassesConfig(ConvertConfig(vector=1), StoreKvConfig(vector=1)),
        variant=PassesConfig(ConvertConfig(vector=8), StoreKvConfig(vector=4)),
        labels=("1 element", "8 and 4"),
        mechanism="More bytes in flight for every warp; the passes' share of the wall bounds the gain.",
        retry="A path whose activations pass through memory as f32 more often.",
    ),
    Probe(
        name="p5.2-tm128",
        title="GEMM tiles of 128 outputs",
        hypothesis="TM 64 -> 128: the same A tile feeds twice the mma for every barrier and every byte of A.",
        prediction=_tm128,
        workload=Gemm(),
        baseline=TM64,
        variant=TM128,
        labels=("TM=64", "TM=128"),
        mechanism="Fewer staged bytes and barriers for every FLOP; the tensor cores wait less.",
        retry="Larger tiles yet, where shared memory and registers allow them.",
    ),
    Probe(
        name="p5.3-softmax-padding",
        title="Softmax by all warps, padded rows",
        hypothesis="One warp a row instead of one thread a row; rows of 272 bytes instead of 256.",
        prediction=_softmax,
        workload=Attention(),
        baseline=STEPS["P5.0"],
        variant=STEPS["P5.3"],
        labels=("serial, 256 B", "warp a row, 272 B"),
        mechanism="The serial chain of a row spreads over 32 lanes, and ldmatrix is free of conflicts.",
        retry="Superseded by the softmax in registers.",
    ),
    Probe(
        name="ks64",
        title="k-steps of 64",
        hypothesis="KS 32 -> 64 halves the barriers for every FLOP once more.",
        prediction=_k64,
        workload=Gemm(),
        baseline=TM128,
        variant=K64,
        labels=("KS=32", "KS=64"),
        mechanism="Fewer barriers and deeper staging, as long as several blocks still fit an SM.",
        retry="A device with another amount of shared memory.",
        reason=same_blocks,
    ),
    Probe(
        name="tm256",
        title="GEMM tiles of 256 outputs, 16 warps",
        hypothesis="TM 128 -> 256 cuts the staged bytes for every FLOP again.",
        prediction=_tm256,
        workload=Gemm(),
        baseline=TM128,
        variant=TM256,
        labels=("TM=128", "TM=256"),
        mechanism="16 warps wait at every barrier of a 32-deep k-step, and fewer blocks overlap them.",
        retry="A ring of three stages and k-steps of 64, as the route f16 has.",
    ),
    Probe(
        name="af32",
        title="f32 activations converted inside the GEMM",
        hypothesis="Staging A as f32 and converting it in shared memory saves the convert pass.",
        prediction=_af32,
        workload=Gemm(activations="f32"),
        baseline=TM128,
        variant=AF32,
        labels=("convert pass", "AF32"),
        mechanism="Every block of a column of tiles converts the same A again, between two barriers.",
        retry="Never while the kernels before the GEMM can write f16 themselves.",
        reason=same_blocks,
    ),
]
