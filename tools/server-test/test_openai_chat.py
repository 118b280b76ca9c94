"""OpenAI's own client over chats: `/v1/chat/completions`."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Literal

import openai
import pytest
from openai.types.chat import ChatCompletion
from pydantic import BaseModel

from harness import PATIENCE, Server

MESSAGES: list[dict[str, Any]] = [{"role": "user", "content": "Tell me a story about a fox."}]
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Tells the weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    },
    {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}},
]


class Animal(BaseModel):
    """A form that even a small model fills in soon: nothing in it is free text."""

    kind: Literal["fox", "bird"]
    tame: bool


def ask(client: openai.OpenAI, **fields: Any) -> ChatCompletion:
    """A greedy chat of few tokens, unless the fields say otherwise."""
    wanted = {"model": "demo", "messages": MESSAGES, "max_completion_tokens": 16, "temperature": 0} | fields
    return client.chat.completions.create(**wanted)


def text_of(completion: ChatCompletion) -> str:
    return completion.choices[0].message.content or ""


def test_whole_answer(openai_client: openai.OpenAI) -> None:
    answer = ask(openai_client)
    assert (answer.object, answer.model, answer.choices[0].finish_reason) == ("chat.completion", "demo", "length")
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 16
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 16
    assert text_of(answer) and answer._request_id


def test_max_tokens_has_both_names_and_may_be_absent(openai_client: openai.OpenAI) -> None:
    old = ask(openai_client, max_completion_tokens=openai.omit, max_tokens=3)
    assert old.usage is not None and old.usage.completion_tokens == 3
    open_end = ask(openai_client, max_completion_tokens=openai.omit)
    assert open_end.choices[0].finish_reason == "stop", "the model ends its story by itself"


def test_stream_is_the_whole_answer_in_pieces(openai_client: openai.OpenAI) -> None:
    whole = ask(openai_client)
    chunks = list(ask(openai_client, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    deltas = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(deltas) == text_of(whole)
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]].count("length") == 1
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert chunks[-1].choices == [] and chunks[-1].usage is not None and whole.usage is not None
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens
    assert len({chunk.id for chunk in chunks}) == 1


def test_stream_helper(openai_client: openai.OpenAI) -> None:
    # The helper takes an answer that ends with "length" for an error.
    sentence = {"stop": ".", "max_completion_tokens": 200, "temperature": 0}
    with openai_client.chat.completions.stream(model="demo", messages=MESSAGES, **sentence) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert text_of(final) == text_of(ask(openai_client, **sentence))


def test_several_texts(openai_client: openai.OpenAI) -> None:
    answer = ask(openai_client, n=3, seed=5, temperature=1.5)
    texts = [choice.message.content for choice in answer.choices]
    assert len(set(texts)) > 1 and [choice.index for choice in answer.choices] == [0, 1, 2]
    streamed = ["", "", ""]
    for chunk in ask(openai_client, n=3, seed=5, temperature=1.5, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert streamed == texts


def test_stop_texts(openai_client: openai.OpenAI) -> None:
    whole = text_of(ask(openai_client))
    word = whole.split(" ")[5]
    for stop in (word, ["never to be seen", word]):
        cut = ask(openai_client, stop=stop)
        assert cut.choices[0].finish_reason == "stop"
        assert text_of(cut) == whole[: whole.index(word)]
    pieces = [chunk.choices[0].delta.content or "" for chunk in ask(openai_client, stop=word, stream=True)]
    assert "".join(pieces) == whole[: whole.index(word)]


def test_seeds(openai_client: openai.OpenAI) -> None:
    texts = [text_of(ask(openai_client, seed=seed, temperature=1.5)) for seed in (1, 2, 3, 1, 2, 3)]
    assert texts[:3] == texts[3:]
    assert len(set(texts)) > 1


def test_sampling_fields_are_taken(openai_client: openai.OpenAI) -> None:
    fields = {"top_p": 0.5, "presence_penalty": 0.5, "frequency_penalty": -0.5, "user": "somebody", "seed": 1}
    assert text_of(ask(openai_client, temperature=1, **fields))
    extra = {"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1, "min_tokens": 4, "an_unknown_field": [1]}
    assert text_of(ask(openai_client, temperature=1, extra_body=extra))
    narrowest = ask(openai_client, temperature=1.9, extra_body={"top_k": 1})
    assert text_of(narrowest) == text_of(ask(openai_client)), "the likeliest token alone is left"


def test_logprobs(openai_client: openai.OpenAI) -> None:
    answer = ask(openai_client, logprobs=True, top_logprobs=3)
    known = answer.choices[0].logprobs
    assert known is not None and known.content is not None and len(known.content) == 16
    spelled = b"".join(bytes(token.bytes or []) for token in known.content)
    assert spelled.decode().strip() == text_of(answer).strip()
    for token in known.content:
        assert len(token.top_logprobs) == 3 and token.logprob <= 0
        assert token.top_logprobs[0].logprob == token.logprob, "greedy takes the likeliest"
    chunks = ask(openai_client, logprobs=True, top_logprobs=3, stream=True)
    parts = [chunk.choices[0].logprobs for chunk in chunks if chunk.choices]
    streamed = [token for part in parts if part for token in part.content or []]
    assert [token.token for token in streamed] == [token.token for token in known.content]


def test_logit_bias(openai_client: openai.OpenAI, server: Server) -> None:
    whole = ask(openai_client)
    first = openai_client.post(
        "/../tokenize", body={"content": text_of(whole), "add_special": False}, cast_to=dict[str, Any]
    )["tokens"][0]
    other = ask(openai_client, logit_bias={str(first): -100})
    assert text_of(other) != text_of(whole)


def test_roles_and_parts(openai_client: openai.OpenAI) -> None:
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hello"}, {"type": "text", "text": "there"}]},
        {"role": "assistant", "content": "Hi!"},
        {"role": "user", "content": "How are you?", "name": "Ann"},
    ]
    assert text_of(ask(openai_client, messages=messages))


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_tool_calls(openai_client: openai.OpenAI, choice: Any) -> None:
    fields = {"tools": TOOLS, "tool_choice": choice, "max_completion_tokens": 200, "parallel_tool_calls": False}
    answer = ask(openai_client, **fields).choices[0]
    assert answer.finish_reason == "tool_calls" and answer.message.content is None
    assert answer.message.tool_calls is not None
    (call,) = answer.message.tool_calls
    assert call.type == "function" and call.id
    if choice != "required":
        assert call.function.name == "weather"
        assert json.loads(call.function.arguments)["city"] in ("Oslo", "Rome")
    chunks = list(ask(openai_client, stream=True, **fields))
    deltas = [delta for chunk in chunks for delta in chunk.choices[0].delta.tool_calls or []]
    assert deltas[0].function is not None and deltas[0].function.name == call.function.name
    assert "".join(delta.function.arguments or "" for delta in deltas if delta.function) == call.function.arguments
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_results_of_tools_are_read(openai_client: openai.OpenAI) -> None:
    answer = ask(
        openai_client, tools=TOOLS, tool_choice="required", max_completion_tokens=200, parallel_tool_calls=False
    )
    message = answer.choices[0].message
    assert message.tool_calls
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "sunny"}
    following = ask(openai_client, messages=[*MESSAGES, message, result], tools=TOOLS, tool_choice="none")
    assert following.choices[0].message.tool_calls is None and text_of(following)


def test_tools_of_pydantic(openai_client: openai.OpenAI) -> None:
    answer = openai_client.chat.completions.parse(
        model="demo",
        messages=MESSAGES,
        tools=[openai.pydantic_function_tool(Animal)],
        tool_choice="required",
        parallel_tool_calls=False,
        max_completion_tokens=200,
        temperature=0,
    )
    calls = answer.choices[0].message.tool_calls
    assert calls and isinstance(calls[0].function.parsed_arguments, Animal)


def test_structured_output(openai_client: openai.OpenAI) -> None:
    fields = {"model": "demo", "messages": MESSAGES, "max_completion_tokens": 200, "temperature": 0}
    answer = openai_client.chat.completions.parse(response_format=Animal, **fields)
    assert isinstance(answer.choices[0].message.parsed, Animal)
    assert answer.choices[0].finish_reason == "stop"
    with openai_client.chat.completions.stream(response_format=Animal, **fields) as stream:
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Animal)
    with pytest.raises(openai.LengthFinishReasonError):
        openai_client.chat.completions.parse(response_format=Animal, **(fields | {"max_completion_tokens": 2}))


def test_other_structures(openai_client: openai.OpenAI) -> None:
    choice = ask(openai_client, extra_body={"structured_outputs": {"choice": ["red", "blue"]}})
    assert text_of(choice) in ("red", "blue")
    expression = ask(openai_client, extra_body={"structured_outputs": {"regex": "[0-9]{3}"}})
    assert len(text_of(expression)) == 3 and text_of(expression).isdigit()
    grammar = ask(openai_client, extra_body={"grammar": 'root ::= "yes" | "no"'})
    assert text_of(grammar) in ("yes", "no")


def test_cancellation_in_mid_stream(openai_client: openai.OpenAI, server: Server) -> None:
    fields = {"max_completion_tokens": 900, "extra_body": {"ignore_eos": True}}
    stream = ask(openai_client, stream=True, **fields)
    for _, _chunk in zip(range(4), stream, strict=False):
        pass
    assert server.status()["running"] == 1
    stream.close()
    server.wait_idle()
    assert server.status()["blocks_running"] == 0


def test_cancellation_by_a_timeout(openai_client: openai.OpenAI, server: Server) -> None:
    with pytest.raises(openai.APITimeoutError):
        ask(
            openai_client.with_options(timeout=0.5), n=8, max_completion_tokens=900, extra_body={"ignore_eos": True}
        )
    server.wait_idle()


def test_many_at_once(server: Server, openai_client: openai.OpenAI) -> None:
    alone = text_of(ask(openai_client))

    async def gather() -> list[str]:
        async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="any", timeout=PATIENCE) as client:
            fields: dict[str, Any] = {"model": "demo", "max_completion_tokens": 16, "temperature": 0}
            asks = [client.chat.completions.create(messages=MESSAGES, **fields) for _ in range(20)]
            return [text_of(answer) for answer in await asyncio.gather(*asks)]

    assert set(asyncio.run(gather())) == {alone}
