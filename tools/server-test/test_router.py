"""Several of our servers behind sglang-router: how work is spread, and what happens when one of them is lost."""

from __future__ import annotations

import collections
import contextlib
import json
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.client import HTTPResponse
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from harness import PATIENCE, Process, Server, get_text, wait_until

WORKERS = 3
#: Seconds between the router's looks at the health of a worker.
HEALTH_SECONDS = 1
#: What llm-d's and the Gateway API's endpoint pickers read of a worker.
SCRAPED = {
    "vllm:num_requests_waiting": "gauge",
    "vllm:num_requests_running": "gauge",
    "vllm:kv_cache_usage_perc": "gauge",
    "vllm:cache_config_info": "gauge",
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Router(Process):
    """A running sglang-router before some servers."""

    def __init__(self, workers: list[Server], policy: str) -> None:
        port = free_port()
        command = [sys.executable, "-m", "sglang_router.launch_router", "--host", "127.0.0.1", "--port", str(port)]
        command += ["--worker-urls", *(worker.url for worker in workers), "--policy", policy]
        command += ["--health-check-interval-secs", str(HEALTH_SECONDS), "--health-failure-threshold", "2"]
        command += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port())]
        super().__init__(f"router-{policy}", command)
        self.url = f"http://127.0.0.1:{port}"
        try:
            wait_until("the router knows its workers", lambda: self.said() and self.is_ready())
        except BaseException:
            self.kill()
            raise

    def __enter__(self) -> Router:
        return self

    def is_ready(self) -> bool:
        try:
            return bool(get_text(self.url + "/readiness"))
        except OSError:
            return False


class Cluster:
    """A router and its workers."""

    def __init__(self, router: Router, workers: list[Server]) -> None:
        self.router = router
        self.workers = workers

    def requests(self) -> list[int]:
        """Requests that each worker has had."""
        return [worker.status()["requests"] for worker in self.workers]

    def running(self) -> list[int]:
        return [worker.status()["running"] for worker in self.workers]

    def open(self, words: str, **fields: Any) -> HTTPResponse:
        """Sends a chat to the router."""
        messages = [{"role": "user", "content": words}]
        body = json.dumps({"model": "demo", "messages": messages, "temperature": 0, **fields}).encode()
        request = urllib.request.Request(self.router.url + "/v1/chat/completions", data=body)
        request.add_header("Content-Type", "application/json")
        return urllib.request.urlopen(request, timeout=PATIENCE)

    def ask(self, words: str) -> str:
        with self.open(words, max_tokens=4) as answer:
            return json.load(answer)["choices"][0]["message"]["content"]


@contextlib.contextmanager
def cluster(program: str, policy: str, workers: int = WORKERS) -> Iterator[Cluster]:
    with contextlib.ExitStack() as stack:
        names = [f"worker-{policy}-{index}" for index in range(workers)]
        servers = [stack.enter_context(Server(program, "demo", "--threads", "1", name=name)) for name in names]
        yield Cluster(stack.enter_context(Router(servers, policy)), servers)


@pytest.fixture(scope="module")
def spread(program: str) -> Iterator[Cluster]:
    """Workers that take turns. For tests that leave them as they were."""
    with cluster(program, "round_robin") as running:
        yield running


def events_of(stream: HTTPResponse) -> list[str]:
    """What stands in the events of a stream."""
    lines = [line.decode().strip() for line in stream]
    return [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]


def busy_worker(cluster: Cluster) -> Server:
    """The one worker that has a request, which is waited for."""
    wait_until("a worker has the request", lambda: sum(cluster.running()) == 1)
    return cluster.workers[cluster.running().index(1)]


def test_requests_are_spread(spread: Cluster) -> None:
    before = spread.requests()
    texts = {spread.ask("Hello") for _ in range(2 * WORKERS)}
    assert [after - first for after, first in zip(spread.requests(), before, strict=True)] == [2] * WORKERS
    assert len(texts) == 1, "greedy answers are the same everywhere"


