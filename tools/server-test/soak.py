#!/usr/bin/env python3
"""Mixed requests for a while: what a server holds at its start, as it goes on, and at its end, as a Markdown table.

    soak.py target/release/trine [MINUTES]

Eight clients send good, bad and broken requests in every API, and leave a tenth of the answers early. The program ends
with 1 if the server answers with 5xx other than 503, ends, or holds sequences, threads or connections afterwards.
Needs Linux and Python 3.9 or later.
"""

from __future__ import annotations

import collections
import http.client
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

PORT = 18_441
CLIENTS = 8
USER = [{"role": "user", "content": "Tell me a story about a fox"}]
TOOL = {"name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string", "maxLength": 20}}}}
#: A tenth of the requests have one of them as body.
BROKEN = [b"", b"{", b"[1, 2]", b"\xff\xfe", b'{"messages": "x"}', b"[" * 5_000, b'{"model": "nobody", "messages": []}']


def some_request(dice: random.Random) -> tuple[str, object]:
    """A path and a body."""
    few = dice.choice([1, 8, 60])
    chat = {"messages": USER * dice.choice([1, 3]), "max_tokens": few, "stream": dice.random() < 0.5}
    function = {"type": "function", "function": TOOL}
    word = {"type": "object", "properties": {"a": {"enum": [dice.random(), "b"]}}, "required": ["a"]}
    return dice.choice(
        [
            ("/v1/chat/completions", chat),
            ("/v1/chat/completions", {**chat, "temperature": dice.choice([0, 1, -1, 9])}),
            ("/v1/chat/completions", {**chat, "tools": [function], "tool_choice": "required"}),
            ("/v1/chat/completions", {**chat, "n": dice.choice([0, 2, 5]), "logprobs": True, "top_logprobs": 5}),
            ("/v1/chat/completions", {**chat, "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": word}}}),
            ("/v1/completions", {"prompt": "Once " * dice.choice([1, 100, 2_000]), "max_tokens": few, "echo": dice.random() < 0.5}),
            ("/v1/completions", {"prompt": "Once", "max_tokens": few, "grammar": f"root ::= [a-{dice.choice('xyz')} ]*"}),
            ("/v1/responses", {"input": "Hello", "max_output_tokens": few, "stream": dice.random() < 0.5}),
            ("/v1/messages", {"messages": USER, "max_tokens": few, "stream": dice.random() < 0.5}),
            ("/v1/messages/count_tokens", {"messages": USER}),
            ("/api/chat", {"model": "demo", "messages": USER, "stream": dice.random() < 0.5, "options": {"num_predict": few}}),
            ("/api/generate", {"model": "demo", "prompt": "Once", "options": {"num_predict": few, "seed": few}}),
            ("/v1/embeddings", {"model": "demo", "input": ["a", "b" * few]}),
            ("/api/show", {"model": dice.choice(["demo", "nobody"])}),
            ("/tokenize", {"content": "中文 words " * few, "with_pieces": True}),
            ("/apply-template", {"messages": USER}),
        ]
    )


def client(seed: int, until: float, ends: collections.Counter) -> None:
    """Sends requests until then, one after another, and counts how they ended."""
    dice = random.Random(seed)
    while time.monotonic() < until:
        path, body = some_request(dice)
        sent = dice.choice(BROKEN) if dice.random() < 0.1 else json.dumps(body).encode()
        connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=120)
        try:
            connection.request("POST", path, sent, {"Content-Type": "application/json"})
            if dice.random() < 0.1:
                time.sleep(dice.random() / 20)
                ends["left"] += 1
            else:
                answer = connection.getresponse()
                answer.read()
                ends[str(answer.status)] += 1
        except (http.client.HTTPException, OSError) as error:
            ends[type(error).__name__] += 1
        finally:
            connection.close()


def held(server: subprocess.Popen[bytes]) -> dict[str, int]:
    """What the process and its engine hold."""
    process = Path(f"/proc/{server.pid}")
    lines = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=60)
    connection.request("GET", "/v1/trine/status")
    status = json.load(connection.getresponse())["models"][0]["status"]
    connection.close()
    return {
        "resident MiB": int(lines["VmRSS"].split()[0]) >> 10,
        "threads": int(lines["Threads"]),
        "files": len(list((process / "fd").iterdir())),
        "running and waiting": status["running"] + status["waiting"],
        "blocks of running sequences": status["blocks_running"],
    }


def main() -> int:
    program, minutes = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 30.0
    with tempfile.TemporaryDirectory() as home:
        server = subprocess.Popen(
            [program, "serve", "demo", "--port", str(PORT), "--device", "cpu"],
            env={"HOME": home, "TRINE_HOME": home},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(3)
        rows = [("at the start", held(server))]
        ends: collections.Counter = collections.Counter()
        began = time.monotonic()
        until = began + 60 * minutes
        clients = [threading.Thread(target=client, args=(seed, until, ends)) for seed in range(CLIENTS)]
        for thread in clients:
            thread.start()
        for part in range(1, 7):
            time.sleep(max(0.0, began + 10 * minutes * part - time.monotonic()))
            rows.append((f"after {minutes * part / 6:.0f} min", held(server)))
        for thread in clients:
            thread.join()
        # Connections that were left end when the server notices.
        time.sleep(5)
        rows.append(("idle again", held(server)))
        server.terminate()
        code = server.wait(60)
    names = list(rows[0][1])
    print("| | " + " | ".join(names) + " |\n|---|" + "---:|" * len(names))
    for when, numbers in rows:
        print(f"| {when} | " + " | ".join(str(numbers[name]) for name in names) + " |")
    print("\n" + ", ".join(f"{count} {end}" for end, count in sorted(ends.items())))
    last, first = rows[-1][1], rows[0][1]
    left = last["running and waiting"] + last["blocks of running sequences"]
    grown = [name for name in ("threads", "files") if last[name] > first[name] + 8]
    failed = [end for end in ends if end.startswith("5") and end != "503"]
    if left or grown or failed or code:
        print(f"left {left}, grown {grown}, failed {failed}, ended with {code}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
