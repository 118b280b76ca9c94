#!/usr/bin/env python3
"""Measures servers that speak OpenAI's completions under concurrent clients, alternating, and prints their ratios.

    serve.py --clients 8 --requests 48 --rounds 3 trine=http://127.0.0.1:8080 llama=http://127.0.0.1:8081

Each client sends one request after the other: a prompt of 200 to 800 random token ids, and 64 to 200 tokens of answer whose end
is ignored, as a stream. The lengths and ids are the same for every server and differ from round to round. Printed for each
server are, as medians over the rounds, generated tokens per second over all clients, prompt and generated tokens per second
together, the time to the first token (median and 99th percentile of all requests of a round), and the largest gap between two
tokens of a stream; then the first server's ratio to each other one. `--json OUT` keeps every value. Needs Python's standard
library alone.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import statistics
import threading
import time
from urllib.parse import urlsplit


def plan(options: argparse.Namespace, index: int) -> list[dict]:
    """The requests of a round."""
    source = random.Random(options.seed + index)
    low, high = options.ids
    requests = []
    for _ in range(options.requests):
        prompt = [source.randint(low, high) for _ in range(source.randint(*options.prompt))]
        tokens = source.randint(*options.answer)
        requests.append({"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "stream": True, "temperature": 0})
    return requests


def ask(url: str, body: dict) -> tuple[float, list[float], int]:
    """Sends a request; seconds to its first token, the times of all chunks, and how many tokens came."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=600)
    options = {"stream_options": {"include_usage": True}}
    begin = time.monotonic()
    connection.request("POST", "/v1/completions", json.dumps({**body, **options}), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    if answer.status != 200:
        raise RuntimeError(f"{url} answers {answer.status}: {answer.read(500)!r}")
    times, tokens = [], 0
    for line in answer:
        if not line.startswith(b"data: {"):
            continue
        chunk = json.loads(line[6:])
        if "error" in chunk:
            raise RuntimeError(f"{url}: {chunk['error']}")
        if chunk.get("usage"):
            tokens = chunk["usage"]["completion_tokens"]
        if chunk["choices"]:
            times.append(time.monotonic())
    connection.close()
    return times[0] - begin, times, tokens


def run(url: str, requests: list[dict], clients: int) -> dict[str, float]:
    """One round of one server."""
    left, results, failures = list(requests), [], []
    lock = threading.Lock()

    def client() -> None:
        while True:
            with lock:
                if not left:
                    return
                body = left.pop()
            try:
                result = ask(url, body)
            except Exception as error:  # noqa: BLE001: whatever it is ends the measurement
                failures.append(error)
                return
            with lock:
                results.append((result, len(body["prompt"])))

    begin = time.monotonic()
    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.monotonic() - begin
    if failures:
        raise failures[0]
    first = sorted(result[0] for result, _ in results)
    gaps = [later - earlier for (_, times, _), _ in results for earlier, later in zip(times, times[1:])]
    generated = sum(result[2] for result, _ in results)
    return {
        "generated tok/s": generated / seconds,
        "total tok/s": (generated + sum(prompt for _, prompt in results)) / seconds,
        "first token median s": statistics.median(first),
        "first token p99 s": first[min(len(first) - 1, int(len(first) * 0.99))],
        "gap median s": statistics.median(gaps),
        "gap longest s": max(gaps),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("servers", nargs="+", metavar="NAME=URL")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--requests", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompt", type=int, nargs=2, default=(200, 800), metavar=("LEAST", "MOST"))
    parser.add_argument("--answer", type=int, nargs=2, default=(64, 200), metavar=("LEAST", "MOST"))
    parser.add_argument("--ids", type=int, nargs=2, default=(1000, 20000), metavar=("LEAST", "MOST"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", metavar="OUT")
    options = parser.parse_args()
    servers = dict(server.split("=", 1) for server in options.servers)
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in servers}
    for index in range(options.rounds):
        for name, url in servers.items():
            rounds[name].append(run(url, plan(options, index), options.clients))
    names = list(servers)
    for key in rounds[names[0]][0]:
        median = {name: statistics.median(round_[key] for round_ in rounds[name]) for name in names}
        line = "  ".join(f"{name} {median[name]:.4g}" for name in names)
        ratios = "  ".join(
            f"{names[0]}/{name} {statistics.median(a[key] / b[key] for a, b in zip(rounds[names[0]], rounds[name])):.2f}"
            for name in names[1:]
        )
        print(f"{key:22} {line}  {ratios}")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(rounds, file, indent=1)


if __name__ == "__main__":
    main()
