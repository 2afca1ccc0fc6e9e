"""A whole decode step in one kernel on a GPU of sm_90: small models, several splits, ragged rows."""

import pytest

from minfer.cuda import runtime
from minfer.cuda.token import LAST_STEP, TOKEN_STEPS, TokenConfig
from tests.cuda.token_cases import token_case

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not runtime.available() or runtime.device().arch != "sm_90a", reason="no GPU of sm_90"
    ),
]
MIXED = [("Q6_K", "Q4_K"), ("Q4_K", "Q6_K")]
STEPS = list(dict.fromkeys([next(iter(TOKEN_STEPS)), "tags", LAST_STEP]))


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("position", [0, 1, 31, 127, 400, 2048])
def test_positions(position, step):
    """Seven heads on a kv head, rows of 1792, fewer rows than blocks; up to 33 splits of the cache."""
    blocks = runtime.device().sms
    config = TokenConfig(
        14, 2, 128, 128, 1792, 2560, entries=12, bias=True, blocks=blocks, **TOKEN_STEPS[step]
    )
    token_case(config, MIXED, vocab=1003, position=position).run_on_gpu()


@pytest.mark.parametrize("step", STEPS)
def test_long_rows(step):
    """Rows of 18944 are sliced; heads of 64, interleaved, no bias."""
    blocks = runtime.device().sms
    config = TokenConfig(
        4, 2, 64, 32, 256, 18944, entries=12, interleaved=True, blocks=blocks, **TOKEN_STEPS[step]
    )
    token_case(config, MIXED, vocab=70, position=33).run_on_gpu()
