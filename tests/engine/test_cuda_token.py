"""One kernel a token in the engine: what stands in its way is told, and leaves nothing behind."""

import pytest

from minfer.cuda.kernel import CompileError
from minfer.engine.cuda.backend import CudaBackend
from minfer.engine.cuda.devices import DryDevice
from minfer.engine.cuda.routes import Route
from minfer.engine.errors import InputError
from minfer.engine.session import Session
from minfer.model.model import Model
from tests.engine.conftest import DATA


@pytest.fixture(scope="module")
def model() -> Model:
    return Model.load(DATA / "qwen2-k.gguf")


class Spilling(DryDevice):
    """Its compiler does not take the token kernel."""

    def load(self, kernel):
        if kernel.name == "decode_token":
            raise CompileError(kernel.name, "a config", self.arch, "spills")


class Broken(DryDevice):
    """Its driver does not launch the token kernel."""

    def launch(self, kernel, grid, *args, pdl=False):
        if kernel.name == "decode_token":
            raise RuntimeError("no launch")
        super().launch(kernel, grid, *args, pdl=pdl)


def test_what_does_not_compile_is_told_and_replaced(model):
    device, lines = Spilling(), []
    backend = CudaBackend("auto", device, lines.append)
    session = Session(model, backend, n_ctx=32, chunk=8)
    assert "decode takes one kernel an operation; decode_token [a config] for sm_90a: spills" in lines
    assert backend.settings()["decode"] == "one kernel an operation"
    device.launches.clear()
    session.forward([1])
    names = [kernel.name for kernel in device.launches]
    assert "decode_token" not in names and "gemv" in names


def test_a_launch_that_fails_leaves_nothing_for_the_next_prompt(model):
    session = Session(model, CudaBackend("auto", Broken(), lambda line: None), n_ctx=32, chunk=8)
    with pytest.raises(RuntimeError, match="no launch"):
        session.forward([1])
    session.reset()
    session.forward(range(6))


def test_a_step_of_the_ladder_is_named_in_records(model):
    for step, says in (("tags", "one kernel a token, tags"), (None, "one kernel an operation")):
        backend = CudaBackend(Route("f16", token_kernel=step), DryDevice(), lambda line: None)
        Session(model, backend, n_ctx=32, chunk=8)
        assert backend.settings()["decode"] == says
    with pytest.raises(InputError, match="token_kernel='tag': choose one of barriers, "):
        Route("f16", token_kernel="tag")