def test_what_routers_and_pickers_read(spread: Cluster) -> None:
    url = spread.workers[0].url
    get_text(url + "/health")
    assert json.loads(get_text(url + "/model_info"))["served_model_name"] == "demo"
    assert json.loads(get_text(url + "/server_info"))["max_running_requests"] >= 1
    assert json.loads(get_text(url + "/get_load"))[0]["num_reqs"] == 0
    assert json.loads(get_text(spread.router.url + "/v1/models"))["data"][0]["id"] == "demo"
    kinds: dict[str, str] = {}
    series: collections.Counter[str] = collections.Counter()
    # The endpoint pickers read Prometheus' older form, in which every family has its type.
    for family in text_string_to_metric_families(get_text(url + "/metrics")):
        kinds[family.name] = family.type
        series.update(sample.name for sample in family.samples)
    for name, kind in SCRAPED.items():
        assert kinds.get(name) == kind, name
        assert series[name] == 1, f"one series of {name}: pickers do not add them up"


def test_a_stream_comes_whole_through_the_router(spread: Cluster) -> None:
    with spread.open("Hello", max_tokens=8, stream=True, stream_options={"include_usage": True}) as stream:
        events = events_of(stream)
    assert events[-1] == "[DONE]"
    assert json.loads(events[-2])["usage"]["completion_tokens"] <= 8


def test_a_client_that_goes_away_ends_the_work(spread: Cluster) -> None:
    stream = spread.open("Hello", max_tokens=900, stream=True, ignore_eos=True)
    stream.readline()
    worker = busy_worker(spread)
    stream.close()
    worker.wait_idle()
    status = worker.status()
    assert (status["running"], status["blocks_running"]) == (0, 0)


def test_the_router_follows_prefixes(program: str) -> None:
    with cluster(program, "cache_aware") as running:
        beginnings = [f"This is the {name} conversation. " * 12 for name in ("first", "second", "third")]
        for _ in range(4):
            for beginning in beginnings:
                running.ask(beginning + "Go on.")
        hits = [worker.status() for worker in running.workers]
        reused = sum(status["reused_tokens"] for status in hits)
        # Three prompts are read once each, wherever; the nine repetitions find theirs.
        assert reused > 0.6 * sum(status["prompt_tokens"] for status in hits), hits


def test_a_killed_worker_is_missed_by_nobody(program: str) -> None:
    with cluster(program, "round_robin") as running:
        running.ask("Hello")
        running.workers[0].kill()
        assert all(running.ask("Hello") for _ in range(10)), "the router asks another one"
        running.workers = running.workers[1:]
        assert sum(running.requests()) >= 10
        running.workers[0].kill()
        assert running.ask("Hello"), "one is enough"


def test_draining_ends_streams_in_good_order(program: str) -> None:
    with cluster(program, "round_robin", workers=2) as running:
        stream = running.open("Hello", max_tokens=400, stream=True, ignore_eos=True)
        stream.readline()
        worker = busy_worker(running)
        events: list[str] = []
        reader = threading.Thread(target=lambda: events.extend(events_of(stream)))
        reader.start()
        worker.terminate()
        others = [server for server in running.workers if server is not worker]
        started = time.monotonic()
        while reader.is_alive() and time.monotonic() - started < PATIENCE:
            assert running.ask("Hello"), "new requests go to the other one"
        reader.join(PATIENCE)
        assert events[-1] == "[DONE]", "the stream ends whole"
        assert worker.process.wait(PATIENCE) == 0
        assert others[0].status()["requests"] >= 1
        assert running.ask("Hello")


def test_without_workers_the_router_says_so(program: str) -> None:
    with cluster(program, "round_robin", workers=1) as running:
        running.workers[0].kill()
        with pytest.raises(urllib.error.HTTPError) as caught:
            running.ask("Hello")
        assert caught.value.code >= 500
