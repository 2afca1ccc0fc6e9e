"""Causal GQA prefill attention over an f16 KV cache, on mma.sync: every softmax and P.V variant of the seeds.

Scores stay f32 from the tensor cores to the exponential, so that biases as large as Qwen2's, whose scores
overflow f16, cost nothing; P is in [0, 1] and goes to f16 for its product with V, the sums are f32.
"""

from __future__ import annotations

from minfer.cuda.attention.config import AttentionConfig, seed_steps
from minfer.cuda.attention.registers import prefill_registers
from minfer.cuda.attention.shared import prefill_shared
from minfer.cuda.kernel import Argument, Kernel


def attention_prefill(config: AttentionConfig) -> Kernel:
    """out[t, h] = softmax(scale * q[t, h] K^T) V over the cache rows that query t sees.

    Arguments: q [nt, heads * head_dim] f16 or f32, k_cache and v_cache f16 [capacity, kv_heads * head_dim],
    out [nt, heads * head_dim] f16 or f32, nt int32, q_offset int32 (position of query 0: a prompt in chunks
    goes onto the filled cache), kv_end int32 (cache rows stored: rows from there on are never used; at
    least 1), scale float32 (usually 1 / sqrt(head_dim)). Query t sees rows 0 .. min(q_offset + t, kv_end -
    1).

    Seeds 000 (P5.0, P5.3) and 002 (TKV, both mask predicates, FAP2); online softmax as in FlashAttention-2
    (Dao 2023).
    """
    make = prefill_registers if config.softmax == "register" else prefill_shared
    dtypes = {"f16": "float16", "f32": "float32"}
    arguments = (
        Argument("q", "in", dtypes[config.query], align=16),
        Argument("k_cache", "in", "float16", align=16),
        Argument("v_cache", "in", "float16", align=16),
        Argument("out", "out", dtypes[config.output], align=8),
        *(Argument(name, "scalar", "int32") for name in ("nt", "q_offset", "kv_end")),
        Argument("scale", "scalar", "float32"),
    )
    return Kernel(
        name="attention_prefill",
        config=config,
        function=make(config),
        threads=config.threads,
        shared_bytes=config.shared_bytes,
        arguments=arguments,
        min_blocks=2,  # the steps differ in shared memory, not in what the register file allows
    )


# Qwen2.5-7B, Qwen2.5-0.5B and SmolLM2-135M.
_SHAPES = ((28, 4, 128), (14, 2, 64), (9, 3, 64))


def shipped() -> list[Kernel]:
    """The seeds' steps at the 7B's shape, and what the engine uses at every model's."""
    kernels = [attention_prefill(config) for config in seed_steps(*_SHAPES[0]).values()]
    for heads, kv_heads, head_dim in _SHAPES[1:]:
        kernels.append(attention_prefill(AttentionConfig(heads, kv_heads, head_dim, stages=2)))
        kernels.append(
            attention_prefill(AttentionConfig(heads, kv_heads, head_dim, 32, "warp_per_row", "shared"))
        )
    return kernels
