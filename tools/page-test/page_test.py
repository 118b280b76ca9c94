#!/usr/bin/env python3
"""Drives the page at `/` in a headless Chromium, as a person would.

    page_test.py --trine target/debug/trine [--chromedriver chromedriver] [--pictures FOLDER]

Starts `trine serve` with the model inside the program, and `chromedriver` (Debian: chromium and chromium-driver).
Prints a line for every check and ends with 1 if one failed. `--pictures` keeps screenshots. Needs Python's standard
library alone.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

#: Seconds until something that a check waits for has failed to come.
PATIENCE = 30
#: WebDriver's name for the field that holds an element's id.
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
ENTER, TAB, SHIFT, ESCAPE = "\ue007", "\ue004", "\ue008", "\ue00c"

#: What a model or a file may hold to break out of its text.
HOSTILE = "\n".join(
    [
        "<img src=x onerror=\"window.broken='img'\">",
        "<script>window.broken='script'</script>",
        "[click](javascript:window.broken='link') [data](data:text/html,<script>1</script>) [fine](HTTPS://example.org/a_b)",
        "![picture](https://example.org/picture.png)",
        "# <svg onload=\"window.broken='svg'\">",
        "",
        "| <b>a</b> | b |",
        "|---|---|",
        "| <iframe srcdoc=\"<script>parent.broken='frame'</script>\"> | `<i>` |",
        "",
        "```\"><img src=x onerror=\"window.broken='info'\">",
        "<script>window.broken='code'</script>",
        "```",
    ]
)


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
        raise RuntimeError(f"waited in vain until {what}")

    def wait_idle(self) -> None:
        self.wait("the answer is whole", "return document.getElementById('stop').disabled")


class Server:
    """A running `trine serve`."""

    def __init__(self, program: str, *arguments: str) -> None:
        command = [program, "serve", "--device", "cpu", "--port", "0", *arguments]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.url = ""
        for line in self.process.stderr:
            found = re.search(r"https?://\S+", line)
            if found:
                self.url = found[0]
                break
        if not self.url:
            raise RuntimeError("the server does not start")

    def status(self, *headers: tuple[str, str]) -> dict:
        request = urllib.request.Request(self.url + "/v1/trine/status", headers=dict(headers))
        with urllib.request.urlopen(request, timeout=30) as response:
            return json.load(response)["models"][0]["status"]

    def end(self) -> None:
        self.process.send_signal(signal.SIGINT)
        self.process.wait(30)


class Checks:
    """Counts what holds and what does not."""

    def __init__(self) -> None:
        self.failed = 0

    def note(self, what: str, holds: object, detail: object = "") -> None:
        self.failed += not holds
        print(f"{'ok    ' if holds else 'FAILED'} {what}{'' if holds else f': {detail}'}", flush=True)


ANSWERS = "return [...document.querySelectorAll('.answer .said')].map(said => said.textContent)"
FIGURES = "return document.querySelector('.answer:last-child .figures').textContent"

#: Notes every length of the last answer while it is written; with an argument, presses Stop when it is that long.
WATCH = """
window.lengths = [];
new MutationObserver(() => {
  const said = [...document.querySelectorAll('.answer .said')].at(-1);
  const length = said ? said.textContent.length : 0;
  if (length > 0 && window.lengths.at(-1) !== length) window.lengths.push(length);
  if (arguments[0] && length >= arguments[0]) document.getElementById('stop').click();
}).observe(document.getElementById('turns'), { subtree: true, childList: true, characterData: true });
"""

#: Every visible text whose contrast to what is behind it is below 4.5 to 1.
CONTRAST = """
const channel = c => { c /= 255; return c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4; };
const parse = text => text.match(/[\\d.]+/g).map(Number);
const light = ([r, g, b]) => .2126 * channel(r) + .7152 * channel(g) + .0722 * channel(b);
const ground = node => {
  for (let at = node; at; at = at.parentElement) {
    const colour = parse(getComputedStyle(at).backgroundColor);
    if (colour.length < 4 || colour[3] === 1) return colour;
  }
  return parse(getComputedStyle(document.body).backgroundColor);
};
const bad = [];
for (const node of document.querySelectorAll('body *')) {
  const hasText = [...node.childNodes].some(child => child.nodeType === 3 && child.data.trim()) || node.value;
  if (!hasText || !node.checkVisibility() || node.closest('option')) continue;
  const pair = [light(parse(getComputedStyle(node).color)), light(ground(node))].sort((a, b) => b - a);
  const ratio = (pair[0] + .05) / (pair[1] + .05);
  if (ratio < 4.5) bad.push(`${node.tagName}#${node.id}.${node.className} ${ratio.toFixed(2)}`);
}
return bad;
"""

#: Controls that have no name for a screen reader.
NAMELESS = """
return [...document.querySelectorAll('button, input, select, textarea, meter, [role=img]')]
  .filter(node => node.checkVisibility() && !node.getAttribute('aria-label') && !node.labels?.length && !node.textContent.trim())
  .map(node => node.outerHTML.slice(0, 80));
