"""Servers as processes, and what they tell about themselves. Needs only Python's standard library."""

from __future__ import annotations

import json
import re
import signal
import struct
import subprocess
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

#: Root of the repository, and the folder for everything that the tests write.
ROOT = Path(__file__).resolve().parents[2]
SCRATCH = ROOT / "target" / "server-test"
#: The file of the model inside the program.
DEMO = ROOT / "assets" / "demo.gguf"
#: Seconds until something that a test waits for has failed to come.
PATIENCE = 60.0
#: GGUF's number for the type u32.
GGUF_U32 = 4


def wait_until(what: str, is_so: Callable[[], object], patience: float = PATIENCE) -> None:
    """Waits for a condition; raises TimeoutError after `patience` seconds."""
    deadline = time.monotonic() + patience
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(f"gave up waiting until {what}")
        time.sleep(0.02)


def get_text(url: str) -> str:
    """The body at an address."""
    with urllib.request.urlopen(url, timeout=PATIENCE) as response:
        return response.read().decode()


class Process:
    """A program with its output in a file, ended with the block that started it."""

    def __init__(self, name: str, command: list[str]) -> None:
        SCRATCH.mkdir(parents=True, exist_ok=True)
        self.log = SCRATCH / f"{name}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def __enter__(self) -> Process:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def said(self) -> str:
        """What the program has written so far; raises RuntimeError if it has ended."""
        if self.process.poll() is not None:
            raise RuntimeError(f"{self.process.args} ended: {self.log.read_text()[-2000:]}")
        return self.log.read_text()

    def terminate(self) -> None:
        """Asks the program to end in good order."""
        self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Ends the program at once and waits for it."""
        self.process.kill()
        self.process.wait(PATIENCE)


class Server(Process):
    """A running `trine serve` on a free port."""

    def __init__(self, program: str, *arguments: str, name: str = "serve") -> None:
        super().__init__(name, [program, "serve", "--device", "cpu", "--port", "0", *arguments])
        try:
            wait_until("the server listens", self._address)
        except BaseException:
            self.kill()
            raise
        #: Without a slash at the end.
        self.url: str = self._address()[0]

    def _address(self) -> re.Match[str] | None:
        return re.search(r"https?://[\d.:]+(?=\s)", self.said())

    def __enter__(self) -> Server:
        return self

    def status(self) -> dict:
        """What the engine of the first model does."""
        return json.loads(get_text(self.url + "/v1/trine/status"))["models"][0]["status"]

    def wait_idle(self) -> None:
        """Waits until no request runs or waits."""

        def is_idle() -> bool:
            status = self.status()
            return status["running"] == 0 and status["waiting"] == 0

        wait_until("the engine is idle", is_idle)


def demo_with_context(positions: int) -> Path:
    """The embedded model's file with another number of positions written in it.

    What it says after the positions that it learned is no language any more; the server's work is the same.
    """
    data = bytearray(DEMO.read_bytes())
    key = b"gemma3.context_length"
    place = data.index(key) + len(key)
    kind, _ = struct.unpack_from("<II", data, place)
    if kind != GGUF_U32:
        raise ValueError(f"{DEMO}: the context's length is of type {kind}")
    struct.pack_into("<I", data, place + 4, positions)
    folder = SCRATCH / f"context-{positions}"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / DEMO.name
    path.write_bytes(data)
    return path
