"""A browser through chromedriver's plain HTTP, a running server, and what the checks share."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

#: Seconds until something that a check waits for has failed to come.
PATIENCE = 60
#: WebDriver's name for the field that holds an element's id.
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
ENTER, TAB, SHIFT, CONTROL, ALT, ESCAPE, UP = "\ue007", "\ue004", "\ue008", "\ue009", "\ue00a", "\ue00c", "\ue013"

ANSWERS = "return [...document.querySelectorAll('.answer .said')].map(said => said.textContent)"
QUESTIONS = "return [...document.querySelectorAll('.question .words')].map(said => said.textContent)"
FIGURES = "return document.querySelector('.answer:last-child .figures')?.textContent ?? ''"
TITLES = "return [...document.querySelectorAll('#talks .talk-title')].map(title => title.textContent)"


class Driver:
    """One browser through chromedriver's plain HTTP."""

    def __init__(self, address: str, arguments: list[str]) -> None:
        self.address = address
        options = {"args": arguments}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}
        session = self.call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self.path = f"/session/{session['sessionId']}"

    def call(self, method: str, path: str, body: object | None = None) -> object:
        """Calls chromedriver; raises RuntimeError with its message."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.address + path, data=data, method=method)
        request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=120) as response:
                return json.load(response)["value"]
        except urllib.error.HTTPError as error:
            value = json.load(error)["value"]
            raise RuntimeError(f"{value['error']}: {value['message'][:300]}") from None

    def post(self, path: str, body: object) -> object:
        return self.call("POST", self.path + path, body)

    def run(self, script: str, *arguments: object) -> object:
        """Runs the body of a function in the page."""
        return self.post("/execute/sync", {"script": script, "args": list(arguments)})

    def devtools(self, command: str, **parameters: object) -> object:
        return self.post("/goog/cdp/execute", {"cmd": command, "params": parameters})

    def find(self, selector: str) -> str:
        return self.post("/element", {"using": "css selector", "value": selector})[ELEMENT]

    def click(self, selector: str) -> None:
        self.post(f"/element/{self.find(selector)}/click", {})

    def type(self, selector: str, text: str) -> None:
        self.post(f"/element/{self.find(selector)}/value", {"text": text})

    def press(self, *keys: str) -> None:
        """Presses keys together, wherever the focus is."""
        downs = [{"type": "keyDown", "value": key} for key in keys]
        ups = [{"type": "keyUp", "value": key} for key in reversed(keys)]
        self.post("/actions", {"actions": [{"type": "key", "id": "keys", "actions": downs + ups}]})

    def log(self, kind: str) -> list[dict]:
        """What was logged since the last call."""
        return self.post("/se/log", {"type": kind})

    def wait(self, what: str, script: str, *arguments: object) -> object:
        """Waits until a script gives something true."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            found = self.run(script, *arguments)
            if found:
                return found
            time.sleep(0.05)
        raise RuntimeError(f"waited {PATIENCE} s until {what}")

    def tabs(self) -> list[str]:
        return self.call("GET", self.path + "/window/handles")

    def switch(self, tab: str) -> None:
        self.post("/window", {"handle": tab})


