#!/usr/bin/env python3
"""Drives coding agents and agent libraries, unmodified, against `trine serve`.

    agents.py [--trine PROGRAM] [--keep] [PART...]

    PART      claude, codex, codex-oss, opencode, cline, continue, aider, langchain, litellm, pydantic; without one all of them
    --trine   the program; without it target/release/trine
    --keep    keeps the clients' folders and what they sent, in target/server-test/agents/run

Each client answers plainly, calls a tool, gets its result, goes on with a second turn, and is ended in the middle of an answer. Agents
also read an image, which the model cannot see, and go on with it in their history. What is checked is that no request is refused and
that the client takes every answer; what the model inside the program writes is not the point. It is served with a context of 131,072
tokens written into its file, as Gemma's files have it, and without `--context`, as people start it.

A proxy stands between client and server. It notes status and warnings of each answer, makes the model end its answers soon, and has
it call a harmless tool where the client's words have the mark CALL-A-TOOL, the client's search of the web where they have
SEARCH-THE-WEB, and the tool that reads files, with a path, where they have SHOW-IMAGE PATH.

Needs Python 3.11 or later, node with npm, and their registries for the first run (2 GB in target/server-test/agents). The clients
get a home of their own, no key, and are told to ask nobody else.
"""

from __future__ import annotations

import argparse
import http.client
import http.server
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
import urllib.request
import venv
import zlib
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from harness import ROOT, SCRATCH, Server, demo_with_context, wait_until

HERE = Path(__file__).resolve().parent
FOLDER = SCRATCH / "agents"
RUN = FOLDER / "run"
CONTEXT = 131072
#: In the client's words: its next answer is to be a call, of a harmless tool, of a search that the client asks of the server, or of
#: the tool that reads the file whose path follows.
MARK = "CALL-A-TOOL"
SEARCH = "SEARCH-THE-WEB"
SHOW = "SHOW-IMAGE"
#: Most and fewest tokens of an answer, and what is added to the logit of its end: agents take an answer that is cut, or empty, for a
#: failure.
TOKENS = 400
FEWEST = 8
END_BIAS = 12
#: How an answer says that a prompt is too long.
TOO_LONG = (b"maximum context length is", b"prompt is too long")
#: Seconds that a client may take.
PATIENCE = 300.0
#: Tools without arguments, or that only read: the model's arguments make no sense.
HARMLESS = ["TaskList", "CronList", "get_goal", "glob", "read", "team_status", "List", "list_words"]
#: Tools that read a file, and in which argument agents put its path; some take several files.
READERS = ["Read", "view_image", "read", "read_files"]
PATHS = ["file_path", "filePath", "filepath", "path", "files"]
NODE = ["@anthropic-ai/claude-code", "@openai/codex", "opencode-ai", "cline", "@continuedev/cli"]
PYTHON = {
    "aider": ["aider-chat"],
    "langchain": ["langchain-openai", "langchain-anthropic", "langchain-ollama"],
    # Without the second the first cannot be imported where tools are used.
    "litellm": ["litellm", "mcp"],
    "pydantic": ["pydantic-ai-slim[openai,anthropic]"],
}
PARTS = ["claude", "codex", "codex-oss", "opencode", "cline", "continue", *PYTHON]


