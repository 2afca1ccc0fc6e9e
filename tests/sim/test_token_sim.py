"""The token kernel in the simulator: models of one and two layers, blocks that wait for each other."""

import pytest

from minfer.cuda.kernel import ConfigRefused
from minfer.cuda.token import TOKEN_STEPS, TokenConfig
from tests.cuda.token_cases import token_case


def small(heads=2, kv_heads=1, head_dim=128, interleaved=False, bias=True, **fields):
    sizes = {"hidden": 256, "ffn": 512, "blocks": 4, "warps": 2}
    attention = (heads, kv_heads, head_dim, head_dim)
    return TokenConfig(*attention, interleaved=interleaved, bias=bias, **sizes | fields)


@pytest.mark.parametrize(
    ("made", "formats", "position"),
    [
        (small(entries=7, **TOKEN_STEPS["barriers"]), [("Q6_K", "Q4_K")], 5),
        (
            small(entries=12, blocks=3, warps=3, **TOKEN_STEPS["tags"] | {"early": 100, "ahead": 2}),
            [("Q4_K", "Q6_K"), ("Q6_K", "Q4_K")],
            0,
        ),
        (
            small(4, 2, 64, True, False, entries=7, blocks=5, warps=2, ahead=90),
            [("Q6_K", "Q6_K")],
            120,
        ),
        (small(entries=6, blocks=8), [("Q4_K", "Q4_K")], 40),  # one block of them makes no q, k, v, o
    ],
    ids=str,
)
def test_whole_models(made, formats, position):
    token_case(made, formats, position=position).run_simulated()


def test_rows_of_several_warps(monkeypatch):
    """Rows of two blocks of weights by two warps of three: one is left over."""
    monkeypatch.setattr(TokenConfig, "group_units", 1)
    token_case(small(entries=6, warps=3), [("Q4_K", "Q6_K")]).run_simulated()


@pytest.mark.parametrize(("exchange", "early"), [("barrier", 0), ("tags", 50), ("bits", 100)])
def test_threads_in_any_order(exchange, early):
    made = small(entries=7, warps=3, exchange=exchange, early=early)
    token_case(made, [("Q6_K", "Q4_K")]).run_simulated(seed=3)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"hidden": 320}, "rows of 320 weights"),
        ({"hidden": 28928}, "two rows of 28928 weights do not fit"),
        ({"ffn": 256 * 154}, "a row of 39424 weights does not fit"),
        ({"ffn": 256 * 17}, "2 warps for rows of 4352 weights; take at least 3"),
        ({"hidden": 4096, "warps": 2, "blocks": 64}, "64 threads norm 4096"),
        ({"blocks": 3}, "3 blocks of 64 threads add to 256 sums"),
        ({"early": 101}, "early"),
        ({"quiet": 0}, "quiet"),
        ({"blocks": 40, "exchange": "tags"}, "40 blocks for 256 sums, 256 attended, 32 runs"),
        ({"blocks": 1, "warps": 8, "heads": 4, "kv_heads": 2}, "1 blocks for 2 groups"),
        (
            {"ffn": 256 * 150, "warps": 20, "entries": 6000},
            "6000 entries of the schedule .* leave no room for a ring",
        ),
    ],
)
def test_refusals(fields, says):
    with pytest.raises(ConfigRefused, match=says):
        small(**{"entries": 7} | TOKEN_STEPS["barriers"] | fields)
