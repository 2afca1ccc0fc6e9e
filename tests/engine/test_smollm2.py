"""A real model: SmolLM2-135M-Instruct Q4_1, fetched on first use."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile

import pytest

from minfer.engine.generate import generate
from minfer.engine.perplexity import perplexity
from minfer.engine.sampling import Sampler
from minfer.engine.session import Session
from minfer.model.model import Model

pytestmark = [pytest.mark.slow, pytest.mark.network]

LLAMACPP_PERPLEXITY = [18.5414, 20.5753, 19.5111, 20.3349]  # after chunks 1 to 4 of alice29.txt, context 512


@pytest.fixture(scope="module")
def smollm2(smollm2_path) -> Model:
    return Model.load(smollm2_path)


@pytest.fixture(scope="module")
def alice(tmp_path_factory) -> str:
    """alice29.txt of the Canterbury corpus, as the brotli source package carries it, without its CRs."""
    folder = tmp_path_factory.mktemp("brotli")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:",
               "--dest", str(folder), "brotli==1.2.1"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    archives = list(folder.glob("*.tar.gz"))
    if not archives:
        pytest.skip(f"the brotli source package cannot be fetched: {done.stderr[-300:]}")
    with tarfile.open(archives[0]) as archive:
        (name,) = (n for n in archive.getnames() if re.search(r"/alice29\.txt$", n))
        return archive.extractfile(name).read().decode().replace("\r", "")


def test_the_capital_of_france(smollm2, host):
    ids = smollm2.tokenizer.encode("The capital of France is")
    result = generate(Session(smollm2, host, n_ctx=64), smollm2.tokenizer, ids, 4, Sampler.greedy())
    assert result.text.startswith(" Paris")


def test_perplexity_is_llama_cpps(smollm2, host, alice):
    tokenizer = smollm2.tokenizer
    ids = tokenizer.encode(alice)
    bos_id = tokenizer.bos_id if tokenizer.add_bos else None
    result = perplexity(Session(smollm2, host, n_ctx=512), ids, 512, bos_id, chunks=4)
    assert result.running == pytest.approx(LLAMACPP_PERPLEXITY, rel=0.01)
    assert result.scored_tokens == 4 * 255