class Proxy(http.server.ThreadingHTTPServer):
    """Hands requests on, a little changed, and notes how they were answered."""

    daemon_threads = True

    def __init__(self, server: Server) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.upstream = urlsplit(server.url).netloc
        self.url = f"http://127.0.0.1:{self.server_port}"
        #: Path, status, whether the answer ended as answers do, and warnings, of each request.
        self.seen: list[tuple[str, int, bool, list[str]]] = []
        #: How many answers were calls.
        self.calls = 0
        self.bounds = True
        body = json.dumps({"content": "<end_of_turn>"}).encode()
        asked = urllib.request.Request(server.url + "/tokenize", body, {"content-type": "application/json"})
        with urllib.request.urlopen(asked, timeout=PATIENCE) as answer:
            #: The token that ends an answer.
            self.end_token: int = json.load(answer)["tokens"][0]
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away is what one of the checks does."""


class Handler(http.server.BaseHTTPRequestHandler):
    """One connection of a client."""

    protocol_version = "HTTP/1.1"
    server: Proxy

    def log_message(self, *_: object) -> None:
        """Nothing: `Proxy.seen` has it."""

    def do(self) -> None:
        """Hands on a request and its answer."""
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        if self.command == "POST" and self.server.bounds:
            body = steered(self.path, body, self.server.end_token)
        headers = {
            name: value
            for name, value in self.headers.items()
            if name.lower() not in ("host", "content-length", "accept-encoding", "connection")
        }
        upstream = http.client.HTTPConnection(self.server.upstream, timeout=PATIENCE)
        try:
            upstream.request(self.command, self.path, body or None, headers)
            answer = upstream.getresponse()
            told = [value for name, value in answer.getheaders() if name.lower() == "x-trine-warning"]
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("transfer-encoding", "content-length", "connection", "server", "date"):
                    self.send_header(name, value)
            self.send_header("connection", "close")
            self.end_headers()
            start = tail = b""
            while piece := answer.read1(65536):
                self.wfile.write(piece)
                self.wfile.flush()
                start = start if len(start) > 20_000 else start + piece
                tail = (tail + piece)[-200_000:]
            # One of the checks is that a client knows this error for what it is.
            is_long = answer.status == 400 and any(words in tail for words in TOO_LONG)
            status = 200 if is_long else answer.status
            self.server.seen.append((self.path, status, is_whole(start, tail, answer), told))
            self.server.calls += any(mark in tail for mark in (b'"tool_use"', b'"function_call"', b'"tool_calls"'))
            if status >= 400:
                print(f"   {self.command} {self.path}: {answer.status} {tail[:600]!r}")
            RUN.mkdir(parents=True, exist_ok=True)
            note = RUN / f"{len(self.server.seen):03}-{self.path.strip('/').split('?')[0].replace('/', '_')}.json"
            note.write_bytes(body)
        finally:
            upstream.close()
            self.close_connection = True

    do_GET = do_POST = do_HEAD = do


def is_whole(start: bytes, tail: bytes, answer: http.client.HTTPResponse) -> bool:
    """Whether a stream has its beginning and its end."""
    if "event-stream" not in (answer.getheader("content-type") or ""):
        return True
    begins = (b"message_start", b"response.created", b'"delta":{"role"', b"text_completion")
    ends = (b"[DONE]", b"message_stop", b"response.completed", b"response.incomplete")
    has_begun = any(begin in start for begin in begins)
    return has_begun and any(end in tail for end in ends) and b"event: error" not in tail


def steered(path: str, body: bytes, end_token: int) -> bytes:
    """The request with an answer that ends soon, and with a call where the mark is in the last words of the user."""
    request = json.loads(body)
    turns = request.get("messages") or request.get("input") or []
    tools = {tool.get("name") or tool.get("function", {}).get("name"): tool for tool in request.get("tools") or []}
    marked = {MARK: HARMLESS, SEARCH: ["WebSearch"], SHOW: READERS}
    wanted = [name for mark, some in marked.items() if isinstance(turns, list) and has_mark(turns, mark) for name in some]
    named = next((name for name in wanted if name in tools), None)
    if named and (path_of_image := re.search(SHOW + r" ([^\s\"\\]+)", json.dumps(turns[-1]))):
        fix_path(tools[named], path_of_image[1])
    bias = {str(end_token): END_BIAS}
    if path.startswith("/api/"):
        options = request.get("options") or {}
        request["options"] = {**options, "num_predict": TOKENS, "logit_bias": bias}
    else:
        request["logit_bias"] = bias
        request["min_tokens"] = FEWEST
        request.pop("max_completion_tokens", None)
        request["max_output_tokens" if "input" in request else "max_tokens"] = TOKENS
    if named and "input" in request:
        request["tool_choice"] = {"type": "function", "name": named}
    elif named and "input_schema" in tools[named]:
        request["tool_choice"] = {"type": "tool", "name": named}
    elif named:
        request["tool_choice"] = {"type": "function", "function": {"name": named}}
    return json.dumps(request).encode()


def fix_path(tool: dict, path: str) -> None:
    """Leaves a tool no arguments but the file to read: its schema has that one value."""
    holder, key = (tool, "input_schema") if "input_schema" in tool else (tool.get("function", tool), "parameters")
    name = next(name for name in PATHS if name in holder[key]["properties"])
    value = {"const": path}
    if name == "files":
        file = {"type": "object", "properties": {"path": value}, "required": ["path"], "additionalProperties": False}
        value = {"type": "array", "items": file, "minItems": 1, "maxItems": 1}
    holder[key] = {"type": "object", "properties": {name: value}, "required": [name], "additionalProperties": False}


def has_mark(turns: list[dict], mark: str) -> bool:
    """Whether a mark comes after all results of tools."""
    for turn in reversed(turns):
        text = json.dumps(turn)
        if "tool_result" in text or turn.get("role") == "tool" or "call_output" in str(turn.get("type")):
            return False
        if turn.get("role") == "user" and mark in text:
            return True
    return False


class Checks:
    """What was checked, a line each."""

    def __init__(self) -> None:
        self.failed = 0
        self.passed = 0

    def note(self, what: str, is_so: bool, why: str = "") -> None:
        """Prints and counts a check."""
        self.passed += is_so
        self.failed += not is_so
        print(f"{'ok  ' if is_so else 'FAIL'} {what}{'' if is_so else ': ' + why[-1500:]}", flush=True)


class Client:
    """A client's programs, home and proxy."""

    def __init__(self, name: str, server: Server, checks: Checks) -> None:
        self.name, self.server, self.checks = name, server, checks
        self.proxy = Proxy(server)
        self.home = RUN / name
        shutil.rmtree(self.home, ignore_errors=True)
        self.work = self.home / "work"
        self.work.mkdir(parents=True)
        url = self.proxy.url
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "TERM": "dumb",
            "LANG": "C.UTF-8",
            "DO_NOT_TRACK": "1",
            "DISABLE_TELEMETRY": "1",
            "DISABLE_AUTOUPDATER": "1",
            "DISABLE_ERROR_REPORTING": "1",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_AUTH_TOKEN": "x",
            "ANTHROPIC_MODEL": "demo",
            "ANTHROPIC_DEFAULT_HAIKU_MODEL": "demo",
            # Says that the agent is in a container, where root may let it run tools without questions.
            "IS_SANDBOX": "1",
            "OPENAI_API_KEY": "x",
            "OPENAI_BASE_URL": url + "/v1",
            "OPENAI_API_BASE": url + "/v1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "AIDER_ANALYTICS_DISABLE": "true",
            "AIDER_CHECK_UPDATE": "false",
        }

    def begin(self, command: list[str]) -> subprocess.Popen[str]:
        """Starts the client."""
        return subprocess.Popen(
            command,
            cwd=self.work,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def turn(self, what: str, command: list[str], calls: bool = False, is_right: Callable[[str], bool] = bool) -> None:
        """One run of the client: it ends well, and all its requests were answered."""
        before, called = len(self.proxy.seen), self.proxy.calls
        process = self.begin(command)
        try:
            said, _ = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            end(process)
            self.checks.note(f"{self.name}: {what}", False, "it took too long")
            return
        seen = self.proxy.seen[before:]
        refused = [(path, status) for path, status, *_ in seen if status >= 400]
        cut = [path for path, _, is_whole, _ in seen if not is_whole]
        if process.returncode != 0:
            why = f"it ended with {process.returncode}: {said}"
        elif refused or cut:
            why = f"refused: {refused}, cut: {cut}"
        elif not any("v1/" in path or "api/" in path for path, *_ in seen):
            why = f"it asked nothing: {said}"
        elif calls and self.proxy.calls == called:
            why = f"the model called no tool: {said}"
        elif not is_right(said):
            why = f"it said: {said}"
        else:
            why = ""
        self.checks.note(f"{self.name}: {what} ({len(seen)} requests)", not why, why)

    def cancelled(self, command: list[str]) -> None:
        """The client is ended in the middle of an answer, which ends with it."""
        self.proxy.bounds = False
        before = self.server.status()["generated_tokens"]
        process = self.begin(command)
        try:
            # A request that is refused is asked again and again by some.
            refused = len(self.proxy.seen)

            def is_answered() -> bool:
                if any(status >= 400 for _, status, *_ in self.proxy.seen[refused:]):
                    raise ValueError(f"refused: {self.proxy.seen[refused:]}")
                return self.server.status()["generated_tokens"] > before + 3

            wait_until("it is answered", is_answered, PATIENCE)
            end(process)
            self.server.wait_idle()
            self.checks.note(f"{self.name}: cancelled in the middle of an answer", True)
        except (TimeoutError, ValueError, OSError) as error:
            end(process)
            self.checks.note(f"{self.name}: cancelled in the middle of an answer", False, str(error))
        finally:
            self.proxy.bounds = True

    def image(self) -> str:
        """The path of a small PNG in the client's folder."""

        def chunk(kind: bytes, data: bytes) -> bytes:
            return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

        side = 32
        head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
        rows = (b"\0" + b"\xff\0\0" * side) * side
        path = self.work / "shot.png"
        chunks = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
        path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunks)
        return str(path)

    def warnings(self) -> None:
        """Prints what the server said that it left out."""
        for text in sorted({text for *_, told in self.proxy.seen for text in told}):
            print(f"     warning: {text}")