"""


def open_all(driver: Driver) -> None:
    """Opens the folded parts of the page."""
    driver.run("for (const part of document.querySelectorAll('details')) part.open = true")


def ask(driver: Driver, text: str) -> None:
    driver.type("#message", text + ENTER)
    driver.wait_idle()


def check_chat(driver: Driver, server: Server, checks: Checks) -> None:
    """Sending, streaming, stopping, asking again, parameters."""
    driver.wait("the models are there", "return document.getElementById('model').options.length > 0")
    driver.run(WATCH)
    open_all(driver)
    driver.type("#max_tokens", "60")
    ask(driver, "Tell me a story about a dog.")
    lengths = driver.run("return window.lengths")
    checks.note("an answer streams", len(lengths) >= 3, lengths)
    figures = driver.run(FIGURES)
    checks.note("it has its figures", re.search(r"\d+ tokens, [\d.,]+ tokens/s, first after [\d.]+ s", figures), figures)
    context = driver.run("return document.getElementById('context-text').textContent")
    checks.note("the context is metered", re.fullmatch(r"[1-9]\d* of [\d,]+ tokens", context), context)
    spoken = driver.run("return document.getElementById('announcer').textContent")
    checks.note("the answer is announced whole", spoken.startswith("Answer: ") and len(spoken) > 20, spoken)

    driver.run("document.getElementById('max_tokens').value = ''; document.getElementById('max_tokens').dispatchEvent("
               "new Event('input', { bubbles: true }))")
    driver.run(WATCH, 10)
    ask(driver, "Tell me a long story about a cat.")
    figures = driver.run(FIGURES)
    checks.note("Stop ends an answer", "stopped" in figures, figures)
    deadline = time.monotonic() + 5
    while server.status()["running"] and time.monotonic() < deadline:
        time.sleep(0.02)
    before = server.status()
    time.sleep(0.3)
    after = server.status()
    checks.note("the engine ends it too", after["running"] == 0 and after["steps"] == before["steps"], after)
    driver.get_again()

    turns = len(driver.run(ANSWERS))
    open_all(driver)
    driver.type("#max_tokens", "2")
    driver.type("#temperature", "0")
    driver.click("#regenerate")
    driver.wait_idle()
    answers, figures = driver.run(ANSWERS), driver.run(FIGURES)
    checks.note("Regenerate replaces the answer", len(answers) == turns, answers)
    checks.note("a parameter counts", figures.startswith("2 tokens") and "limit" in figures, figures)
    driver.run("document.getElementById('top_p').value = '7'")
    driver.type("#message", "x" + ENTER)
    state = driver.run("return [document.querySelectorAll('.turn').length, document.activeElement.id]")
    checks.note("a parameter out of range is not sent", state == [2 * turns, "top_p"], state)
    driver.run("document.getElementById('top_p').value = ''; document.getElementById('message').value = ''")

    answers = driver.run(ANSWERS)
    driver.get_again()
    kept = [driver.run(ANSWERS), driver.run("return document.getElementById('max_tokens').value")]
    checks.note("a reload keeps the conversation", kept == [answers, "2"], kept)
    ask(driver, "And then?")
    driver.wait("the engine is drawn", "return document.querySelector('.line path').getAttribute('d').length > 5")
    device = driver.run("return document.getElementById('engine-device').textContent")
    checks.note("the picture names the device", device not in ("–", "not loaded", ""), device)


def check_hostile(driver: Driver, checks: Checks) -> None:
    """A conversation that tries to run code."""
    turns = [{"role": "user", "content": HOSTILE}, {"role": "assistant", "content": HOSTILE}]
    talk = {"format": 1, "model": "<b>", "system": "", "parameters": {"seed": "<x>"}, "turns": turns}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "conversation.json")
        file.write_text(json.dumps(talk))
        driver.run("window.confirm = () => true")
        driver.type("#import-file", str(file))
        driver.wait("it is imported", "return document.querySelectorAll('.turn').length === 2")
        time.sleep(0.5)
        checks.note("nothing in it runs", driver.run("return window.broken ?? null") is None)
        strange = "return document.querySelectorAll('.turn :is(img, script, svg, iframe, b, i)').length"
        checks.note("it makes no elements of its own", driver.run(strange) == 0)
        links = driver.run("return [...document.querySelectorAll('.turn a')].map(link => link.href)")
        web = [link for link in links if link.startswith("https://example.org/")]
        checks.note("only addresses of the web become links", links and links == web, links)
        code = driver.run("return document.querySelector('.code code').textContent")
        checks.note("code is shown as it is", code == "<script>window.broken='code'</script>", code)
        ground = driver.run("const begin = performance.now();"
                            "return import('/page/markdown.js').then(({ render }) => {"
                            " for (const bad of ['*a ', '[', '`` ` ', '_a_', '> ', '[](', '| ', '- ', '**a*', '~~'])"
                            "  render(bad.repeat(20000));"
                            " return performance.now() - begin; })")
        checks.note("texts made to be slow are not", ground < 10000, f"{ground} ms")
        file.write_text('{"format": 1, "turns": [{"role": "system", "content": 5}]}')
        driver.type("#import-file", str(file))
        driver.wait("it is refused", "return !document.getElementById('banner').hidden")
        checks.note("a file that is no conversation changes nothing", driver.run(
            "return document.querySelectorAll('.turn').length") == 2)
        driver.click("#banner-close")
    driver.run("""Object.defineProperty(navigator, 'clipboard',
        { value: { writeText: text => { window.copied = text; return Promise.resolve(); } } })""")
    driver.click(".code button")
    checks.note("code is copied", driver.run("return window.copied") == code)


def check_access(driver: Driver, checks: Checks) -> None:
    """Keys, names, contrast, narrow windows."""
    driver.get_again()
    order = []
    driver.run("document.body.focus()")
    for _ in range(15):
        driver.press(TAB)
        order.append(driver.run("return document.activeElement.id || document.activeElement.className"))
    wanted = ["skip", "model", "conversation", "message", "send"]
    places = [order.index(name) if name in order else -1 for name in wanted]
    checks.note("Tab reaches everything in order", places[0] >= 0 and places == sorted(places), order)
    outline = driver.run("document.getElementById('message').focus();"
                         "return getComputedStyle(document.activeElement).outlineStyle")
    checks.note("the focus is seen", outline == "solid", outline)
    open_all(driver)
    checks.note("every control has a name", not driver.run(NAMELESS), driver.run(NAMELESS))
    landmarks = driver.run("return ['header', 'main', 'aside', 'h1'].filter(name => !document.querySelector(name))")
    checks.note("the page has its landmarks", not landmarks, landmarks)
    tall = driver.run("return document.documentElement.scrollHeight <= innerHeight")
    checks.note("a wide window scrolls in its parts alone", tall)
    for scheme in ("light", "dark"):
        driver.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        driver.run("document.getElementById('banner').hidden = false;"
                   "document.getElementById('banner-text').textContent = 'A message'")
        bad = driver.run(CONTRAST)
        checks.note(f"texts can be read in the {scheme} colours", not bad, bad)
        driver.picture(scheme)
        driver.run("document.getElementById('banner').hidden = true")
    for width in (320, 360, 800):
        driver.devtools("Emulation.setDeviceMetricsOverride", width=width, height=720, deviceScaleFactor=1, mobile=True)
        sizes = driver.run("return [document.documentElement.scrollWidth, innerWidth]")
        checks.note(f"{width} pixels are wide enough", sizes == [width, width], sizes)
        driver.picture(f"width-{width}")
    driver.devtools("Emulation.clearDeviceMetricsOverride")


def check_polling(driver: Driver, server: Server, checks: Checks) -> None:
    """A tab that nobody sees asks nothing."""
    count = "return performance.getEntriesByType('resource').filter(one => one.name.endsWith('/v1/trine/status')).length"
    driver.run("performance.clearResourceTimings()")
    time.sleep(2.5)
    seen = driver.run(count)
    driver.run("Object.defineProperty(document, 'visibilityState', { value: 'hidden', configurable: true });"
               "document.dispatchEvent(new Event('visibilitychange')); performance.clearResourceTimings()")
    time.sleep(2.5)
    hidden = driver.run(count)
    driver.run("delete document.visibilityState; document.dispatchEvent(new Event('visibilitychange'))")
    time.sleep(1.5)
    checks.note("the engine is asked once a second, and not by a hidden tab",
                2 <= seen <= 4 and hidden == 0 and driver.run(count) >= 1, [seen, hidden])


def check_logs(driver: Driver, server: Server, checks: Checks) -> None:
    """What the browser complained of and whom it asked, since the beginning."""
    complaints = [entry["message"] for entry in driver.log("browser") if entry["level"] in ("SEVERE", "WARNING")]
    checks.note("the console is empty", not complaints, complaints)
    hosts = set()
    for entry in driver.log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            url = message["params"]["request"]["url"]
            if not url.startswith(("data:", "blob:", "chrome:", "about:")):
                hosts.add("/".join(url.split("/")[:3]))
    checks.note("no other host was asked", hosts == {server.url}, hosts)


def check_key(driver: Driver, program: str, checks: Checks) -> None:
    """A server that wants a key."""
    with tempfile.NamedTemporaryFile("w", suffix=".keys") as keys:
        keys.write("secret-key-1\n")
        keys.flush()
        server = Server(program, "--api-key-file", keys.name)
        try:
            driver.open(server.url)
            driver.wait("it asks for a key", "return document.getElementById('key-dialog').open")
            driver.type("#key", "wrong-key" + ENTER)
            driver.wait("it asks again", "return document.getElementById('key-dialog').open")
            driver.type("#key", "secret-key-1" + ENTER)
            driver.wait("the key works", "return document.getElementById('model').options.length > 0")
            ask(driver, "Hello")
            checks.note("with the key it works", driver.run(ANSWERS))
            kept = driver.run("return [JSON.stringify(localStorage), document.documentElement.outerHTML].join()")
            checks.note("the key is kept in the tab alone", "secret-key-1" not in kept)
        finally:
            server.end()


def check_errors(driver: Driver, program: str, checks: Checks) -> None:
    """A refused request and a server that goes away."""
    server = Server(program)
    driver.open(server.url)
    driver.wait("the models are there", "return document.getElementById('model').options.length > 0")
    driver.run("document.getElementById('message').value = 'word '.repeat(20000)")
    driver.click("#send")
    driver.wait("it is refused", "return !document.getElementById('banner').hidden")
    text = driver.run("return document.getElementById('banner-text').textContent")
    checks.note("an error is told with the request's id", re.search(r"context[\s\S]*Request req-\w+", text), text)
    server.end()
    driver.click("#regenerate")
    driver.wait("it is told", "return document.getElementById('banner-text').textContent.includes('cannot be reached')")
    checks.note("a server that is gone is told of", True)


class Page(Driver):
    """A browser that opens the page."""

    def __init__(self, address: str, arguments: list[str], pictures: str | None) -> None:
        super().__init__(address, arguments)
        self.url, self.pictures = "", pictures

    def open(self, url: str) -> None:
        self.url = url
        self.post("/url", {"url": url + "/"})

    def get_again(self) -> None:
        self.post("/refresh", {})
        self.wait("the models are there", "return document.getElementById('model').options.length > 0")

    def picture(self, name: str) -> None:
        if self.pictures:
            Path(self.pictures, name + ".png").write_bytes(base64.b64decode(self.call("GET", self.path + "/screenshot")))


def main() -> None:
    """Runs every check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trine", required=True)
    parser.add_argument("--chromedriver", default="chromedriver")
    parser.add_argument("--pictures", help="folder for screenshots")
    options = parser.parse_args()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    quiet = subprocess.DEVNULL
    chromedriver = subprocess.Popen([options.chromedriver, f"--port={port}"], stdout=quiet, stderr=quiet)
    arguments = ["--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1200,800"]
    if os.geteuid() == 0:
        # Chromium has no sandbox for root.
        arguments.append("--no-sandbox")
    checks, driver, server = Checks(), None, None
    try:
        deadline = time.monotonic() + PATIENCE
        while driver is None:
            try:
                driver = Page(f"http://127.0.0.1:{port}", arguments, options.pictures)
            except urllib.error.URLError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
        server = Server(options.trine)
        driver.open(server.url)
        check_chat(driver, server, checks)
        check_hostile(driver, checks)
        check_access(driver, checks)
        check_polling(driver, server, checks)
        check_logs(driver, server, checks)
        check_key(driver, options.trine, checks)
        check_errors(driver, options.trine, checks)
    finally:
        if server:
            server.end()
        if driver:
            driver.call("DELETE", driver.path)
        chromedriver.terminate()
        chromedriver.wait(30)
    print(f"{checks.failed} checks failed" if checks.failed else "every check holds")
    sys.exit(checks.failed > 0)


if __name__ == "__main__":
    main()
