"""Decode GEMV straight from quantized blocks: y = dequantize(W) x, one token.

`ring`: every format, from sm_80 on. `stream`: Q4_K and Q6_K on sm_90, with the norm, the quantization, the
activation or the residual addition around the product in the same kernel.
"""

from minfer.cuda.gemv import ring, stream
from minfer.cuda.gemv.ring import GemvConfig, gemv
from minfer.cuda.gemv.stream import gemv_stream, gemv_stream_two
from minfer.cuda.gemv.stream_config import GemvStreamConfig, GemvTwoConfig
from minfer.cuda.kernel import Kernel

__all__ = [
    "GemvConfig",
    "GemvStreamConfig",
    "GemvTwoConfig",
    "gemv",
    "gemv_stream",
    "gemv_stream_two",
    "shipped",
]


def shipped() -> list[Kernel]:
    """Every config that minfer ships."""
    return [*ring.shipped(), *stream.shipped()]
