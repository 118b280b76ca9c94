"""A pytest plugin that runs vLLM's own black-box tests, unmodified, against `trine serve`.

    python vllm_subset.py unpack FOLDER      fetches vLLM's source archive from the Python registry and takes the tests
    pytest -p vllm_subset --trine PROGRAM FOLDER

Those tests start servers through `tests.utils.RemoteOpenAIServer`. This module stands in for `tests.utils`, and its servers are
one running trine. None of vLLM's code is part of this repository.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import types
from collections.abc import Iterator
from pathlib import Path

import anthropic
import openai
import pytest

from harness import Server, demo_with_context

VERSION = "0.33.0"
TESTS = Path("tests/entrypoints")
#: The modules that import neither vllm nor torch, and the fixtures that they share.
MODULES = (
    "conftest.py",
    "anthropic/test_messages.py",
    "openai/chat_completion/test_chat_completion.py",
    "openai/chat_completion/test_completion_with_function_calling.py",
    "openai/chat_completion/test_enable_force_include_usage.py",
    "openai/chat_completion/test_include_reasoning.py",
    "openai/models/test_models.py",
    "openai/responses/conftest.py",
    "openai/responses/test_simple.py",
    "openai/test_chunked_prompt.py",
)
#: Names of models that the tests have written in them.
MODELS = ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-8B", "Qwen/Qwen2.5-1.5B-Instruct", "claude-3-7-sonnet-latest")
#: Positions that their longest prompts need.
CONTEXT = 4096
SECONDS = 60

NO_REASONING = "Gemma 3 has no reasoning apart from its answer"
VLLM_OPTION = "an option of vLLM's command line, whose extra fields this server has not"
VLLM_FIELD = "a field of vLLM alone, which this server refuses or has not"
SMALL = "the model inside the program is too small to decide for tools or to fill in free texts that end"
#: What is expected to fail, by a regular expression over the test's name, and why.
EXCEPTIONS: dict[str, str] = {
    r"test_include_reasoning_true|test_reasoning_tokens_in_usage|test_default_includes_reasoning": NO_REASONING,
    r"test_reasoning_item|reasoning_tokens_e2e": NO_REASONING,
    r"test_function_tool_use\[(plain|watermarked)-True-": NO_REASONING,
    r"test_chat_with_enable_force_include_usage": VLLM_OPTION,
    r"test_per_request_metrics": VLLM_OPTION,
    r"test_kv_transfer_prompt_token_ids": VLLM_FIELD,
    r"test_enable_response_messages": VLLM_FIELD,
    r"test_check_models": "it needs an adapter (LoRA) that it downloads; this server has none",
    r"test_streaming_logprobs": "Responses have no log-probabilities here; they are refused",
    r"test_anthropic_streaming_cache_usage": "nothing is paid for filling the cache, so that count is always 0",
}
#: The same where the model is the one inside the program; a larger one may pass.
SMALL_EXCEPTIONS: dict[str, str] = {
    r"test_function_tool_use": SMALL,
    r"test_named_tool_use": SMALL,
    r"test_no_args_tool_call": SMALL,
    r"test_anthropic_tool_call": SMALL,
    r"test_anthropic_structured_output": SMALL,
}


class RemoteServer:
    """What the tests take for vLLM's helper: a server that runs already, whatever options they name."""

    url_root = ""
    DUMMY_API_KEY = "any"

    def __init__(self, model: str, arguments: list[str] | None = None, **options: object) -> None:
        del model, arguments, options

    def __enter__(self) -> RemoteServer:
        return self

    def __exit__(self, *ended: object) -> None:
        del ended

    def url_for(self, *parts: str) -> str:
        return "/".join([self.url_root, *parts])

    def get_client(self, **options: object) -> openai.OpenAI:
        return openai.OpenAI(base_url=self.url_for("v1"), api_key="any", max_retries=0, timeout=SECONDS, **options)

    def get_async_client(self, **options: object) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=self.url_for("v1"), api_key="any", max_retries=0, timeout=SECONDS, **options)

    def get_async_client_anthropic(self, **options: object) -> anthropic.AsyncAnthropic:
        return anthropic.AsyncAnthropic(
            base_url=self.url_root, api_key="any", max_retries=0, timeout=SECONDS, **options
        )


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("trine")
    group.addoption("--trine", required=True, help="the program to test")
    group.addoption("--model", help="a .gguf file for the tests, instead of the model inside the program")


def pytest_configure(config: pytest.Config) -> None:
    utils = types.ModuleType("tests.utils")
    vars(utils).update(RemoteOpenAIServer=RemoteServer, ROCM_EXTRA_ARGS=[], ROCM_ENV_OVERRIDES={})
    sys.modules["tests.utils"] = utils
    config.addinivalue_line("filterwarnings", "ignore::DeprecationWarning")


def mark_of(name: str, has_own_model: bool) -> pytest.MarkDecorator | None:
    """What is expected of a test, if not that it passes."""
    for pattern, reason in () if has_own_model else SMALL_EXCEPTIONS.items():
        if re.search(pattern, name):
            # These run until the context is full: minutes that would tell nothing.
            return pytest.mark.xfail(reason=reason, run=False)
    for pattern, reason in EXCEPTIONS.items():
        if re.search(pattern, name):
            return pytest.mark.xfail(reason=reason, strict=True)
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        mark = mark_of(item.name, bool(config.getoption("--model")))
        if mark:
            item.add_marker(mark)


@pytest.fixture(scope="session", autouse=True)
def running_server(request: pytest.FixtureRequest) -> Iterator[None]:
    """The one server, under every name that the tests use."""
    model = request.config.getoption("--model") or str(demo_with_context(CONTEXT))
    name = Path(model).stem
    aliases = [argument for alias in MODELS for argument in ("--alias", f"{alias}={name}")]
    with Server(request.config.getoption("--trine"), model, *aliases, name="serve-vllm") as server:
        RemoteServer.url_root = server.url
        yield


def unpack(folder: Path) -> None:
    """Fetches vLLM's source archive with pip and takes the modules out of it."""
    if (folder / VERSION).exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        # pip has no command for "unpack alone". It keeps the sources although their build requirements are missing.
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-clean", "--no-build-isolation", "--no-deps"]
        command += ["--no-binary", "vllm", f"vllm=={VERSION}"]
        subprocess.run(command, cwd=scratch, env=os.environ | {"TMPDIR": scratch}, capture_output=True, check=False)
        found = list(Path(scratch).glob(f"*/*/{TESTS}"))
        if len(found) != 1:
            raise SystemExit(f"vllm {VERSION} cannot be fetched from the Python registry")
        for module in MODULES:
            target = folder / TESTS / module
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(found[0] / module, target)
    for package in list((folder / "tests").rglob("*")):
        if package.is_dir():
            (package / "__init__.py").touch()
    (folder / "tests" / "__init__.py").touch()
    (folder / VERSION).touch()


if __name__ == "__main__":
    unpack(Path(sys.argv[2]))
