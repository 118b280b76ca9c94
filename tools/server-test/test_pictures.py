"""Pictures from the clients of OpenAI, Anthropic and Ollama, to a small model with a vision tower."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import anthropic
import ollama
import openai
import pytest

from harness import PATIENCE, ROOT, Server, get_text

GOLDENS = ROOT / "tests/goldens"
PICTURE = GOLDENS / "gemma3-vision/a.png"
#: Names of the control tokens around a picture's soft tokens, by their ids in the small model.
CONTROL = {509: "<start_of_image>", 510: "<end_of_image>"}
#: Soft tokens of a picture there, the control tokens around them and the line breaks after them.
TOKENS = 4 + 2 + 1
QUESTION = "What is this?"


def with_tokenizer(folder: Path) -> Path:
    """The golden model with a tower, and a golden tokenizer with its control tokens for pictures."""
    folder.mkdir()
    for file in ("config.json", "generation_config.json", "model.safetensors", "preprocessor_config.json"):
        (folder / file).write_bytes((GOLDENS / "gemma3-vision" / file).read_bytes())
    tokenizer = json.loads((GOLDENS / "gguf/tokenizer-512/tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    spelled = {index: name for name, index in vocabulary.items()}
    merges = tokenizer["model"]["merges"]
    for index, name in CONTROL.items():
        old = spelled[index]
        del vocabulary[old]
        vocabulary[name] = index
        merges[:] = [pair for pair in merges if old not in (*pair, "".join(pair))]
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        tokenizer["added_tokens"].append({"id": index, "content": name, "special": True, **flags})
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "chat_template.jinja").write_bytes((GOLDENS / "chat_template.jinja").read_bytes())
    return folder


@pytest.fixture(scope="module")
def seeing(program: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = with_tokenizer(tmp_path_factory.mktemp("models") / "seeing")
    with Server(program, str(folder), name="serve-seeing") as running:
        yield running


@pytest.fixture(scope="module")
def data() -> str:
    return base64.b64encode(PICTURE.read_bytes()).decode()


def tower(server: Server) -> dict:
    return json.loads(get_text(server.url + "/v1/trine/status"))["models"][0]["tower"]


def test_openai(seeing: Server, data: str) -> None:
    client = openai.OpenAI(base_url=seeing.url + "/v1", api_key="any", max_retries=0, timeout=PATIENCE)
    url = f"data:image/png;base64,{data}"

    def asked(*pictures: dict) -> openai.types.CompletionUsage:
        content = [*pictures, {"type": "text", "text": QUESTION}]
        messages = [{"role": "user", "content": content}]
        answer = client.chat.completions.create(model="seeing", messages=messages, max_tokens=4)
        assert answer.usage is not None
        return answer.usage

    picture = {"type": "image_url", "image_url": {"url": url, "detail": "low"}}
    assert asked(picture).prompt_tokens == asked().prompt_tokens + TOKENS
    parts = [{"type": "input_image", "image_url": url, "detail": "auto"}, {"type": "input_text", "text": QUESTION}]
    response = client.responses.create(model="seeing", input=[{"role": "user", "content": parts}], max_output_tokens=4)
    assert response.usage is not None and response.usage.input_tokens == asked(picture).prompt_tokens
    with pytest.raises(openai.BadRequestError) as caught:
        asked({"type": "image_url", "image_url": {"url": "http://127.0.0.1/a.png"}})
    assert caught.value.param == "messages[0].content[0].image_url.url"


def test_anthropic(seeing: Server, data: str) -> None:
    client = anthropic.Anthropic(base_url=seeing.url, api_key="any", max_retries=0, timeout=PATIENCE)
    source = {"type": "base64", "media_type": "image/png", "data": data}
    content = [{"type": "image", "source": source}, {"type": "text", "text": QUESTION}]
    messages = [{"role": "user", "content": content}]
    counted = client.messages.count_tokens(model="seeing", messages=messages).input_tokens
    plain = client.messages.count_tokens(model="seeing", messages=[{"role": "user", "content": QUESTION}])
    assert counted == plain.input_tokens + TOKENS
    usage = client.messages.create(model="seeing", messages=messages, max_tokens=4).usage
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == counted


def test_ollama(seeing: Server) -> None:
    client = ollama.Client(host=seeing.url, timeout=PATIENCE)
    assert "vision" in (client.show("seeing").capabilities or [])
    message = {"role": "user", "content": QUESTION, "images": [str(PICTURE)]}
    options = {"num_predict": 4, "temperature": 0}
    chat = client.chat("seeing", [message], options=options)
    generated = client.generate("seeing", QUESTION, images=[PICTURE.read_bytes()], options=options)
    assert chat.message.content == generated.response
    assert chat.prompt_eval_count == generated.prompt_eval_count
    with pytest.raises(ollama.ResponseError):
        client.generate("seeing", QUESTION, images=[b"nonsense"], options=options)


def test_one_picture_is_run_once(seeing: Server, data: str) -> None:
    """Also over all the tests before, which send the same one."""
    before = tower(seeing)["pictures"]
    test_ollama(seeing)
    test_openai(seeing, data)
    assert tower(seeing)["pictures"] == max(before, 1)
