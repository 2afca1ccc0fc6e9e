"""The kernels of a decode step on a GPU of sm_90: the models' shapes, ragged rows, long contexts."""

import pytest

from minfer.cuda import runtime
from minfer.cuda.attention import AttentionStepConfig
from minfer.cuda.gemv import GemvStreamConfig, GemvTwoConfig
from tests.cuda.attention_cases import step_case
from tests.cuda.gemv_cases import stream_case, two_case

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not runtime.available() or runtime.device().arch != "sm_90a", reason="no GPU of sm_90"
    ),
]


@pytest.mark.parametrize(
    "shape",
    [
        ("Q4_K", 3584, 4608, {"source": "norm"}),
        ("Q4_K", 3584, 3584, {"addend": True}),
        ("Q4_K", 3584, 4097, {"source": "norm", "pairs": True}),
        ("Q4_K", 3584, 18944, {"source": "norm", "pairs": True, "records": True}),
        ("Q4_K", 18944, 3584, {"addend": True}),
        ("Q6_K", 18944, 3584, {"addend": True}),
        ("Q6_K", 3584, 20001, {"source": "norm"}),
    ],
    ids=str,
)
def test_shapes_of_models(shape):
    *sizes, options = shape
    config = GemvStreamConfig.for_shape(*sizes, sms=runtime.device().sms, **options)
    stream_case(config, shape[2]).run_on_gpu()


def test_two_formats():
    config = GemvTwoConfig.for_shapes("Q4_K", 4096, "Q6_K", 512, 3584, "norm", runtime.device().sms)
    two_case(config, 4096, 512, runtime.device().sms).run_on_gpu()


@pytest.mark.parametrize("format", ["Q4_K", "Q6_K"])
@pytest.mark.parametrize("od", [1, 2, 7, 31, 129, 2048])
def test_ragged_rows(format, od):
    for dim, source, pairs in ((256, "records", False), (1024, "norm", True), (5120, "records", False)):
        stream_case(GemvStreamConfig.for_shape(format, dim, od, source, pairs), od).run_on_gpu()


@pytest.mark.parametrize("position", [0, 1, 31, 32, 33, 127, 700, 2048])
def test_attention(position):
    step_case(AttentionStepConfig(28, 4, 128, 128, bias=True, splits=33), position).run_on_gpu()
    step_case(AttentionStepConfig(9, 3, 64, 64, True, splits=5, output="f32"), position).run_on_gpu()
