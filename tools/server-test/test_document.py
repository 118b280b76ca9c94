"""The server's own OpenAPI document: a valid one, and true of requests that schemathesis makes up from it.

Whatever is asked, status, media type, headers and body of the answer are those that the document has, no answer is a defect
of the server (5xx), and what the document does not allow is refused. exceptions.md says what is left out, and why.
"""

from __future__ import annotations

import collections
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema
import pytest
import schemathesis
from hypothesis import given
from openapi_spec_validator import OpenAPIV31SpecValidator
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.transport import Response
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from schemathesis.specs.openapi.schemas import OpenApiSchema

from harness import PATIENCE, ROOT, Server, get_text

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
#: Fields that bound the work of a request, and the most that is asked for: what is tested is not the model.
BOUNDS = {
    "max_tokens": 4,
    "max_completion_tokens": 4,
    "n_predict": 4,
    "max_output_tokens": 4,
    "num_predict": 4,
    "n": 3,
    "best_of": 3,
}
#: What holds the number of tokens on each path that writes some.
LIMITS = {
    "/v1/chat/completions": "max_tokens",
    "/chat/completions": "max_tokens",
    "/v1/responses": "max_output_tokens",
    "/responses": "max_output_tokens",
}
#: What a request asks on each path: a made-up conversation is rarely one that the model's template takes.
MESSAGES = [{"role": "user", "content": "Hi"}]
QUESTIONS: dict[str, tuple[str, Any]] = {
    "/v1/chat/completions": ("messages", MESSAGES),
    "/v1/completions": ("prompt", "Hi"),
    "/v1/responses": ("input", "Hi"),
    "/v1/embeddings": ("input", "Hi"),
    "/v1/messages": ("messages", MESSAGES),
    "/v1/messages/count_tokens": ("messages", MESSAGES),
    "/api/chat": ("messages", MESSAGES),
    "/api/generate": ("prompt", "Hi"),
    "/api/embed": ("input", "Hi"),
    "/api/embeddings": ("prompt", "Hi"),
    "/api/show": ("model", "demo"),
    "/tokenize": ("content", "Hi"),
    "/detokenize": ("tokens", [5]),
    "/apply-template": ("messages", MESSAGES),
}
#: Paths on which some fields are read with others alone, and may otherwise be anything.
LENIENT = ("/tokenize",)
PARSED = json.loads((ROOT / "docs" / "openapi.json").read_text())
#: Paths without parameters, by method.
PLAIN = [path for path, operations in PARSED["paths"].items() if "get" in operations and "{" not in path]


@pytest.fixture(scope="module")
def document(server: Server) -> Iterator[OpenApiSchema]:
    yield schemathesis.openapi.from_dict(json.loads(get_text(server.url + "/openapi.json")))


def test_the_document_is_valid(server: Server) -> None:
    served = json.loads(get_text(server.url + "/openapi.json"))
    OpenAPIV31SpecValidator(served).validate()
    assert served == PARSED


def bounded(path: str, body: Any) -> Any:
    """The made-up body with a model that exists and little to write."""
    if not isinstance(body, dict):
        return body
    body = {name: bounded(path, value) if name == "options" else value for name, value in body.items()}
    if isinstance(body.get("model"), str):
        body["model"] = "demo"
    keep = body.get("keep_alive")
    if isinstance(keep, (int, float)) and not isinstance(keep, bool) or isinstance(keep, str) and re.match("[-+]?[0-9]", keep):
        # The next test wants the model.
        body["keep_alive"] = -1
    for name, most in BOUNDS.items():
        value = body.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > most:
            body[name] = most
    if path in LIMITS and all(body.get(name) is None for name in BOUNDS):
        body[LIMITS[path]] = 4
    return body


def check_events(case: schemathesis.Case, response: Response) -> None:
    """Each event, or each line, satisfies the schema: schemathesis takes no streams apart."""
    kind = response.headers["content-type"][0].partition(";")[0]
    schema = PARSED["paths"][case.path]["post"]["responses"]["200"]["content"][kind]["schema"]
    validator = jsonschema.Draft202012Validator({**schema, "components": PARSED["components"]})
    lines = response.text.splitlines()
    if kind == "text/event-stream":
        lines = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    for line in lines:
        validator.validate("[DONE]" if line == "[DONE]" else json.loads(line))


def check(case: schemathesis.Case, response: Response, checks: list[Any]) -> None:
    kind = response.headers["content-type"][0].partition(";")[0]
    if kind in ("text/event-stream", "application/x-ndjson"):
        check_events(case, response)
        checks = [one for one in checks if one is not response_schema_conformance]
    case.validate_response(response, checks=checks)


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["valid", "invalid"])
@pytest.mark.parametrize("path", QUESTIONS)
def test_made_up_requests(
    document: OpenApiSchema,
    server: Server,
    made_up: Callable[[Any], Any],
    path: str,
    mode: GenerationMode,
) -> None:
    statuses: collections.Counter[int] = collections.Counter()
    is_valid = mode == GenerationMode.POSITIVE

    @made_up
    @given(case=document[path]["POST"].as_strategy(generation_mode=mode))
    def ask(case: schemathesis.Case) -> None:
        case.body = bounded(path, case.body)
        if is_valid and isinstance(case.body, dict) and statuses.total() % 2 == 0:
            name, question = QUESTIONS[path]
            case.body[name] = question
        response = case.call(base_url=server.url, timeout=PATIENCE)
        statuses[response.status_code] += 1
        check(case, response, CHECKS if is_valid or path in LENIENT else [*CHECKS, negative_data_rejection])

    ask()
    print(f"{path} {mode.value}: {dict(statuses)}")
    if is_valid:
        assert statuses[200] > 0, "no request was understood: nothing was tested of its answers"
    server.wait_idle()


@pytest.mark.parametrize("path", PLAIN)
def test_what_is_got(document: OpenApiSchema, server: Server, path: str) -> None:
    case = document[path]["GET"].Case()
    response = case.call(base_url=server.url, timeout=PATIENCE)
    assert response.status_code == 200
    check(case, response, CHECKS)


def test_keys_are_needed_where_the_document_says_so(document: OpenApiSchema, guarded: Server) -> None:
    for path in PLAIN:
        case = document[path]["GET"].Case()
        response = case.call(base_url=guarded.url, timeout=PATIENCE)
        is_open = PARSED["paths"][path]["get"].get("security") == []
        assert response.status_code == (200 if is_open else 401), path
        check(case, response, CHECKS)
