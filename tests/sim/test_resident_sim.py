"""Products of resident tiles in the simulator."""

import pytest

from minfer.cuda.resident import ResidentConfig
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