def end(process: subprocess.Popen[str]) -> None:
    """Ends a client and what it has started."""
    for kind in (signal.SIGINT, signal.SIGKILL):
        try:
            os.killpg(process.pid, kind)
            process.wait(5)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


def node(name: str) -> str:
    """A program of the packages of node; installs them the first time."""
    folder = FOLDER / "node"
    if not (folder / "installed").exists():
        folder.mkdir(parents=True, exist_ok=True)
        npm = ["npm", "install", "--no-audit", "--no-fund", "--silent", "--prefix", str(folder)]
        subprocess.run([*npm, *NODE], check=True)
        # Both choose the program for this machine; newer releases of npm leave that to their user.
        for package, script in (("@anthropic-ai/claude-code", "install.cjs"), ("opencode-ai", "postinstall.mjs")):
            path = folder / "node_modules" / package
            if (path / script).exists():
                subprocess.run(["node", script], cwd=path, check=True, stdout=subprocess.DEVNULL)
        (folder / "installed").touch()
    return str(folder / "node_modules" / ".bin" / name)


def python(name: str, program: str = "python") -> str:
    """A program of an environment with a library and what it needs; made the first time."""
    folder = FOLDER / name
    if not (folder / "installed").exists():
        # One tool resolves versions in seconds that take others half an hour.
        tool = FOLDER / "uv"
        if not (tool / "bin" / "uv").exists():
            venv.create(tool, with_pip=True)
            subprocess.run([tool / "bin" / "python", "-m", "pip", "install", "-q", "uv"], check=True)
        venv.create(folder, clear=True)
        install = [tool / "bin" / "uv", "pip", "install", "-q", "--python", folder / "bin" / "python"]
        subprocess.run([*install, *PYTHON[name]], check=True)
        (folder / "installed").touch()
    return str(folder / "bin" / program)


