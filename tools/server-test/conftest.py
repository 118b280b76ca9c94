"""Options and servers of the tests. The router's tests do without the clients, and so they are imported where they are used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harness import PATIENCE, ROOT, Server

if TYPE_CHECKING:
    import anthropic
    import ollama
    import openai

#: The one key of the server that asks for keys.
KEY = "a-key-for-tests-that-guards-nothing"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("trine")
    group.addoption("--trine", default=str(ROOT / "target/release/trine"), help="the program to test")
    group.addoption("--openapi", help="OpenAI's OpenAPI document; without it these tests are skipped")
    group.addoption("--cases", type=int, default=60, help="requests made up for each path of a document")
    group.addoption("--seed-of-cases", type=int, default=1, help="seed of these requests")


@pytest.fixture(scope="session")
def made_up(request: pytest.FixtureRequest) -> Callable[[Any], Any]:
    """Decorates a test of given cases: as many as asked for, the same each time, however long each takes."""
    from hypothesis import HealthCheck, Phase, seed, settings

    def decorate(test: Any) -> Any:
        bounded = settings(
            max_examples=request.config.getoption("--cases"),
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        return seed(request.config.getoption("--seed-of-cases"))(bounded(test))

    return decorate


@pytest.fixture(scope="session")
def program(request: pytest.FixtureRequest) -> str:
    """Path of trine."""
    return str(request.config.getoption("--trine"))


@pytest.fixture(scope="session")
def server(program: str) -> Iterator[Server]:
    """A server with the model inside the program, called `demo`, and no others: its models are not managed."""
    with Server(program, "demo", name="serve-demo") as running:
        yield running


@pytest.fixture(scope="session")
def guarded(program: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that asks for [`KEY`]."""
    path: Path = tmp_path_factory.mktemp("keys") / "keys"
    path.write_text(KEY + "\n")
    with Server(program, "demo", "--api-key-file", str(path), name="serve-guarded") as running:
        yield running


@pytest.fixture(scope="session")
def openai_client(server: Server) -> openai.OpenAI:
    import openai

    return openai.OpenAI(base_url=server.url + "/v1", api_key="any", max_retries=0, timeout=PATIENCE)


@pytest.fixture(scope="session")
def anthropic_client(server: Server) -> anthropic.Anthropic:
    import anthropic

    return anthropic.Anthropic(base_url=server.url, api_key="any", max_retries=0, timeout=PATIENCE)


@pytest.fixture(scope="session")
def ollama_client(server: Server) -> ollama.Client:
    import ollama

    return ollama.Client(host=server.url, timeout=PATIENCE)
