"""Ollama's own clients manage models: pull (from a hub on this machine), create, copy, delete, list, show, ps, keep_alive."""

from __future__ import annotations

import datetime
import os
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ollama
import pytest

from harness import DEMO, PATIENCE, SCRATCH, Server, wait_until
from hub import Hub

#: A repository of the hub, and how its model is listed.
MODEL = "owner/Tiny-GGUF"
LISTED = "owner/Tiny-GGUF:Q4_0"
FILE = "tiny-Q4_0.gguf"
OPTIONS = {"num_predict": 4, "temperature": 0}
#: The JavaScript client that the script is written for.
JAVASCRIPT = "ollama@0.6.3"


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub({MODEL: {FILE: DEMO.read_bytes()}}) as running:
        yield running


@pytest.fixture
def library(program: str, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server without models of its own, over an empty store."""
    for name, value in {
        "TRINE_HOME": str(tmp_path / "store"),
        "HF_HOME": str(tmp_path / "cache"),
        "HF_ENDPOINT": hub.url,
    }.items():
        monkeypatch.setenv(name, value)
    for name in ("HF_TOKEN", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with Server(program, name="serve-library") as running:
        yield running


@pytest.fixture
def client(library: Server) -> ollama.Client:
    return ollama.Client(host=library.url, timeout=PATIENCE)


def names(client: ollama.Client) -> list[str | None]:
    return [model.model for model in client.list().models]


def loaded(client: ollama.Client) -> list[str | None]:
    return [model.model for model in client.ps().models]


def test_pull_list_show_delete(client: ollama.Client, hub: Hub) -> None:
    assert names(client) == ["demo"]
    parts = list(client.pull(MODEL, stream=True))
    assert parts[-1].status == "success"
    size = DEMO.stat().st_size
    assert any((part.digest, part.total, part.completed) == (FILE, size, size) for part in parts)
    wait_until("it is listed", lambda: names(client) == ["demo", LISTED])
    (model,) = (model for model in client.list().models if model.model == LISTED)
    assert model.size == size and model.digest and model.modified_at
    shown = client.show(LISTED)
    assert shown.details is not None and shown.details.family == "gemma3" and shown.template
    assert loaded(client) == ["demo"], "describing loads nothing"
    for name in (LISTED, MODEL, "tiny", "Tiny-GGUF:latest"):
        answer = client.generate(name, "Once", options=OPTIONS)
        assert (answer.model, answer.eval_count) == (name, 4)
    assert loaded(client) == ["demo", LISTED]
    assert client.pull(MODEL).status == "success", "again, whole"
    assert hub.asked[f"/{MODEL}/resolve/0123456789abcdef0123456789abcdef01234567/{FILE}"] == 2, "its beginning, then all"
    assert client.delete(MODEL).status == "success"
    assert names(client) == ["demo"] and loaded(client) == ["demo"]
    with pytest.raises(ollama.ResponseError) as caught:
        client.generate("tiny", "Once")
    assert caught.value.status_code == 404


def test_presets(client: ollama.Client) -> None:
    client.pull(MODEL)
    made = client.create(
        "sailor", from_="tiny", system="You are a sailor.", parameters={"num_predict": 3, "stop": ["zzz"], "temperature": 0}
    )
    assert made.status == "success"
    assert [part.status for part in client.create("mate", from_="sailor", stream=True)][-1] == "success"
    assert client.copy("sailor", "cook").status == "success"
    wait_until("they are listed", lambda: {"sailor", "mate", "cook"} <= set(names(client)))
    question = [{"role": "user", "content": "Hi"}]
    plain = client.chat("tiny", question, options=OPTIONS)
    for name in ("sailor", "mate", "cook"):
        answer = client.chat(name, question)
        assert (answer.model, answer.eval_count) == (name, 3)
        assert (answer.prompt_eval_count or 0) > (plain.prompt_eval_count or 0), "the system prompt is there"
    shown = client.show("sailor")
    assert "num_predict 3" in (shown.parameters or "") and "FROM " in (shown.modelfile or "")
    assert loaded(client) == ["demo", LISTED], "all share one model"
    with pytest.raises(ollama.ResponseError) as caught:
        client.delete("sailor")
    assert caught.value.status_code == 409 and "mate stands on it" in caught.value.error
    client.delete("mate")
    client.delete("sailor")
    assert client.chat("cook", question).eval_count == 3
    for wrong in (
        {"model": "x", "from_": "nobody"},
        {"model": "x", "from_": "demo", "template": "{{ .Prompt }}"},
        {"model": "x", "from_": "demo", "parameters": {"mirostat": 2}},
        {"model": "demo", "from_": "tiny"},
        {"model": "x/y/z", "from_": "demo"},
        {"model": "x", "from_": str(DEMO)},
    ):
        with pytest.raises(ollama.ResponseError) as caught:
            client.create(**wrong)
        assert caught.value.status_code in (400, 404) and caught.value.error, wrong


def test_keep_alive(client: ollama.Client) -> None:
    client.generate("demo", "Hi", options=OPTIONS, keep_alive="10m")
    (running,) = client.ps().models
    assert running.expires_at is not None and running.size
    left = running.expires_at - datetime.datetime.now(datetime.timezone.utc)
    assert datetime.timedelta(minutes=8) < left < datetime.timedelta(minutes=11)
    assert client.generate("demo", "", keep_alive=0).done_reason == "unload"
    assert loaded(client) == []
    assert client.chat("demo", [], keep_alive=-1).done_reason == "load"
    (running,) = client.ps().models
    assert running.expires_at is not None and running.expires_at.year > 2900
    client.chat("demo", [{"role": "user", "content": "Hi"}], options=OPTIONS, keep_alive="100ms")
    wait_until("it is unloaded", lambda: loaded(client) == [])


def test_pulls_that_fail(client: ollama.Client) -> None:
    for name, status in (("no/such-repository", 404), ("../x", 404), ("demo", 400), ("gemma3:4c", 404)):
        for stream in (False, True):
            with pytest.raises(ollama.ResponseError) as caught:
                list(client.pull(name, stream=stream))
            assert caught.value.status_code == status and caught.value.error, name


def test_pulls_are_shared_and_cancelled(client: ollama.Client, hub: Hub) -> None:
    hub.pause = 0.2
    stream = client.pull(MODEL, stream=True)
    for part in stream:
        if (part.completed or 0) > 0:
            break
    stream.close()
    wait_until("the look at its beginning and the download are broken off", lambda: hub.broken_off == 2)
    assert names(client) == ["demo"]
    hub.pause = 0.02
    with ThreadPoolExecutor(3) as pool:
        pulls = [pool.submit(client.pull, MODEL) for _ in range(3)]
        assert [pull.result().status for pull in pulls] == ["success"] * 3
    file = f"/{MODEL}/resolve/0123456789abcdef0123456789abcdef01234567/{FILE}"
    assert hub.asked[file] == 3, "a look, one that was broken off, and one that went on from there for all"
    assert client.generate("tiny", "Once", options=OPTIONS).eval_count == 4


@pytest.mark.skipif(shutil.which("node") is None or shutil.which("npm") is None, reason="there is no Node.js")
def test_the_javascript_client(library: Server) -> None:
    folder = SCRATCH / "javascript"
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "node_modules" / "ollama").is_dir():
        command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder), JAVASCRIPT]
        subprocess.run(command, check=True, timeout=300)
    script = folder / "ollama_models.mjs"
    # Packages are looked for beside the script.
    script.write_text((Path(__file__).parent / "ollama_models.mjs").read_text())
    ran = subprocess.run(
        ["node", str(script), library.url, MODEL],
        capture_output=True,
        text=True,
        timeout=PATIENCE * 2,
        env=os.environ,
    )
    assert ran.returncode == 0 and "passed" in ran.stdout, ran.stdout + ran.stderr
