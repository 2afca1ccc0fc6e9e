"""Products of resident tiles in the simulator."""

import pytest

from minfer.cuda.resident import ResidentConfig
from minfer.cuda.trace import Trace, check
from tests.cuda.resident_cases import resident_case


@pytest.mark.parametrize(
    ("config", "k_tiles"),
    [
        (ResidentConfig(tile_m=16, stages=3), 1),
        (ResidentConfig(tile_m=16, stages=3), 10),
        (ResidentConfig(256, 32, 2), 3),
        (ResidentConfig(tile_m=32, stages=2, dtype="s8"), 5),
        (ResidentConfig(stages=2, instruction="mma.sync"), 3),
        (ResidentConfig(stages=3, dtype="s8", instruction="mma.sync"), 4),
    ],
    ids=str,
)
def test_every_block_has_the_sums_of_the_last_time(config, k_tiles):
    resident_case(config, k_tiles).run_simulated()


@pytest.mark.parametrize("instruction", ["wgmma", "mma.sync"])
def test_no_races(instruction):
    trace = Trace()
    resident_case(ResidentConfig(stages=2, instruction=instruction), 3, blocks=1).run_simulated(trace=trace)
    assert check(trace) == []