def claude(client: Client) -> None:
    """Claude Code."""
    base = [node("claude"), "-p", "--output-format", "json", "--dangerously-skip-permissions"]

    def is_right(said: str) -> bool:
        result = json.loads(said[said.index("{") : said.rindex("}") + 1])
        return result["type"] == "result" and not result["is_error"]

    client.turn("a turn", [*base, "Say hello"], is_right=is_right)
    client.turn("a call, its result", [*base, "-c", f"{MARK} please"], calls=True, is_right=is_right)
    client.turn("another turn", [*base, "-c", "Say goodbye"], is_right=is_right)
    client.turn("an image", [*base, "-c", f"{SHOW} {client.image()} please"], calls=True, is_right=is_right)
    client.turn("the turn after the image", [*base, "-c", "Never mind"], is_right=is_right)
    client.cancelled([*base, "Tell a story"])
    client.turn("the turn after it", [*base, "-c", "Go on"], is_right=is_right)
    client.turn("a search of the web", [*base, f"{SEARCH} please"], calls=True, is_right=is_right)
    told = [text for *_, all_told in client.proxy.seen for text in all_told]
    client.checks.note("claude: it is told that the search was left out", any("web_search" in text for text in told), str(told))


def codex(client: Client) -> None:
    """Codex, with a provider of its own or, as `codex-oss`, as a client of Ollama."""
    folder = client.home / ".codex"
    folder.mkdir()
    base = [node("codex"), "exec"]
    options = ["--skip-git-repo-check", "--json", "--dangerously-bypass-approvals-and-sandbox"]
    if client.name == "codex-oss":
        client.environment["CODEX_OSS_BASE_URL"] = client.proxy.url + "/v1"
        base += ["--oss", "--local-provider", "ollama", "-m", "demo"]
    else:
        (folder / "config.toml").write_text(
            f'model = "demo"\nmodel_provider = "trine"\nmodel_context_window = {CONTEXT}\n'
            "[model_providers.trine]\n"
            f'name = "trine"\nbase_url = "{client.proxy.url}/v1"\nwire_api = "responses"\n'
            "[analytics]\nenabled = false\n"
        )

    def is_right(said: str) -> bool:
        return "turn.completed" in said and "turn.failed" not in said

    client.turn("a turn", [*base, *options, "Say hello"], is_right=is_right)
    again = [*base, "resume", "--last", *options]
    client.turn("a call, its result", [*again, f"{MARK} please"], calls=True, is_right=is_right)
    client.turn("another turn", [*again, "Say goodbye"], is_right=is_right)
    client.turn("an image", [*again, f"{SHOW} {client.image()} please"], calls=True, is_right=is_right)
    client.turn("the turn after the image", [*again, "Never mind"], is_right=is_right)
    client.cancelled([*base, *options, "Tell a story"])
    client.turn("the turn after it", [*again, "Go on"], is_right=is_right)


