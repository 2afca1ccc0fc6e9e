"""The decode GEMV of sm_90 in the simulator: sources, epilogues, teams, ragged rows and rings."""

import numpy as np
import pytest

from minfer.cuda.gemv import GemvStreamConfig, GemvTwoConfig
from minfer.cuda.kernel import ConfigRefused
from tests.cuda.gemv_cases import stream_case, two_case


@pytest.mark.parametrize("format", ["Q4_K", "Q6_K"])
@pytest.mark.parametrize(
    ("dim", "od", "grid", "options"),
    [
        (256, 1, 1, {"warps": 1, "rows": 1, "slots": 2}),
        (256, 9, 1, {"warps": 1, "rows": 8, "slots": 1}),
        (256, 9, 1, {"warps": 2, "rows": 6, "slots": 1, "pairs": True}),
        (512, 7, 2, {"warps": 2, "rows": 2, "slots": 2, "addend": True, "ahead": 1, "late": True}),
        (768, 5, 1, {"warps": 2, "rows": 2, "slots": 1, "source": "norm", "pairs": True}),
        (
            256,
            64,
            3,
            {
                "warps": 2,
                "rows": 2,
                "slots": 1,
                "source": "norm",
                "pairs": True,
                "records": True,
                "chained": True,
            },
        ),
        (1280, 7, 2, {"warps": 2, "team": 2, "rows": 2, "addend": True, "chained": True}),
        (512, 5, 1, {"warps": 4, "team": 2, "rows": 3, "slots": 1}),
        (1280, 5, 1, {"warps": 2, "team": 2, "rows": 2, "source": "norm", "pairs": True}),
        (512, 64, 2, {"warps": 2, "team": 2, "rows": 4, "records": True}),
    ],
)
def test_sources_and_epilogues(format, dim, od, grid, options):
    stream_case(GemvStreamConfig(format, dim, **options), od, grid).run_simulated()


def test_two_formats():
    half = {"dim": 512, "source": "norm", "warps": 2, "slots": 1, "chained": True}
    config = GemvTwoConfig(
        GemvStreamConfig("Q4_K", rows=3, **half), GemvStreamConfig("Q6_K", rows=2, team=2, **half)
    )
    two_case(config, 13, 5, sms=3).run_simulated()
    config = GemvTwoConfig.for_shapes("Q4_K", 4096, "Q6_K", 512, 3584, "norm")
    assert (config.upper.warps, config.lower.team) == (12, 2)
    assert config.split(4096, 512) == 112
    with pytest.raises(ConfigRefused, match="the same"):
        GemvTwoConfig(GemvStreamConfig("Q4_K", 512), GemvStreamConfig("Q6_K", 768))


def test_more_blocks_than_outputs():
    stream_case(GemvStreamConfig("Q4_K", 256, warps=2, rows=1, source="norm"), 3, grid=5).run_simulated()
    with pytest.raises(ConfigRefused, match="3 outputs, a turn has 4"):
        GemvStreamConfig("Q4_K", 256, rows=4).grid(3)


@pytest.mark.parametrize("seed", [1, 2])
def test_any_thread_order_gives_the_same(seed):
    """Arbitrary orders and early copies: a missing wait or barrier would show."""
    config = GemvStreamConfig("Q6_K", 512, warps=2, team=2, rows=1, slots=2, source="records")
    case = stream_case(config, 9, grid=1)
    case.run_simulated()
    expected = case.results["y"]
    case.run_simulated(seed=seed)
    np.testing.assert_array_equal(case.results["y"], expected)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"format": "Q4_0", "dim": 256}, "Q4_0"),
        ({"format": "Q4_K", "dim": 300}, "300"),
        ({"format": "Q4_K", "dim": 512, "team": 3}, "team=3"),
        ({"format": "Q4_K", "dim": 512, "pairs": True, "rows": 3}, "rows=3"),
        ({"format": "Q4_K", "dim": 512, "pairs": True, "addend": True}, "no addend"),
        ({"format": "Q4_K", "dim": 512, "warps": 4, "team": 4}, "4 warps share rows of 2"),
        ({"format": "Q4_K", "dim": 18944}, "more warps share"),
        ({"format": "Q4_K", "dim": 3584, "source": "norm", "warps": 2}, "rows=|warps"),
        ({"format": "Q4_K", "dim": 3584, "rows": 8, "slots": 2}, "the limit is 232448"),
    ],
)
def test_refusals_name_the_number(fields, says):
    with pytest.raises(ConfigRefused, match=says):
        GemvStreamConfig(**fields)


def test_configs_for_shapes():
    """What the 7B's matrices get: two blocks an SM, nearly all lanes at work."""
    for format, dim in (("Q4_K", 3584), ("Q4_K", 18944), ("Q6_K", 3584), ("Q6_K", 18944)):
        config = GemvStreamConfig.for_shape(format, dim, 3584, "norm" if dim == 3584 else "records")
        assert 60_000 < config.shared_bytes <= 113 * 1024
        assert config.units / (config.team * config.steps * config.across) > 0.85
    for dim in range(256, 32768 + 1, 256):
        config = GemvStreamConfig.for_shape("Q4_K", dim, 1000)
        assert config.threads <= 512
