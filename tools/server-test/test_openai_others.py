"""OpenAI's own client over everything but chats: completions, responses, models, embeddings, errors."""

from __future__ import annotations

import threading
from typing import Any, Literal

import openai
import pytest
from openai.types import Completion
from pydantic import BaseModel

from conftest import KEY
from harness import PATIENCE, Server, wait_until

#: Wrong keys after which a server answers 429 for a while.
WRONG_KEYS = 30
TOOL: dict[str, Any] = {
    "type": "function",
    "name": "weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


class Animal(BaseModel):
    kind: Literal["fox", "bird"]
    tame: bool


def complete(client: openai.OpenAI, prompt: Any, **fields: Any) -> Completion:
    return client.completions.create(**({"model": "demo", "prompt": prompt, "max_tokens": 8, "temperature": 0} | fields))


def ids_of(client: openai.OpenAI, text: str) -> list[int]:
    """The token ids that a prompt becomes."""
    body = {"content": text, "add_special": True}
    return client.post("/../tokenize", body=body, cast_to=dict[str, Any])["tokens"]


def test_completions_of_texts_and_ids(openai_client: openai.OpenAI) -> None:
    whole = complete(openai_client, "Once upon a time")
    assert whole.object == "text_completion" and whole.choices[0].finish_reason == "length"
    ids = ids_of(openai_client, "Once upon a time")
    assert whole.usage is not None and whole.usage.prompt_tokens == len(ids)
    assert complete(openai_client, ids).choices[0].text == whole.choices[0].text
    many = complete(openai_client, ["Once upon a time", "The fox"])
    assert len(many.choices) == 2 and many.choices[0].text == whole.choices[0].text
    lists = complete(openai_client, [ids, ids], n=2)
    assert {choice.text for choice in lists.choices} == {whole.choices[0].text} and len(lists.choices) == 4
    streamed = "".join(chunk.choices[0].text for chunk in complete(openai_client, ids, stream=True))
    assert streamed == whole.choices[0].text


def test_completions_default_to_sixteen_tokens(openai_client: openai.OpenAI) -> None:
    answer = complete(openai_client, "Once", max_tokens=openai.omit, extra_body={"ignore_eos": True})
    assert answer.usage is not None and answer.usage.completion_tokens == 16


def test_echo_and_logprobs(openai_client: openai.OpenAI) -> None:
    echoed = complete(openai_client, "Once upon a time", echo=True)
    assert echoed.choices[0].text.startswith("Once upon a time")
    known = complete(openai_client, "Once upon a time", logprobs=2).choices[0].logprobs
    assert known is not None and known.tokens is not None and len(known.tokens) == 8
    # What clients ask that score texts.
    ids = ids_of(openai_client, "Once upon a time")
    scored = complete(openai_client, ids, echo=True, logprobs=1, max_tokens=1, seed=1234).choices[0].logprobs
    assert scored is not None and scored.token_logprobs is not None and scored.top_logprobs is not None
    assert len(scored.token_logprobs) == len(ids) + 1 and scored.token_logprobs[0] is None
    assert all(value <= 0 for value in scored.token_logprobs[1:])
    assert all(len(top) >= 1 for top in scored.top_logprobs[1:])


def test_responses(openai_client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"model": "demo", "input": "Hi", "temperature": 0}
    whole = openai_client.responses.create(**fields, instructions="Be kind.")
    assert (whole.status, whole.incomplete_details, whole.error) == ("completed", None, None)
    assert whole.output_text and whole.usage is not None
    assert whole.usage.total_tokens == whole.usage.input_tokens + whole.usage.output_tokens
    cut = openai_client.responses.create(**fields, max_output_tokens=3)
    assert cut.status == "incomplete" and cut.incomplete_details is not None
    assert cut.incomplete_details.reason == "max_output_tokens"
    turns = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello!"},
        {"role": "user", "content": [{"type": "input_text", "text": "How are you?"}]},
    ]
    assert openai_client.responses.create(**(fields | {"input": turns})).output_text


