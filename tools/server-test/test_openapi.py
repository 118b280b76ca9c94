"""Requests that schemathesis makes up from OpenAI's own document, for the paths that the server has.

Whatever is asked, the answer is not a defect of the server (5xx) and is JSON or a stream of events; a success satisfies the
document's schema of it. exceptions.md says which paths and which checks are left out, and why.
"""

from __future__ import annotations

import collections
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import schemathesis
import yaml
from hypothesis import given
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.transport import Response
from schemathesis.specs.openapi.checks import response_schema_conformance
from schemathesis.specs.openapi.schemas import OpenApiSchema

from harness import PATIENCE, Server

#: Paths of the document that the server answers, by method.
COVERED = {
    "/chat/completions": "post",
    "/completions": "post",
    "/responses": "post",
    "/models": "get",
    "/models/{model}": "get",
}
POSTED = [path for path, method in COVERED.items() if method == "post"]
#: Fields that bound the work of a request, and the most that is asked for: what is tested is not the model.
BOUNDS = {"max_tokens": 4, "max_completion_tokens": 4, "max_output_tokens": 4, "n": 3, "best_of": 3}
LIMIT = {"/chat/completions": "max_completion_tokens", "/completions": "max_tokens", "/responses": "max_output_tokens"}
#: What each path is asked where a made-up question would be refused: strings of chance are rarely a conversation.
QUESTION: dict[str, tuple[str, Any]] = {
    "/chat/completions": ("messages", [{"role": "user", "content": "Hi"}]),
    "/completions": ("prompt", "Hi"),
    "/responses": ("input", "Hi"),
}
#: A call that a small model ends soon: nothing in it is free text.
TOOL = {
    "name": "weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


class Document:
    """OpenAI's document with the covered paths alone."""

    def __init__(self, path: Path) -> None:
        parsed = yaml.load(path.read_text(), Loader=yaml.CSafeLoader)
        paths = parsed["paths"]
        parsed["paths"] = {path: {method: paths[path][method]} for path, method in COVERED.items()}
        self.schema: OpenApiSchema = schemathesis.openapi.from_dict(parsed)
        components = without_nullable(parsed["components"])
        #: What each event of a stream must satisfy, where the document says it: schemathesis takes no streams apart.
        self.events: dict[str, jsonschema.Draft202012Validator] = {}
        for path in POSTED:
            content = paths[path]["post"]["responses"]["200"]["content"].get("text/event-stream")
            if content:
                event = {"$ref": content["schema"]["$ref"], "components": components}
                self.events[path] = jsonschema.Draft202012Validator(event)


@pytest.fixture(scope="module")
def document(request: pytest.FixtureRequest) -> Document:
    path = request.config.getoption("--openapi")
    if not path:
        pytest.skip("no --openapi FILE")
    return Document(Path(path))


def without_nullable(node: Any) -> Any:
    """JSON schema has no `nullable`, which the document took over from older versions of OpenAPI."""
    if isinstance(node, list):
        return [without_nullable(value) for value in node]
    if not isinstance(node, dict):
        return node
    rest = {name: without_nullable(value) for name, value in node.items() if name != "nullable"}
    return {"anyOf": [rest, {"type": "null"}]} if node.get("nullable") is True else rest


def bounded(path: str, body: Any, is_sane: bool) -> Any:
    """The made-up body with a model that exists and little to write; a sane one asks something, too."""
    if not isinstance(body, dict):
        return body
    body = dict(body)
    if isinstance(body.get("model"), str):
        body["model"] = "demo"
    for name, most in BOUNDS.items():
        if isinstance(body.get(name), int) and body[name] > most:
            body[name] = most
    if all(body.get(name) is None for name in LIMIT.values()):
        body[LIMIT[path]] = BOUNDS[LIMIT[path]]
    if is_sane:
        name, question = QUESTION[path]
        body[name] = question
    return body


def check_events(response: Response, validator: jsonschema.Draft202012Validator | None) -> None:
    """Every event of a stream is as the document has it, but for the mark of the end."""
    for line in response.text.split("\n"):
        field, _, value = line.partition(":")
        if field == "data" and value.strip() != "[DONE]":
            event = json.loads(value)
            if validator is not None:
                validator.validate(event)


def check(document: Document, case: schemathesis.Case, response: Response) -> None:
    kind = response.headers["content-type"][0].partition(";")[0]
    if kind == "text/event-stream":
        check_events(response, document.events.get(case.path))
        return
    assert kind == "application/json", kind
    if response.status_code >= 400:
        error = response.json()["error"]
        assert set(error) >= {"message", "type", "param", "code"}, error
    case.validate_response(response, checks=[not_a_server_error, response_schema_conformance])


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["valid", "invalid"])
@pytest.mark.parametrize("path", POSTED)
def test_made_up_requests(
    document: Document, server: Server, made_up: Callable[[Any], Any], path: str, mode: GenerationMode
) -> None:
    statuses: collections.Counter[int] = collections.Counter()

    @made_up
    @given(case=document.schema[path]["POST"].as_strategy(generation_mode=mode))
    def ask(case: schemathesis.Case) -> None:
        is_sane = mode == GenerationMode.POSITIVE and statuses.total() % 2 == 0
        case.body = bounded(path, case.body, is_sane)
        response = case.call(base_url=server.url + "/v1", timeout=PATIENCE)
        statuses[response.status_code] += 1
        check(document, case, response)

    ask()
    print(f"{path} {mode.value}: {dict(statuses)}")
    if mode == GenerationMode.POSITIVE:
        assert statuses[200] > 0, "no request was understood: nothing was tested of its answers"
    server.wait_idle()


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/chat/completions", {}),
        ("/chat/completions", {"logprobs": True, "top_logprobs": 2, "stream_options": {"include_usage": True}}),
        ("/chat/completions", {"tools": [{"type": "function", "function": TOOL}], "tool_choice": "required"}),
        ("/completions", {"stream_options": {"include_usage": True}}),
        ("/responses", {}),
        ("/responses", {"max_output_tokens": 200}),
        ("/responses", {"tools": [{"type": "function", "strict": True, **TOOL}], "tool_choice": "required"}),
    ],
)
def test_streams(document: Document, server: Server, path: str, fields: dict[str, Any]) -> None:
    limit = 200 if "tools" in fields else BOUNDS[LIMIT[path]]
    name, question = QUESTION[path]
    body = {"model": "demo", name: question, "stream": True, LIMIT[path]: limit, "temperature": 0, **fields}
    case = document.schema[path]["POST"].Case(body=body, media_type="application/json")
    response = case.call(base_url=server.url + "/v1", timeout=PATIENCE)
    assert response.status_code == 200 and response.headers["content-type"][0].startswith("text/event-stream")
    check(document, case, response)


@pytest.mark.parametrize(("path", "name"), [("/models", None), ("/models/{model}", "demo"), ("/models/{model}", "none")])
def test_models(document: Document, server: Server, path: str, name: str | None) -> None:
    parameters = {"model": name} if name else {}
    case = document.schema[path]["GET"].Case(path_parameters=parameters)
    response = case.call(base_url=server.url + "/v1", timeout=PATIENCE)
    assert response.status_code == (404 if name == "none" else 200)
    check(document, case, response)
