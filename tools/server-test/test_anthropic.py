"""Anthropic's own client: `/v1/messages`."""

from __future__ import annotations

from typing import Any, Literal

import anthropic
import pytest
from anthropic.types import Message
from pydantic import BaseModel

from conftest import KEY
from harness import PATIENCE, Server

MESSAGES: list[dict[str, Any]] = [{"role": "user", "content": "Tell me a story about a fox."}]
TOOL: dict[str, Any] = {
    "name": "weather",
    "description": "Tells the weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


class Animal(BaseModel):
    kind: Literal["fox", "bird"]
    tame: bool


def ask(client: anthropic.Anthropic, **fields: Any) -> Message:
    """A greedy answer of few tokens, unless the fields say otherwise."""
    extra = {"temperature": 0, **fields.pop("extra_body", {})}
    wanted = {"model": "demo", "messages": MESSAGES, "max_tokens": 16, "extra_body": extra} | fields
    return client.messages.create(**wanted)


def text_of(message: Message) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def test_whole_answer(anthropic_client: anthropic.Anthropic) -> None:
    answer = ask(anthropic_client)
    assert (answer.type, answer.role, answer.model) == ("message", "assistant", "demo")
    assert (answer.stop_reason, answer.usage.output_tokens) == ("max_tokens", 16)
    assert text_of(answer) and answer._request_id
    assert ask(anthropic_client, max_tokens=900).stop_reason == "end_turn"


def test_stream_is_the_whole_answer_in_pieces(anthropic_client: anthropic.Anthropic) -> None:
    whole = ask(anthropic_client)
    fields: dict[str, Any] = {"model": "demo", "messages": MESSAGES, "max_tokens": 16}
    with anthropic_client.messages.stream(**fields, extra_body={"temperature": 0}) as stream:
        assert "".join(stream.text_stream) == text_of(whole)
        final = stream.get_final_message()
    assert (final.stop_reason, final.usage.output_tokens) == ("max_tokens", 16)
    kinds = [event.type for event in ask(anthropic_client, stream=True)]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[2:-3]) <= {"content_block_delta", "ping"}


def test_counts_of_tokens(anthropic_client: anthropic.Anthropic) -> None:
    counted = anthropic_client.messages.count_tokens(model="demo", messages=MESSAGES).input_tokens
    for _ in range(2):
        usage = ask(anthropic_client).usage
        assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == counted
    assert usage.cache_read_input_tokens, "the second answer finds the prompt in the cache"


def test_system_and_turns(anthropic_client: anthropic.Anthropic) -> None:
    turns = [*MESSAGES, {"role": "assistant", "content": "No."}, {"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
    assert text_of(ask(anthropic_client, messages=turns, system="Be kind."))
    assert text_of(ask(anthropic_client, messages=turns, system=[{"type": "text", "text": "Be kind."}]))


def test_words_put_into_its_mouth(anthropic_client: anthropic.Anthropic) -> None:
    whole = text_of(ask(anthropic_client))
    begun = " ".join(whole.split(" ")[:4])
    following = text_of(ask(anthropic_client, messages=[*MESSAGES, {"role": "assistant", "content": begun}]))
    assert (begun + following).startswith(whole)


def test_stop_sequences(anthropic_client: anthropic.Anthropic) -> None:
    whole = text_of(ask(anthropic_client))
    word = whole.split(" ")[5]
    cut = ask(anthropic_client, stop_sequences=[word])
    assert (cut.stop_reason, cut.stop_sequence) == ("stop_sequence", word)
    assert text_of(cut) == whole[: whole.index(word)]


@pytest.mark.parametrize("choice", [{"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "weather"}])
def test_tools(anthropic_client: anthropic.Anthropic, choice: dict[str, Any]) -> None:
    fields: dict[str, Any] = {"tools": [TOOL], "max_tokens": 200}
    called = ask(anthropic_client, tool_choice=choice, **fields)
    assert called.stop_reason == "tool_use"
    call = called.content[0]
    assert call.type == "tool_use" and call.name == "weather" and call.input["city"] in ("Oslo", "Rome")
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
    turns = [*MESSAGES, {"role": "assistant", "content": called.content}, {"role": "user", "content": [result]}]
    assert text_of(ask(anthropic_client, messages=turns, tool_choice={"type": "none"}, **fields))
    with anthropic_client.messages.stream(
        model="demo", messages=MESSAGES, tool_choice=choice, extra_body={"temperature": 0}, **fields
    ) as stream:
        streamed = stream.get_final_message().content[0]
    assert streamed.type == "tool_use" and streamed.input == call.input


def test_structured_output(anthropic_client: anthropic.Anthropic) -> None:
    answer = anthropic_client.messages.parse(model="demo", messages=MESSAGES, max_tokens=200, output_format=Animal)
    assert isinstance(answer.parsed_output, Animal)
    assert answer.stop_reason == "end_turn"


@pytest.mark.parametrize(
    "fields",
    [
        {"thinking": {"type": "enabled", "budget_tokens": 1024}},
        {"thinking": {"type": "adaptive"}},
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
    ],
)
def test_what_is_offered_is_left_out(anthropic_client: anthropic.Anthropic, fields: dict[str, Any]) -> None:
    assert text_of(ask(anthropic_client, **fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": []},
        {"extra_body": {"temperature": 9999}},
        {"max_tokens": -1},
        {"extra_body": {"thinking": {"type": "deep"}}},
        {"messages": [{"role": "user", "content": "long " * 3000}]},
        {"extra_body": {"output_config": {"format": {"type": "xml"}}}},
    ],
)
def test_bad_requests(anthropic_client: anthropic.Anthropic, fields: dict[str, Any]) -> None:
    with pytest.raises(anthropic.BadRequestError) as caught:
        ask(anthropic_client, **fields)
    assert caught.value.body["error"]["type"] == "invalid_request_error"


def test_unknown_models_and_keys(anthropic_client: anthropic.Anthropic, guarded: Server) -> None:
    with pytest.raises(anthropic.NotFoundError):
        ask(anthropic_client, model="nobody")
    fields: dict[str, Any] = {"base_url": guarded.url, "max_retries": 0, "timeout": PATIENCE}
    assert text_of(ask(anthropic.Anthropic(api_key=KEY, **fields)))
    # 429 where another test has used up what may be tried.
    with pytest.raises((anthropic.AuthenticationError, anthropic.RateLimitError)):
        ask(anthropic.Anthropic(api_key="wrong", **fields))


def test_cancellation_in_mid_stream(anthropic_client: anthropic.Anthropic, server: Server) -> None:
    # A document that may go on for long keeps the model writing.
    endless = {"format": {"type": "json_schema", "schema": {"type": "string", "minLength": 5000}}}
    stream = ask(anthropic_client, max_tokens=900, stream=True, extra_body={"output_config": endless})
    for _, _event in zip(range(6), stream, strict=False):
        pass
    assert server.status()["running"] == 1
    stream.close()
    server.wait_idle()
