#!/usr/bin/env python3
"""What hostile clients cost another one: a Markdown table.

    hostile_clients.py target/release/trine

One client streams 300 tokens while another, with a key of its own, asks for seven texts under a grammar, or for two
times 128 texts of 1,000 tokens, or for 60 texts with the most urgent priority. Needs Python 3.9 or later.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

PORT = 18_439
PATH = "/v1/completions"
GRAMMARS = {
    "no grammar": None,
    "`[a-z ]*`": "root ::= [a-z ]*",
    "`s s \\| s s s \\| ...`": 'root ::= s\ns ::= s s | s s s | "a" | " " | "b" | "the" | ""',
    "`s s \\| [a-z ]`": "root ::= s\ns ::= s s | [a-z ]",
    "`[a-z ] s [a-z ] \\| s s \\| [a-z ]`": "root ::= s\ns ::= [a-z ] s [a-z ] | s s | [a-z ]",
    "`[a-z ] root \\| [a-z ]`": "root ::= [a-z ] root | [a-z ]",
    "`([a-z ] root)?`": "root ::= ([a-z ] root)?",
}


def follow(key: str, body: dict) -> tuple[int, float, float, str]:
    """Returns the pieces of a stream, its seconds, its longest pause and how it ended."""
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=300)
    began = last = time.monotonic()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    connection.request("POST", PATH, json.dumps(body | {"stream": True, "ignore_eos": True}), headers)
    answer = connection.getresponse()
    pieces, pause, end = 0, 0.0, "ended" if answer.status == 200 else str(answer.status)
    for line in answer:
        if line.startswith(b"data: {"):
            now = time.monotonic()
            pieces, pause, last = pieces + 1, max(pause, now - last), now
            if b'"error"' in line:
                end = json.loads(line[6:])["error"]["code"]
    return pieces, time.monotonic() - began, pause, end


def beside(name: str, bodies: list[dict], own: dict, waits: bool) -> None:
    """Measures one client beside the requests of another."""
    ends: list[tuple[int, float, float, str]] = []

    def ask(body: dict) -> None:
        # The server may end before its answer does.
        with contextlib.suppress(http.client.HTTPException, OSError):
            ends.append(follow("hostile-client-key", body))

    others = [threading.Thread(target=ask, args=(body,), daemon=True) for body in bodies]
    for other in others:
        other.start()
    time.sleep(0.5 if bodies else 0)
    pieces, seconds, pause, _ = follow("another-client-key", own)
    if waits:
        for other in others:
            other.join()
    told = f"{ends[0][0]} pieces in {ends[0][1]:.1f} s, {ends[0][3]}" if ends else ""
    print(f"| {name} | {pieces} | {seconds:.2f} s | {pause:.2f} s | {told} |", flush=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder, "keys")
        keys.write_text("hostile-client-key\nanother-client-key\n")
        keys.chmod(0o600)
        command = [sys.argv[1], "serve", "demo", "--device", "cpu", "--port", str(PORT), "--api-key-file", str(keys)]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            time.sleep(3)
            print("| beside | pieces | its time | longest pause | the other |\n|---|---:|---:|---:|---|")
            own = {"prompt": "Once", "max_tokens": 300}
            beside("nobody", [], own, True)
            for name, grammar in GRAMMARS.items():
                body = {"prompt": "a", "max_tokens": 900, "n": 7} | ({"grammar": grammar} if grammar else {})
                beside(name, [body], own, True)
            short = own | {"max_tokens": 3}
            urgent = {"prompt": "a", "max_tokens": 300, "priority": -(1 << 31)}
            beside("60 texts with the most urgent priority", [urgent] * 60, short, True)
            beside("two times 128 texts of 1,000 tokens", [{"prompt": "a", "max_tokens": 1000, "n": 128}] * 2, short, False)
        finally:
            server.kill()


if __name__ == "__main__":
    main()
