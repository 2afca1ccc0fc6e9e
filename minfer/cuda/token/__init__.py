"""A whole decode step in one kernel (sm_90)."""

from minfer.cuda.token.config import TokenConfig
from minfer.cuda.token.kernel import decode_token

__all__ = ["TokenConfig", "decode_token"]