def opencode(client: Client) -> None:
    """opencode."""
    model = {"demo": {"name": "demo", "attachment": True, "limit": {"context": CONTEXT, "output": 2048}}}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "trine",
        "options": {"baseURL": client.proxy.url + "/v1", "apiKey": "x"},
        "models": model,
    }
    config = {
        "autoupdate": False,
        "share": "disabled",
        "model": "trine/demo",
        "small_model": "trine/demo",
        "provider": {"trine": provider},
    }
    (client.work / "opencode.json").write_text(json.dumps(config))
    base = [node("opencode"), "run"]
    client.turn("a turn", [*base, "Say hello"])
    client.turn("a call, its result", [*base, "-c", f"{MARK} please"], calls=True)
    client.turn("another turn", [*base, "-c", "Say goodbye"])
    client.turn("an image", [*base, "-c", f"{SHOW} {client.image()} please"], calls=True)
    client.turn("the turn after the image", [*base, "-c", "Never mind"])
    client.cancelled([*base, "Tell a story"])


def cline(client: Client) -> None:
    """Cline's program for the terminal."""
    program = node("cline")
    subprocess.run(
        [program, "auth", "-p", "openai", "-k", "x", "-m", "demo", "-b", client.proxy.url + "/v1"],
        cwd=client.work,
        env=client.environment,
        check=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    base = [program, "--json"]

    def is_right(said: str) -> bool:
        return '"finishReason":"completed"' in said

    client.turn("a turn", [*base, "Say hello"], is_right=is_right)
    # Its sessions go on in its full-screen view only.
    client.turn("a call, its result", [*base, f"{MARK} please"], calls=True, is_right=is_right)
    client.turn("an image", [*base, f"{SHOW} {client.image()} please"], calls=True, is_right=is_right)
    client.cancelled([*base, "Tell a story"])


def continue_(client: Client) -> None:
    """Continue's program for the terminal, as a client of Ollama."""
    config = client.work / "config.yaml"
    model = f"{{name: demo, provider: ollama, model: demo, apiBase: {client.proxy.url}, roles: [chat]}}"
    config.write_text(f"name: local\nversion: 1.0.0\nschema: v1\nmodels: [{model}]\n")
    base = [node("cn"), "--config", str(config), "--auto"]
    client.turn("a turn", [*base, "-p", "Say hello"])
    again = [*base, "--resume", "-p"]
    client.turn("a call, its result", [*again, f"{MARK} please"], calls=True)
    client.turn("another turn", [*again, "Say goodbye"])
    client.turn("an image", [*again, f"{SHOW} {client.image()} please"], calls=True)
    client.turn("the turn after the image", [*again, "Never mind"])
    client.cancelled([*base, "-p", "Tell a story"])


def aider(client: Client) -> None:
    """aider, which declares no tools."""
    (client.work / "a.txt").write_text("One line.\n")
    options = ["--no-git", "--yes-always", "--no-analytics", "--no-check-update", "--no-show-model-warnings"]
    options += ["--no-show-release-notes", "--no-detect-urls", "--model", "openai/demo", "--restore-chat-history"]
    # It keeps its histories in the root of the repository that its folder lies in, unless it is told where.
    for history in ("chat", "input"):
        options += [f"--{history}-history-file", str(client.work / f"{history}-history")]
    base = [python("aider", "aider"), *options, "a.txt", "--message"]

    def is_right(said: str) -> bool:
        return "received." in said

    client.turn("a turn", [*base, "Say hello"], is_right=is_right)
    client.turn("another turn", [*base, "Say goodbye"], is_right=is_right)
    client.cancelled([*base, "Tell a story"])


def library(name: str) -> Callable[[Client], None]:
    """A library, whose own script has a line for each check."""

    def drive(client: Client) -> None:
        command = [python(name), "-B", str(HERE / "agent_libraries.py"), name, client.proxy.url]
        for route in subprocess.run([*command, "--list"], check=True, capture_output=True, text=True).stdout.split():
            client.turn(route, [*command, route], calls=True, is_right=lambda said: said.rstrip().endswith("done"))

    return drive


DRIVERS = {
    "claude": claude,
    "codex": codex,
    "codex-oss": codex,
    "opencode": opencode,
    "cline": cline,
    "continue": continue_,
    "aider": aider,
}


def main() -> int:
    """Runs the parts that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trine", default=str(ROOT / "target" / "release" / "trine"))
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("parts", nargs="*", metavar="PART")
    arguments = parser.parse_args()
    unknown = set(arguments.parts) - set(PARTS)
    if unknown:
        parser.error(f"there is no part {', '.join(unknown)}; use {', '.join(PARTS)}")
    checks = Checks()
    # Its name is that of its file: `demo`.
    served = str(demo_with_context(CONTEXT))
    with Server(str(Path(arguments.trine).resolve()), served, name="agents") as server:
        for name in arguments.parts or PARTS:
            started = time.monotonic()
            client = Client(name, server, checks)
            try:
                DRIVERS.get(name, library(name))(client)
            except (OSError, subprocess.SubprocessError, ValueError) as error:
                checks.note(f"{name}: it can be driven", False, str(error))
            client.warnings()
            client.proxy.shutdown()
            print(f"     {name}: {time.monotonic() - started:.0f} s", flush=True)
    if not arguments.keep:
        shutil.rmtree(RUN, ignore_errors=True)
    print(f"{checks.passed} checks passed, {checks.failed} failed")
    return int(checks.failed > 0)


if __name__ == "__main__":
    sys.exit(main())
