"""One token's products straight from quantized blocks, or from blocks repacked at load time."""

from minfer.cuda.gemv.config import SHARED_LIMIT, GemvConfig
from minfer.cuda.gemv.kernel import KERNELS, PLANES_7B, gemv, shipped

__all__ = ["KERNELS", "PLANES_7B", "SHARED_LIMIT", "GemvConfig", "gemv", "shipped"]
