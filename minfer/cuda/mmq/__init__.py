"""MMQ: matrix products on int8 tensor cores straight from quantized blocks (seed 003).

The weights stay as the file has them; the activations are int8 a chunk of 32 (pad40). `MmqConfig` names a
variant, `mmq` makes its kernel, `minfer.cuda.mmq.reference` computes what it must give.
"""

from minfer.cuda.mmq.config import CHUNK_BYTES, WEIGHT_TYPES, MmqConfig
from minfer.cuda.mmq.kernel import mmq, shipped
from minfer.cuda.mmq.ladder import ladder, shipped_configs, tried
from minfer.cuda.mmq.variants import fast, large, narrow, r1, stream, wide

__all__ = [
    "CHUNK_BYTES",
    "WEIGHT_TYPES",
    "MmqConfig",
    "fast",
    "ladder",
    "large",
    "mmq",
    "narrow",
    "r1",
    "shipped",
    "shipped_configs",
    "stream",
    "tried",
    "wide",
]

KERNELS = ("mmq",)
