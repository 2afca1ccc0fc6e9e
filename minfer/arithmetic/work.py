"""The work of a transformer, from its shape alone: MACs of a prefill by class, bytes of a decoded token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from minfer.arithmetic.counts import check_counts
from minfer.arithmetic.ledger import bits_a_weight

MATRICES = ("q", "k", "v", "o", "gate", "up", "down")
"""The weight matrices of one layer."""

CLASSES = {
    "gate+up": ("gate", "up"),
    "down": ("down",),
    "q+o": ("q", "o"),
    "k+v": ("k", "v"),
}
"""Classes of prefill GEMMs, as the wall decomposition charges them (seed 002)."""


@dataclass(frozen=True)
class ModelShape:
    """A decoder's dimensions, as its config gives them."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int

    def matrix(self, name: str) -> tuple[int, int]:
        """(output, input) dimensions of one of `MATRICES`, or of "lm_head".

        Raises:
            KeyError: no such matrix.
        """
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return {
            "q": (q, self.hidden),
            "k": (kv, self.hidden),
            "v": (kv, self.hidden),
            "o": (self.hidden, q),
            "gate": (self.ffn, self.hidden),
            "up": (self.ffn, self.hidden),
            "down": (self.hidden, self.ffn),
            "lm_head": (self.vocab, self.hidden),
        }[name]

    def weights(self, *names: str) -> int:
        """Number of weights in the named matrices of one layer (all of them by default)."""
        return sum(od * id for od, id in map(self.matrix, names or MATRICES))


QWEN25_7B = ModelShape(layers=28, hidden=3584, heads=28, kv_heads=4, head_dim=128, ffn=18944, vocab=152064)


def qwen25_7b_q4_k_m() -> dict[str, list[str]]:
    """The quant type of every matrix of Qwen2.5-7B Q4_K_M: a list by layer for each matrix, one entry for
    the lm_head.

    llama.cpp gives attn_v and ffn_down of the first and last eighth of the layers, and of every third
    between, to Q6_K.
    """
    layers = QWEN25_7B.layers
    eighth = layers // 8
    better = {i for i in range(layers) if i < eighth or i >= 7 * layers // 8 or (i - eighth) % 3 == 2}
    types = {name: ["Q4_K"] * layers for name in MATRICES}
    for name in ("v", "down"):
        types[name] = ["Q6_K" if i in better else "Q4_K" for i in range(layers)]
    return {**types, "lm_head": ["Q6_K"]}


def prefill_gmac(shape: ModelShape, nt: int, *, tail: bool = True) -> dict[str, float]:
    """GMAC of a prefill of `nt` tokens from an empty context, by class ("gate+up", "down", "q+o", "k+v",
    "attention", "lm_head").

    With `tail`, what only the last token's logits need runs once: the last layer past its K and V, and the
    lm_head, at nt = 1 (seed 002: "27 full layers + one nt=1 tail"). Without it every position goes through
    everything.

    Raises:
        ValueError: nt below 1.
    """
    check_counts(1, nt=nt)
    full = shape.layers - 1 if tail else shape.layers
    rows = full * nt + (1 if tail else 0)
    work = {
        name: shape.weights(*matrices) * (shape.layers * nt if name == "k+v" else rows) / 1e9
        for name, matrices in CLASSES.items()
    }
    pairs = full * nt * (nt + 1) / 2 + (nt if tail else 0)
    work["attention"] = 2 * shape.heads * shape.head_dim * pairs / 1e9
    work["lm_head"] = shape.weights("lm_head") * (1 if tail else nt) / 1e9
    return work


def layer_gmac(shape: ModelShape, nt: int) -> float:
    """GMAC of one layer's weight matrices over `nt` tokens."""
    return shape.weights() * nt / 1e9


def decode_bytes(
    shape: ModelShape, types: Mapping[str, list[str]], context: int = 0, kv_bytes: int = 2
) -> float:
    """Bytes that one decoded token reads: every weight once, and the K and V of `context` tokens.

    `types` is laid out as by `qwen25_7b_q4_k_m`; `kv_bytes` is the size of a cached element.
    """
    layers = sum(shape.weights(name) * bits_a_weight(quant) / 8 for name in MATRICES for quant in types[name])
    head = shape.weights("lm_head") * bits_a_weight(types["lm_head"][0]) / 8
    cache = 2 * shape.layers * context * shape.kv_heads * shape.head_dim * kv_bytes
    return layers + head + cache
