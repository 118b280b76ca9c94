"""Ollama's own client: `/api/...`."""

from __future__ import annotations

from typing import Any, Literal

import ollama
import pytest
from pydantic import BaseModel, ConfigDict

from harness import PATIENCE, Server

MESSAGES: list[dict[str, Any]] = [{"role": "user", "content": "Tell me a story about a fox."}]
OPTIONS: dict[str, Any] = {"num_predict": 16, "temperature": 0}


class Animal(BaseModel):
    # Without this the schema allows more fields, and a small model may write them forever.
    model_config = ConfigDict(extra="forbid")

    kind: Literal["fox", "bird"]
    tame: bool


def weather(city: str) -> str:
    """Tells the weather of a city.

    Args:
        city: The city.
    """
    return f"sunny in {city}"


def test_models(ollama_client: ollama.Client) -> None:
    assert [model.model for model in ollama_client.list().models] == ["demo"]
    shown = ollama_client.show("demo")
    assert shown.details is not None and shown.details.family == "gemma3"
    ollama_client.generate("demo", "Hi", options=OPTIONS)
    assert [model.model for model in ollama_client.ps().models] == ["demo"]


def test_chats(ollama_client: ollama.Client) -> None:
    whole = ollama_client.chat("demo", MESSAGES, options=OPTIONS)
    assert (whole.done, whole.done_reason, whole.eval_count) == (True, "length", 16)
    assert whole.message.role == "assistant" and whole.message.content
    assert whole.total_duration and whole.eval_duration and whole.prompt_eval_count
    parts = list(ollama_client.chat("demo:latest", MESSAGES, options=OPTIONS, stream=True))
    assert "".join(part.message.content or "" for part in parts) == whole.message.content
    assert [part.done for part in parts].count(True) == 1 and parts[-1].done


def test_generation(ollama_client: ollama.Client) -> None:
    question = MESSAGES[0]["content"]
    whole = ollama_client.generate("demo", question, options=OPTIONS)
    assert whole.response == ollama_client.chat("demo", MESSAGES, options=OPTIONS).message.content
    parts = ollama_client.generate("demo", question, options=OPTIONS, stream=True)
    assert "".join(part.response for part in parts) == whole.response
    assert ollama_client.generate("demo", question, system="Be kind.", options=OPTIONS).response
    assert ollama_client.generate("demo", "Once upon", raw=True, options=OPTIONS).response
    assert ollama_client.generate("demo", "").done_reason == "load"


def test_options(ollama_client: ollama.Client) -> None:
    hot = OPTIONS | {"temperature": 1.5}
    texts = [ollama_client.generate("demo", "Hi", options=hot | {"seed": seed}).response for seed in (1, 2, 1, 2)]
    assert texts[:2] == texts[2:]
    whole = ollama_client.generate("demo", "Hi", options=OPTIONS).response
    word = whole.split(" ")[3]
    cut = ollama_client.generate("demo", "Hi", options=OPTIONS | {"stop": [word]})
    assert (cut.response, cut.done_reason) == (whole[: whole.index(word)], "stop")
    more = OPTIONS | {"top_k": 5, "top_p": 0.9, "min_p": 0.1, "repeat_penalty": 1.1, "num_ctx": 512}
    assert ollama_client.generate("demo", "Hi", options=more, keep_alive="5m").response


def test_structured_output(ollama_client: ollama.Client) -> None:
    options = OPTIONS | {"num_predict": 200}
    answer = ollama_client.chat("demo", MESSAGES, options=options, format=Animal.model_json_schema())
    assert Animal.model_validate_json(answer.message.content or "")
    text = ollama_client.generate("demo", "Hi", options=options, format=Animal.model_json_schema()).response
    assert Animal.model_validate_json(text)


def test_tools_are_described_and_answered(ollama_client: ollama.Client) -> None:
    # The dialect cannot demand a call, and the small model makes none by itself: what is tested is that both sides' forms
    # are read.
    plain = ollama_client.chat("demo", MESSAGES, options=OPTIONS)
    told = ollama_client.chat("demo", MESSAGES, options=OPTIONS, tools=[weather])
    assert (told.prompt_eval_count or 0) > (plain.prompt_eval_count or 0)
    call = {"function": {"name": "weather", "arguments": {"city": "Oslo"}}}
    turns = [
        *MESSAGES,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_name": "weather", "content": "sunny"},
    ]
    assert ollama_client.chat("demo", turns, options=OPTIONS, tools=[weather]).done


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"model": "nobody"}, 404),
        ({"options": {"temperature": "hot"}}, 400),
        ({"messages": [{"role": "user", "content": "Hi", "images": ["AAAA"]}]}, 400),
        ({"messages": [{"role": "user", "content": "long " * 3000}]}, 400),
        ({"format": {"type": "thing"}}, 400),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_errors(ollama_client: ollama.Client, fields: dict[str, Any], status: int, stream: bool) -> None:
    with pytest.raises(ollama.ResponseError) as caught:
        answer = ollama_client.chat(**({"model": "demo", "messages": MESSAGES} | fields), stream=stream)
        list(answer)
    assert caught.value.status_code == status and caught.value.error


def test_what_the_server_has_not(ollama_client: ollama.Client) -> None:
    for call, status in (
        (lambda: ollama_client.push("demo"), 404),
        (lambda: ollama_client.pull("demo"), 403),
        (lambda: ollama_client.delete("demo"), 403),
        (lambda: ollama_client.copy("demo", "other"), 403),
    ):
        with pytest.raises(ollama.ResponseError) as caught:
            call()
        assert caught.value.status_code == status


def test_embeddings(ollama_client: ollama.Client) -> None:
    answer = ollama_client.embed("demo", ["Hi", "Once upon a time"])
    assert len(answer.embeddings) == 2 and answer.prompt_eval_count
    for vector in answer.embeddings:
        assert abs(sum(value * value for value in vector) - 1) < 1e-4


def test_cancellation_in_mid_stream(ollama_client: ollama.Client, server: Server) -> None:
    endless = {"type": "string", "minLength": 5000}
    stream = ollama_client.chat("demo", MESSAGES, options={"num_predict": 900}, format=endless, stream=True)
    for _, _part in zip(range(4), stream, strict=False):
        pass
    assert server.status()["running"] == 1
    stream.close()
    server.wait_idle()
