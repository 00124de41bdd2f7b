"""Where a model can come from: a dict, a file, a folder, the catalog, the Hub. The Hub is a server on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from poolplan import ModelSpec, UnsupportedModelError
from poolplan.models.pretrained import catalog
from samples import LLAMA


def test_a_dict_a_file_and_a_folder_are_the_same_model(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    from_dict = ModelSpec.from_pretrained(LLAMA)
    assert from_dict.name == "llama"
    for source in (folder, str(folder), folder / "config.json", str(folder / "config.json")):
        model = ModelSpec.from_pretrained(source)
        assert model.name == "my-model"
        assert model.layers == from_dict.layers


def test_a_folder_says_its_cache_dtype_in_a_file_beside_the_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": {"kv_cache_quant_algo": "FP8"}}))
    assert ModelSpec.from_pretrained(tmp_path).kv_cache_dtype == "fp8_e4m3"


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "7", '"text"', "[" * 100_000, "\x00", '{"a": NaN'], ids=lambda text: text[:8]
)
def test_a_file_that_is_no_json_object_is_refused_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(UnsupportedModelError, match=r"config\.json"):
        ModelSpec.from_pretrained(path)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"\xff\xfe\x00\xd8")
    with pytest.raises(UnsupportedModelError, match=r"config\.json"):
        ModelSpec.from_pretrained(tmp_path)


def test_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=r"has no config\.json"):
        ModelSpec.from_pretrained(tmp_path)


def test_the_catalog_has_well_known_checkpoints_with_their_sources() -> None:
    models = catalog()
    assert len(models) >= 30
    for name, entry in models.items():
        repository, _, path = entry["source"].partition(":")
        assert repository.count("/") == 1 and "@" in repository and path, name
        assert ModelSpec.from_pretrained(name).layers


@pytest.mark.parametrize("name", ["openai/gpt-oss-120b", "gpt-oss-120b", "OpenAI/GPT-OSS-120B", "GPT-oss-120b"])
def test_a_catalog_name_needs_no_organisation_and_no_case(name: str) -> None:
    model = ModelSpec.from_pretrained(name)
    assert (model.name, len(model.layers), model.context_length) == ("openai/gpt-oss-120b", 36, 131_072)


def test_an_unknown_name_suggests_near_ones() -> None:
    with pytest.raises(UnsupportedModelError, match="openai/gpt-oss-120b") as caught:
        ModelSpec.from_pretrained("gpt-oss-120")
    assert caught.value.key == "gpt-oss-120"


@pytest.mark.parametrize("name", ["", "./no/such/folder", "/no/such", "a/b/c", "~"])
def test_what_is_no_name_is_refused_without_asking_the_hub(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnsupportedModelError):
        ModelSpec.from_pretrained(name)


class _Hub(BaseHTTPRequestHandler):
    """The two requests of the client: HEAD for the file's identity, GET for its bytes."""

    files = {
        "/org/model/resolve/main/config.json": json.dumps(LLAMA),
        "/org/model/resolve/v2/config.json": json.dumps(LLAMA | {"num_hidden_layers": 5}),
        "/org/quantised/resolve/main/config.json": json.dumps(LLAMA),
        "/org/quantised/resolve/main/hf_quant_config.json": json.dumps(
            {"quantization": {"kv_cache_quant_algo": "FP8"}}
        ),
    }

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        body = self.files.get(self.path)
        gated = self.path.startswith("/org/gated/")
        known = any(path.startswith(f"/{'/'.join(self.path.split('/')[1:3])}/") for path in self.files)
        self.send_response(401 if gated else 200 if body is not None else 404)
        if gated:
            self.send_header("X-Error-Code", "GatedRepo")
        elif body is None:
            self.send_header("X-Error-Code", "EntryNotFound" if known else "RepoNotFound")
        content = (body or "").encode()
        self.send_header("ETag", f'"{abs(hash(self.path)):040x}"')
        self.send_header("X-Repo-Commit", "0" * 39 + ("2" if "/v2/" in self.path else "1"))
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if with_body:
            self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Stay quiet."""


@pytest.fixture(scope="module")
def hub() -> Iterator[str]:
    """A Hub on this machine."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def ask(hub: str, cache: Path, model: str, revision: str | None = None) -> str:
    """Read a model through the real client, in a process of its own as the client reads its address at import."""
    pytest.importorskip("huggingface_hub")
    script = (
        "import sys; from poolplan import ModelSpec, UnsupportedModelError\n"
        "try:\n"
        "    model = ModelSpec.from_pretrained(sys.argv[1], revision=sys.argv[2] or None)\n"
        "    print(model.name, len(model.layers), model.kv_cache_dtype)\n"
        "except UnsupportedModelError as error:\n"
        "    print('refused:', error)\n"
    )
    environment = os.environ | {
        "HF_ENDPOINT": hub,
        "HF_HOME": str(cache),
        "HF_HUB_OFFLINE": "0",
        "NO_PROXY": "127.0.0.1",
    }
    command = [sys.executable, "-c", script, model, revision or ""]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True, timeout=120
    ).stdout.strip()


def test_a_hub_id_is_read_through_the_client_and_cached(hub: str, tmp_path: Path) -> None:
    assert ask(hub, tmp_path, "org/model") == "org/model 4 bfloat16"
    assert ask("http://127.0.0.1:9", tmp_path, "org/model") == "org/model 4 bfloat16"


def test_a_revision_is_another_file(hub: str, tmp_path: Path) -> None:
    assert ask(hub, tmp_path, "org/model", "v2") == "org/model 5 bfloat16"


def test_the_hub_has_the_file_beside_the_config_too(hub: str, tmp_path: Path) -> None:
    assert ask(hub, tmp_path, "org/quantised") == "org/quantised 4 fp8_e4m3"


@pytest.mark.parametrize("model", ["org/missing", "org/gated", "bad--name/x..y"])
def test_what_the_hub_refuses_is_our_error_with_its_reason(hub: str, tmp_path: Path, model: str) -> None:
    answer = ask(hub, tmp_path, model)
    assert answer.startswith(f"refused: {model} cannot be read from the Hub: ")
    assert "\n" not in answer


def test_no_network_is_our_error(tmp_path: Path) -> None:
    assert ask("http://127.0.0.1:9", tmp_path, "org/model").startswith(
        "refused: org/model cannot be read from the Hub: "
    )


def test_without_the_extra_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UnsupportedModelError, match=r"poolplan\[hub\]"):
        ModelSpec.from_pretrained("org/model")
