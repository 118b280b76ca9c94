#!/usr/bin/env python3
"""Mixed requests for a while: what a server holds at its start, as it goes on, and at its end, as a Markdown table.

    soak.py target/release/trine [MINUTES]

Eight clients send good, bad and broken requests in every API, and leave a tenth of the answers early. The program ends
with 1 if an answer is missing or has another status than it should, or if the server holds sequences, threads or
connections afterwards. Needs Linux and Python 3.9 or later.
"""

from __future__ import annotations

import collections
import http.client
import json
import random
import sys
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

from harness import Server

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


def client(address: str, seed: int, until: float, ends: collections.Counter) -> None:
    """Sends requests until then, one after another, and counts how they ended."""
    dice = random.Random(seed)
    while time.monotonic() < until:
        path, body = some_request(dice)
        sent = dice.choice(BROKEN) if dice.random() < 0.1 else json.dumps(body).encode()
        connection = http.client.HTTPConnection(address, timeout=120)
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


def held(server: Server) -> dict[str, int]:
    """What the process and its engine hold."""
    process = Path(f"/proc/{server.process.pid}")
    lines = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
    status = server.status()
    return {
        "resident MiB": int(lines["VmRSS"].split()[0]) >> 10,
        "threads": int(lines["Threads"]),
        "files": len(list((process / "fd").iterdir())),
        "running and waiting": status["running"] + status["waiting"],
        "blocks of running sequences": status["blocks_running"],
    }


def main() -> int:
    program, minutes = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 30.0
    ends: collections.Counter = collections.Counter()
    with Server(program, "demo", name="soak") as server:
        rows = [("at the start", held(server))]
        began = time.monotonic()
        until = began + 60 * minutes
        to = urlsplit(server.url).netloc
        clients = [threading.Thread(target=client, args=(to, seed, until, ends)) for seed in range(CLIENTS)]
        for thread in clients:
            thread.start()
        for part in range(1, 7):
            time.sleep(max(0.0, began + 10 * minutes * part - time.monotonic()))
            rows.append((f"after {minutes * part / 6:.0f} min", held(server)))
        for thread in clients:
            thread.join()
        server.wait_idle()
        rows.append(("idle again", held(server)))
    names = list(rows[0][1])
    print("| | " + " | ".join(names) + " |\n|---|" + "---:|" * len(names))
    for when, numbers in rows:
        print(f"| {when} | " + " | ".join(str(numbers[name]) for name in names) + " |")
    print("\n" + ", ".join(f"{count} {end}" for end, count in sorted(ends.items())))
    last, first = rows[-1][1], rows[0][1]
    grown = [name for name in ("threads", "files") if last[name] > first[name] + CLIENTS]
    fine = {"left", "200", "400", "404", "503"}
    failed = sorted(set(ends) - fine)
    if last["blocks of running sequences"] or grown or failed:
        print(f"grown {grown}, failed {failed}")
    return int(bool(last["blocks of running sequences"] or grown or failed))


if __name__ == "__main__":
    sys.exit(main())