class Page(Driver):
    """A browser that opens the page."""

    def __init__(self, address: str, arguments: list[str], pictures: str | None) -> None:
        super().__init__(address, arguments)
        self.url, self.pictures = "", pictures

    def open(self, url: str) -> None:
        """Opens the page of a server and waits until it can be used."""
        self.url = url
        self.post("/url", {"url": url + "/"})
        self.ready()

    def get_again(self) -> None:
        self.post("/refresh", {})
        self.ready()

    def ready(self) -> None:
        self.wait("the models are there", "return document.getElementById('model')?.options.length > 0")

    def new_tab(self, address: str) -> str:
        """Opens an address in another tab and goes there."""
        tab = self.post("/window/new", {"type": "tab"})["handle"]
        self.switch(tab)
        self.post("/url", {"url": address})
        self.ready()
        return tab

    def close_tab(self, then: str) -> None:
        self.call("DELETE", self.path + "/window")
        self.switch(then)

    def address_of_page(self) -> str:
        return self.run("return location.href")

    def picture(self, name: str) -> None:
        if self.pictures:
            Path(self.pictures, name + ".png").write_bytes(base64.b64decode(self.call("GET", self.path + "/screenshot")))

    def size(self, width: int, height: int) -> None:
        self.devtools("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)

    def scheme(self, name: str) -> None:
        self.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def wait_idle(self) -> None:
        """Waits until nothing is being written and everything is kept."""
        self.wait("the answer is whole", "return document.getElementById('stop').hidden && !document.querySelector('.writing')")

    def ask(self, text: str) -> None:
        """Sends a message and waits for the end of its answer."""
        before = self.run("return document.querySelectorAll('.question').length")
        self.type("#message", text + ENTER)
        self.wait("the question is sent", "return document.querySelectorAll('.question').length > arguments[0]", before)
        self.wait_idle()

    def set(self, name: str, value: object) -> None:
        """Puts a value into a field as a person would who replaces what is there."""
        self.run("const field = document.getElementById(arguments[0]); field.value = arguments[1];"
                 "field.dispatchEvent(new Event('input', { bubbles: true }))", name, str(value))

    def endless(self) -> None:
        """Makes answers end at the limit of tokens or when the context is full, and not before."""
        self.set("max_tokens", "")
        self.run("""window.isEndless = true;
            if (window.endless) return;
            window.endless = window.fetch;
            window.fetch = (path, options) => {
              if (window.isEndless && String(path).endsWith('completions')) {
                options = { ...options, body: JSON.stringify({ ...JSON.parse(options.body), ignore_eos: true }) };
              }
              return window.endless(path, options);
            };""")

    def brief(self) -> None:
        """Makes answers short and always the same."""
        self.run("window.isEndless = false")
        self.set("max_tokens", 8)
        self.set("temperature", 0)

    def act(self, turn: str, name: str) -> None:
        """Presses a button of a message."""
        self.run("document.querySelector(`${arguments[0]} .act-${arguments[1]}`).click()", turn, name)

    def press_words(self, place: str, words: str) -> None:
        """Presses the button with these words."""
        self.run("[...document.querySelectorAll(`${arguments[0]} button`)].find(one => one.textContent === arguments[1]).click()",
                 place, words)

    def import_file(self, path: Path) -> None:
        self.type("#import-file", str(path))

    def answers(self) -> list[str]:
        return self.run(ANSWERS)

    def questions(self) -> list[str]:
        return self.run(QUESTIONS)

    def titles(self) -> list[str]:
        return self.run(TITLES)


class Server:
    """A running `trine serve`."""

    def __init__(self, program: str, *arguments: str, port: int = 0, environment: dict[str, str] | None = None) -> None:
        command = [program, "serve", "--device", "cpu", "--port", str(port), *arguments]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        self.url = ""
        for line in self.process.stderr:
            found = re.search(r"https?://\S+", line)
            if found:
                self.url = found[0]
                break
        if not self.url:
            raise RuntimeError("the server does not start")
        self.port = int(self.url.rsplit(":", 1)[1])
        # A pipe that nobody reads would stop the server.
        threading.Thread(target=self.process.stderr.read, daemon=True).start()

    def status(self, *headers: tuple[str, str]) -> dict:
        request = urllib.request.Request(self.url + "/v1/trine/status", headers=dict(headers))
        with urllib.request.urlopen(request, timeout=30) as response:
            return json.load(response)["models"][0]["status"]

    @contextlib.contextmanager
    def slowed(self) -> Iterator[None]:
        """Stops the process most of the time, so that an answer takes long enough to be watched on a fast machine too."""
        done = threading.Event()

        def pace() -> None:
            while not done.is_set():
                self.process.send_signal(signal.SIGSTOP)
                done.wait(0.03)
                self.process.send_signal(signal.SIGCONT)
                done.wait(0.003)

        thread = threading.Thread(target=pace)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(30)

    def kill(self) -> None:
        """Ends it as a crash would."""
        self.process.kill()
        self.process.wait(30)


class Checks:
    """Counts what holds and what does not."""

    def __init__(self) -> None:
        self.failed = 0

    def note(self, what: str, holds: object, detail: object = "") -> None:
        self.failed += not holds
        print(f"{'ok    ' if holds else 'FAILED'} {what}{'' if holds else f': {detail}'}", flush=True)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def start_driver(program: str, pictures: str | None) -> tuple[subprocess.Popen, Page]:
    """Starts chromedriver and a headless Chromium."""
    port = free_port()
    quiet = subprocess.DEVNULL
    process = subprocess.Popen([program, f"--port={port}"], stdout=quiet, stderr=quiet)
    arguments = ["--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1200,800"]
    if os.geteuid() == 0:
        # Chromium has no sandbox for root.
        arguments.append("--no-sandbox")
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return process, Page(f"http://127.0.0.1:{port}", arguments, pictures)
        except urllib.error.URLError:
            if time.monotonic() > deadline:
                process.terminate()
                raise
            time.sleep(0.1)
