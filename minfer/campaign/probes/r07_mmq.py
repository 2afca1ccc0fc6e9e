"""Seed 003, r7-r8: products on raw quantized bytes, and a prefetch for attention."""

from __future__ import annotations

from minfer.arithmetic.devices import DEVICES
from minfer.arithmetic.ledger import bits_a_weight
from minfer.arithmetic.reference import figure
from minfer.campaign.gates import Parity, SameOutputs, SameTokens
from minfer.campaign.probe import Prediction, Probe
from minfer.campaign.reasons import by_format, fits_here, other_format
from minfer.campaign.workloads import Attention, Mmq, Quantize
from minfer.campaign.workloads.attention import STEPS
from minfer.cuda.mmq import MmqConfig, narrow, r1, wide
from minfer.cuda.quantize import QuantizePad40Config

GB10, H200 = DEVICES["gb10"], DEVICES["h200"]


def _raw() -> Prediction:
    old, new = r1(), narrow()
    text = (
        f"R1 writes 32 bytes of words for 18 bytes of nibbles and scales, between two barriers; raw "
        f"staging is cp.async alone. Shared memory {old.shared_bytes:,} -> {new.shared_bytes:,} bytes. The "
        "products have nearly all of the MMQ wall: their gain is the wall's."
    )
    return Prediction(None, text)


def _depth(shallow: MmqConfig, deep: MmqConfig) -> Prediction:
    text = (
        f"Half as many k-tiles and barriers; {shallow.shared_bytes:,} -> {deep.shared_bytes:,} bytes of "
        f"shared memory, {GB10.shared_per_sm // (deep.shared_bytes + 1024)} block an SM on a GB10, "
        f"{H200.shared_per_sm // (deep.shared_bytes + 1024)} on an H200."
    )
    return Prediction(None, text)


def _quantize() -> Prediction:
    ms, wall = figure("003", "quantize.before").value, figure("003", "mmq.wall").value
    return Prediction(
        1 / (1 - ms / 1e3 / wall) - 1,
        f"The pass took {ms:g} ms of a {wall:g} s prefill on the GB10: groundwork, flat until the products "
        "shrink. 16-byte loads, a tree of maxima and packed stores; the same bits.",
    )


def _wide(kd: int) -> Prediction:
    config = wide(kd=kd)
    refused = config.refused(GB10)
    nibbles = bits_a_weight("Q4_K")
    text = (
        f"A tile of 128 tokens reads each weight ({nibbles:g} bits) half as often. {config.shared_bytes:,} "
        f"bytes of shared memory: {'over the cap of a GB10' if refused else 'fits a GB10'}, "
        f"{H200.shared_per_sm // (config.shared_bytes + 1024)} block(s) an SM on an H200."
    )
    return Prediction(None, text)


def _prefetch() -> Prediction:
    sharing = figure("003", "gqa.sharing").value
    text = (
        f"{sharing:g} query heads read the same KV rows; the first brings a row into L2 and the others find "
        "it. There is no DRAM latency to hide: nothing to gain."
    )
    return Prediction(0.0, text)


PROBES = [
    Probe(
        name="mmq-raw",
        title="Raw bytes in shared memory instead of expanded words",
        hypothesis="Staging without arithmetic overlaps; unpacking hides beside the tensor cores.",
        prediction=_raw,
        workload=Mmq(),
        baseline=r1(),
        variant=narrow(),
        labels=("R1, words", "raw bytes"),
        reason=by_format,
        mechanism="Staging is cp.async alone, and no thread waits for others to expand words.",
        retry="Blocks whose raw words are not aligned, expanded once or aligned while they are staged.",
    ),
    Probe(
        name="mmq-kd8",
        title="k-tiles of 8 chunks instead of 4",
        hypothesis="Deeper k-tiles halve the barriers; raw staging leaves nothing else to pay.",
        prediction=lambda: _depth(narrow(kd=4), narrow()),
        workload=Mmq(),
        baseline=narrow(kd=4),
        variant=narrow(),
        labels=("KD=4", "KD=8"),
        mechanism="Fewer barriers a chunk, and no super-block is staged twice.",
        retry="A layout that stages half a super-block.",
    ),
    Probe(
        name="quantize-rebuild",
        title="The quantize pass: tree of maxima, packed stores",
        hypothesis="A serial maximum of 32 is bound by latency, single-byte stores by transactions.",
        prediction=_quantize,
        workload=Quantize(),
        baseline=QuantizePad40Config(form="serial"),
        variant=QuantizePad40Config(form="tree"),
        labels=("serial", "tree"),
        gates=(Parity(), SameOutputs(0.0), SameTokens()),
        mechanism="Wider loads and stores and a shorter chain; the same bits.",
        retry="A chunk spread over lanes, so that a warp's requests are contiguous.",
    ),
    Probe(
        name="mmq-wide-kd4",
        title="Tiles of 128 tokens, KD=4",
        hypothesis="Half the re-reads of the weights, twice the mma for every fragment.",
        prediction=lambda: _wide(4),
        workload=Mmq(),
        baseline=narrow(),
        variant=wide(kd=4),
        labels=("narrow KD=8", "wide KD=4"),
        reason=other_format,
        mechanism="The re-reads hit L2; what bounds is the work of every 32-value chunk.",
        retry="Weights that do not stay in L2 between the blocks that share them.",
    ),
    Probe(
        name="mmq-wide-kd8",
        title="Tiles of 128 tokens, KD=8",
        hypothesis="The wide tile at the depth that pays for the narrow one.",
        prediction=lambda: _wide(8),
        workload=Mmq(),
        baseline=narrow(),
        variant=wide(kd=8),
        labels=("narrow KD=8", "wide KD=8"),
        reason=fits_here,
        mechanism="The depth that a block of the seed's GPU could not hold.",
        retry="Another amount of shared memory a block.",
    ),
    Probe(
        name="fa-l2-prefetch",
        title="The next KV tile prefetched into L2",
        hypothesis="The single-buffered staging waits for DRAM; touching the next tile early hides it.",
        prediction=_prefetch,
        workload=Attention(),
        baseline=STEPS["P5.3"],
        variant=STEPS["P5.3, L2 prefetch"],
        labels=("no prefetch", "L2 prefetch"),
        mechanism="The tiles lie in L2 already: seven query heads share them.",
        retry="KV tiles that leave L2: much longer contexts, or less sharing of KV heads.",
    ),
]