def test_responses_in_a_stream(openai_client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"model": "demo", "input": "Hi", "temperature": 0}
    whole = openai_client.responses.create(**fields)
    events = list(openai_client.responses.create(**fields, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].type == "response.created" and events[-1].type == "response.completed"
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text
    with openai_client.responses.stream(**fields) as stream:
        assert stream.get_final_response().output_text == whole.output_text


def test_responses_with_structure_and_tools(openai_client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"model": "demo", "input": "Hi", "temperature": 0, "max_output_tokens": 200}
    parsed = openai_client.responses.parse(**fields, text_format=Animal)
    assert isinstance(parsed.output_parsed, Animal)
    fields |= {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}
    called = openai_client.responses.create(**fields)
    (call,) = called.output
    assert call.type == "function_call" and call.name == "weather"
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    turns = [{"role": "user", "content": "Hi"}, call, result]
    assert openai_client.responses.create(**(fields | {"input": turns, "tool_choice": "none"})).output_text
    kinds = [event.type for event in openai_client.responses.create(**fields, stream=True)]
    assert "response.function_call_arguments.done" in kinds


@pytest.mark.parametrize("field", ["previous_response_id", "conversation", "background", "top_logprobs"])
def test_responses_have_no_state(openai_client: openai.OpenAI, field: str) -> None:
    value = {"background": True, "top_logprobs": 2}.get(field, "resp_1")
    with pytest.raises(openai.BadRequestError) as caught:
        openai_client.responses.create(model="demo", input="Hi", **{field: value})
    assert caught.value.param == field


def test_models(openai_client: openai.OpenAI) -> None:
    (model,) = openai_client.models.list()
    assert (model.id, model.object) == ("demo", "model")
    assert openai_client.models.retrieve("demo").id == "demo"
    with pytest.raises(openai.NotFoundError) as caught:
        openai_client.models.retrieve("nobody")
    assert caught.value.code == "model_not_found"


def test_embeddings(openai_client: openai.OpenAI) -> None:
    answer = openai_client.embeddings.create(model="demo", input=["Hi", "Once upon a time"])
    assert [item.index for item in answer.data] == [0, 1] and answer.usage.prompt_tokens > 0
    # The client asks for Base64 by itself and decodes it.
    plain = openai_client.embeddings.create(model="demo", input="Once upon a time", encoding_format="float")
    # One is the shortest decimal of each f32, the other the f32 itself.
    assert plain.data[0].embedding == pytest.approx(answer.data[1].embedding, abs=1e-7)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": 9999}, "temperature"),
        ({"top_p": -1}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 100_000}, "n"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logit_bias": {"999999": 1}}, "logit_bias"),
        ({"max_tokens": -5}, "max_tokens"),
        ({"stop": [1]}, "stop"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "nobody", "content": "Hi"}]}, "messages[0].role"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"extra_body": {"use_beam_search": True}}, "use_beam_search"),
    ],
)
def test_bad_requests_name_the_field(openai_client: openai.OpenAI, fields: dict[str, Any], param: str) -> None:
    wanted = {"model": "demo", "messages": [{"role": "user", "content": "Hi"}]} | fields
    with pytest.raises(openai.BadRequestError) as caught:
        openai_client.chat.completions.create(**wanted)
    assert caught.value.param == param and caught.value.code and caught.value.type == "invalid_request_error"


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_longer_than_the_context(openai_client: openai.OpenAI, stream: bool) -> None:
    messages = [{"role": "user", "content": "long " * 3000}]
    with pytest.raises(openai.BadRequestError) as caught:
        openai_client.chat.completions.create(model="demo", messages=messages, stream=stream)
    assert caught.value.code == "context_length_exceeded"


def test_unknown_models_and_paths(openai_client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        openai_client.chat.completions.create(model="nobody", messages=[{"role": "user", "content": "Hi"}])
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.NotFoundError):
        openai_client.files.list()


def test_keys(guarded: Server) -> None:
    def client(key: str) -> openai.OpenAI:
        return openai.OpenAI(base_url=guarded.url + "/v1", api_key=key, max_retries=0, timeout=PATIENCE)

    assert client(KEY).models.list().data
    with pytest.raises(openai.AuthenticationError):
        client("wrong").models.list()
    wrong = client("wrong again")
    with pytest.raises(openai.RateLimitError):
        for _ in range(WRONG_KEYS + 1):
            try:
                wrong.models.list()
            except openai.AuthenticationError:
                continue
    assert client(KEY).models.list().data, "whoever has the key is let in all the same"


def test_a_full_queue(program: str) -> None:
    messages: Any = [{"role": "user", "content": "Hi"}]
    with Server(program, "demo", "--sequences", "1", "--queue", "1", name="serve-full") as server:
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="any", max_retries=0, timeout=PATIENCE)

        def occupy() -> None:
            with client.chat.completions.create(
                model="demo", messages=messages, max_tokens=300, stream=True, extra_body={"ignore_eos": True}
            ) as stream:
                list(stream)

        threads = [threading.Thread(target=occupy, daemon=True) for _ in range(2)]
        threads[0].start()
        wait_until("one runs", lambda: server.status()["running"] == 1)
        threads[1].start()
        wait_until("one waits", lambda: server.status()["waiting"] == 1)
        with pytest.raises(openai.InternalServerError) as caught:
            client.chat.completions.create(model="demo", messages=messages)
        assert (caught.value.status_code, caught.value.code) == (503, "queue_full")
        assert int(caught.value.response.headers["retry-after"]) >= 1
        # The client's own retries are enough to be answered in the end.
        patient = client.with_options(max_retries=60)
        assert patient.chat.completions.create(model="demo", messages=messages, max_tokens=2).choices
        for thread in threads:
            thread.join(PATIENCE)
