"""A whole decode step in one kernel (sm_90)."""

from minfer.cuda.kernel import Kernel
from minfer.cuda.token.config import TokenConfig
from minfer.cuda.token.kernel import decode_token
from minfer.cuda.token.steps import LAST_STEP, TOKEN_STEPS

__all__ = ["LAST_STEP", "TOKEN_STEPS", "TokenConfig", "decode_token", "shipped"]


KERNELS = ("decode_token",)


def shipped() -> list[Kernel]:
    """Every config that minfer ships: Qwen2.5-7B Q4_K_M."""
    return [decode_token(TokenConfig(28, 4, 128, 128, 3584, 18944, entries=155, bias=True))]
