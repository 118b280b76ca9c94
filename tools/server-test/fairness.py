"""Measures how long a word waits beside clients that send impossible prompts, as fast as they are answered.

Prints the times of requests for one token: alone; beside clients that send the same bytes to a program that only reads them,
which shows what the machine and the clients themselves cost; and beside clients of the server, for each kind of impossible
prompt and for all kinds mixed. Ends with status 1 where the median beside clients is more than --limit times that alone.

Clients are processes that send bytes made before; with few processors they and the server share these. What is compared is
only worth something on a machine that does nothing else. Needs only Python's standard library.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import selectors
import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from urllib.parse import urlsplit

from harness import ROOT, Server

#: Bytes of text in a large prompt: what a body may have, and for which no context has room.
LARGE = 31_000_000
#: The request that is timed.
WORD = {"prompt": "Once", "max_tokens": 1, "temperature": 0}
#: Seconds that a client waits for an answer, between two words, and before the first one beside clients.
PATIENCE, PAUSE, WARM = 120.0, 0.05, 3.0
#: Dialects, in turn: path, and a request for a text.
DIALECTS: list[tuple[str, Callable[[str], dict[str, object]]]] = [
    ("/v1/completions", lambda text: {"prompt": text}),
    ("/v1/chat/completions", lambda text: {"messages": [{"role": "user", "content": text}]}),
    ("/api/generate", lambda text: {"prompt": text}),
    ("/v1/messages", lambda text: {"messages": [{"role": "user", "content": text}], "max_tokens": 1}),
]


def words_of(size: int) -> str:
    """A text of `size` bytes."""
    return "word " * (size // 5)


def requests(kind: str) -> list[bytes]:
    """The requests of a kind, which clients send in turn."""
    if kind == "lists":
        # Two bytes for each of a million values.
        ids = [0] * ((1 << 20) - 16)
        return [request("/v1/completions", {"prompt": ids})]
    if kind == "messages":
        messages = [{"role": "user", "content": words_of(1800)}] * 16_000
        return [request("/v1/chat/completions", {"messages": messages})]
    sizes = {"large": LARGE, "medium": 1_000_000, "small": 60_000, "tokens": 6_000, "fields": LARGE, "broken": LARGE}
    text = words_of(sizes[kind])
    more: dict[str, object] = {"temperature": "hot"} if kind == "fields" else {}
    dialects = DIALECTS[:1] if kind in ("fields", "broken") else DIALECTS
    made = [request(path, body(text) | more) for path, body in dialects]
    # The last byte closes the object.
    return [whole[:-1] + b"]" for whole in made] if kind == "broken" else made


#: Kinds of impossible prompts, and what they are.
KINDS = {
    "large": "31 MB of text",
    "medium": "1 MB of text",
    "small": "60 kB of text",
    "tokens": "6 kB of text, which only its tokens show to be too long",
    "messages": "29 MB in 16,000 messages",
    "lists": "a million token ids",
    "fields": "31 MB of text beside a field that is wrong",
    "broken": "31 MB that are not JSON",
}


def request(path: str, body: dict[str, object]) -> bytes:
    """A whole request."""
    data = json.dumps(body, separators=(",", ":")).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


def post(address: tuple[str, int], whole: bytes) -> int:
    """Sends a request and gives the status of its answer; 0 if the connection was closed without one."""
    with socket.create_connection(address, timeout=PATIENCE) as stream:
        answer = b""
        try:
            stream.sendall(whole)
        except (BrokenPipeError, ConnectionResetError):
            pass  # It may have been answered before its end.
        try:
            while piece := stream.recv(1 << 16):
                answer += piece
        except ConnectionResetError:
            pass
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else 0


def flood(address: tuple[str, int], sent: list[bytes], first: int, stop: Event, told: Connection) -> None:
    """Sends requests until told to stop, and tells how often each status was the answer."""
    answered: dict[int, int] = {}
    while not stop.is_set():
        status = post(address, sent[first % len(sent)])
        answered[status] = answered.get(status, 0) + 1
        first += 1
    told.send(answered)


def drink(listener: socket.socket) -> None:
    """Reads requests and answers each with 400; forever."""
    waiting = selectors.DefaultSelector()
    waiting.register(listener, selectors.EVENT_READ)
    left: dict[socket.socket, int] = {}
    buffer = bytearray(1 << 20)
    while True:
        for key, _ in waiting.select():
            stream = key.fileobj
            assert isinstance(stream, socket.socket)
            if stream is listener:
                client, _ = listener.accept()
                waiting.register(client, selectors.EVENT_READ)
                continue
            try:
                count = stream.recv_into(buffer)
            except ConnectionResetError:
                count = 0
            if count and stream not in left:
                head = bytes(buffer[:1024]).split(b"\r\n\r\n", 1)[0]
                left[stream] = int(head.rsplit(b": ", 1)[1]) + len(head) + 4
            if count:
                left[stream] -= count
            if not count or left[stream] <= 0:
                if count:
                    stream.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
                left.pop(stream, None)
                waiting.unregister(stream)
                stream.close()


@contextmanager
def beside(address: tuple[str, int], sent: list[bytes], count: int) -> Iterator[dict[int, int]]:
    """Runs clients; afterwards the result has how often each status was the answer."""
    context = multiprocessing.get_context("fork")
    stop, answered, clients, pipes = context.Event(), {}, [], []
    for first in range(count):
        pipe, end = context.Pipe(duplex=False)
        client = context.Process(target=flood, args=(address, sent, first, stop, end), daemon=True)
        client.start()
        # Now the client has the only one: where it fails, reading from the pipe ends.
        end.close()
        clients.append(client)
        pipes.append(pipe)
    time.sleep(WARM)
    try:
        yield answered
    finally:
        stop.set()
        for client, pipe in zip(clients, pipes, strict=True):
            client.join()
            if client.exitcode:
                raise RuntimeError("a client failed")
            for status, times in pipe.recv().items():
                answered[status] = answered.get(status, 0) + times


def words(address: tuple[str, int], count: int) -> list[float]:
    """Seconds of requests for a word."""
    whole, seconds = request("/v1/completions", dict(WORD)), []
    for _ in range(count):
        begin = time.monotonic()
        status = post(address, whole)
        if status != 200:
            raise RuntimeError(f"a word was answered with {status}")
        seconds.append(time.monotonic() - begin)
        time.sleep(PAUSE)
    return seconds


def told(name: str, seconds: list[float], alone: float | None = None) -> float:
    """Prints times, and how many times as long as alone they are; gives their median."""
    median, ordered = statistics.median(seconds), sorted(seconds)
    high = ordered[int(len(ordered) * 0.9)]
    ratio = f"  x {median / alone:.2f}" if alone else ""
    print(f"{name:28} median {median * 1e3:6.1f}  90 % {high * 1e3:6.1f}  longest {ordered[-1] * 1e3:6.1f} ms{ratio}", flush=True)
    return median


def main() -> int:
    """Measures, and gives the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trine", default=str(ROOT / "target/release/trine"), help="the program to measure")
    parser.add_argument("--clients", type=int, default=24, help="clients that send impossible prompts")
    parser.add_argument("--words", type=int, default=60, help="requests for a word in each measurement")
    parser.add_argument("--limit", type=float, default=2.0, help="largest ratio of the medians")
    parser.add_argument("--kinds", nargs="+", choices=[*KINDS, "mixed"], default=["mixed", *KINDS])
    options = parser.parse_args()
    made = {kind: requests(kind) for kind in KINDS}
    # One of each kind follows one of another.
    longest = max(map(len, made.values()))
    made["mixed"] = [all_of[turn % len(all_of)] for turn in range(longest) for all_of in made.values()]
    failed = []
    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    sink = multiprocessing.get_context("fork").Process(target=drink, args=(listener,), daemon=True)
    sink.start()
    with Server(options.trine, name="serve-fairness") as server:
        url = urlsplit(server.url)
        address = (url.hostname or "127.0.0.1", url.port or 80)
        words(address, 5)
        alone = told("alone", words(address, options.words))
        with beside(listener.getsockname(), made["large"], options.clients):
            told("beside clients of a reader", words(address, options.words), alone)
        for kind in options.kinds:
            with beside(address, made[kind], options.clients) as answered:
                median = told(f"beside {kind}", words(address, options.words), alone)
            counts = ", ".join(f"{status}: {answered[status]}" for status in sorted(answered))
            print(f"{'':4}{KINDS.get(kind, 'all of them')}; answers by status: {counts}", flush=True)
            if median > options.limit * alone:
                failed.append(kind)
        told("alone again", words(address, options.words), alone)
    sink.terminate()
    print(f"more than x {options.limit:g}: {', '.join(failed)}" if failed else f"at most x {options.limit:g}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
