"""Agent libraries against a server: `agent_libraries.py LIBRARY URL ROUTE`, or `--list` for the routes. `agents.py` runs it.

Each route has a tool called, answers it, and goes on for another turn; it prints `done` where all of that has parsed.
"""

from __future__ import annotations

import json
import sys

TOOL = {
    "type": "function",
    "function": {
        "name": "list_words",
        "description": "Lists known words.",
        "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
    },
}
SYSTEM = "You help with words."


def langchain(url: str, route: str) -> None:
    """LangChain's chat models."""
    from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage

    if route == "openai":
        from langchain_openai import ChatOpenAI

        model = ChatOpenAI(model="demo", base_url=url + "/v1", api_key="x", max_tokens=100)
    elif route == "responses":
        from langchain_openai import ChatOpenAI

        model = ChatOpenAI(model="demo", base_url=url + "/v1", api_key="x", max_tokens=100, use_responses_api=True)
    elif route == "anthropic":
        from langchain_anthropic import ChatAnthropic

        model = ChatAnthropic(model="demo", base_url=url, api_key="x", max_tokens=100)
    else:
        from langchain_ollama import ChatOllama

        model = ChatOllama(model="demo", base_url=url, num_predict=100)
    forced = {} if route == "ollama" else {"tool_choice": "any" if route == "anthropic" else "required"}
    turns = [SystemMessage(SYSTEM), SystemMessage("Be brief."), HumanMessage("CALL-A-TOOL please")]
    called = model.bind_tools([TOOL], **forced).invoke(turns)
    if route != "ollama":
        assert called.tool_calls, called
    turns.append(called)
    turns += [ToolMessage("bird, tree", tool_call_id=call["id"]) for call in called.tool_calls]
    again = model.bind_tools([TOOL])
    turns.append(again.invoke(turns))
    turns.append(HumanMessage("And?"))
    assert "".join(str(chunk.content) for chunk in again.stream(turns)) is not None


def litellm(url: str, route: str) -> None:
    """litellm's completion under each provider's name."""
    import litellm as library

    library.telemetry = False
    base = {"openai": url + "/v1", "anthropic": url, "ollama_chat": url}[route]
    common = {"model": f"{route}/demo", "api_base": base, "api_key": "x", "tools": [TOOL], "max_tokens": 100}
    turns = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "CALL-A-TOOL please"}]
    forced = {} if route == "ollama_chat" else {"tool_choice": "required"}
    message = library.completion(messages=turns, **common, **forced).choices[0].message
    calls = message.tool_calls or []
    if not calls:
        # Ollama's API has no way to ask for a call: the one of an earlier turn, as this library writes it.
        function = library.types.utils.Function(name="list_words", arguments="{}")
        calls = [library.ChatCompletionMessageToolCall(function=function, id="call_1", type="function")]
        message = library.Message(content=None, tool_calls=calls)
    turns.append(message.model_dump())
    turns += [{"role": "tool", "tool_call_id": call.id, "name": "list_words", "content": "bird"} for call in calls]
    library.completion(messages=turns, **common)
    turns.append({"role": "assistant", "content": "A bird."})
    turns.append({"role": "user", "content": "And?"})
    chunks = list(library.completion(messages=turns, stream=True, **common))
    assert chunks[-1].choices[0].finish_reason, chunks[-1]
    if route == "ollama_chat":
        return
    too_long = [{"role": "user", "content": "bird " * 60_000}]
    try:
        library.completion(messages=too_long, **{name: common[name] for name in ("model", "api_base", "api_key")})
    except library.ContextWindowExceededError:
        return
    raise AssertionError("a prompt that is too long is not known for one")


def pydantic(url: str, route: str) -> None:
    """pydantic-ai with instructions and a system prompt, which are two system parts."""
    from pydantic_ai import Agent
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.anthropic import AnthropicProvider
    from pydantic_ai.providers.openai import OpenAIProvider

    if route == "anthropic":
        model = AnthropicModel("demo", provider=AnthropicProvider(base_url=url, api_key="x"))
    else:
        kind = OpenAIChatModel if route == "openai" else OpenAIResponsesModel
        model = kind("demo", provider=OpenAIProvider(base_url=url + "/v1", api_key="x"))
    agent = Agent(model, instructions="Be brief.", system_prompt=(SYSTEM, "There are birds."))
    called = []

    @agent.tool_plain
    def list_words() -> list[str]:
        """Lists known words."""
        called.append(True)
        return ["bird", "tree"]

    first = agent.run_sync("CALL-A-TOOL please")
    assert called, "the tool was not called"
    agent.run_sync("And?", message_history=first.all_messages())
    print(json.dumps(first.usage.__class__.__name__))


ROUTES = {
    "langchain": (langchain, ["openai", "responses", "anthropic", "ollama"]),
    "litellm": (litellm, ["openai", "anthropic", "ollama_chat"]),
    "pydantic": (pydantic, ["openai", "responses", "anthropic"]),
}

if __name__ == "__main__":
    run, routes = ROUTES[sys.argv[1]]
    if sys.argv[3] == "--list":
        print("\n".join(routes))
    else:
        run(sys.argv[2], sys.argv[3])
        print("done")
