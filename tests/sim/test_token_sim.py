"""The token kernel in the simulator: a model of two layers, blocks that wait for each other."""

import pytest

from minfer.cuda.attention import AttentionStepConfig
from minfer.cuda.token import TokenConfig
from tests.cuda.token_cases import token_case


def small(heads=2, kv_heads=1, head_dim=128, bias=True, splits=2, **fields):
    attention = AttentionStepConfig(heads, kv_heads, head_dim, head_dim, bias=bias, splits=splits)
    return TokenConfig(attention, **{"hidden": 256, "ffn": 512, "blocks": 2, "warps": 2} | fields)


@pytest.mark.parametrize(
    ("config", "formats", "position"),
    [
        (small(entries=7), [("Q6_K", "Q4_K")], 5),
        (small(entries=12, blocks=3, warps=3), [("Q4_K", "Q6_K"), ("Q6_K", "Q4_K")], 0),
    ],
    ids=str,
)
def test_whole_models(config, formats, position):
    token_case(config, formats, position=position).run_simulated()
