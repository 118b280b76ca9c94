"""Several models: what a preset brings along, which model a conversation keeps, and one that was removed."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
import urllib.request

from browser import Checks, Page, Server

SYSTEM = "You are a sailor."
MODEL = "return document.getElementById('model').value"
#: The system prompt as its button and the empty field show it, and the placeholder of the temperature.
OWN = """const button = document.getElementById('instructions');
return [button.hidden ? '' : button.title, document.getElementById('system').placeholder, document.getElementById('temperature').placeholder]"""
#: Keeps the paths that are asked for, and the bodies that are sent.
RECORD = """
window.asked = [];
window.bodies = [];
const real = window.fetch;
window.fetch = (path, options) => {
  window.asked.push(String(path));
  if (String(path).endsWith('completions')) window.bodies.push(JSON.parse(options.body));
  return real(path, options);
};
"""
#: Seconds between two looks at the engines, while their picture is folded.
LOOKS = 5.0


def choose(page: Page, name: str) -> None:
    """Chooses a model as a person would."""
    page.run("const select = document.getElementById('model'); select.value = arguments[0];"
             "select.dispatchEvent(new Event('change', { bubbles: true }))", name)


def delete(server: Server, name: str) -> None:
    """Removes a preset, as another client of the server."""
    body = json.dumps({"model": name}).encode()
    request = urllib.request.Request(server.url + "/api/delete", data=body, method="DELETE")
    with urllib.request.urlopen(request, timeout=30):
        pass


def check_models(page: Page, program: str, checks: Checks) -> None:
    """A server with a preset beside the model inside the program."""
    with tempfile.TemporaryDirectory() as store:
        environment = os.environ | {"TRINE_HOME": store}
        create = [program, "create", "sailor", "--from", "demo", "--system", SYSTEM, "--temperature", "0.3", "--context", "200"]
        subprocess.run(create, env=environment, check=True, capture_output=True)
        server = Server(program, environment=environment)
        try:
            page.open(server.url)
            page.run(RECORD)
            check_kept(page, checks)
            check_removed(page, server, checks)
        finally:
            server.end()


def check_kept(page: Page, checks: Checks) -> None:
    """What a preset brings along, and which model a conversation keeps."""
    page.brief()
    page.set("temperature", "")
    page.ask("Who are you?")
    choose(page, "sailor")
    page.wait("the preset's values are shown", "return document.getElementById('temperature').placeholder === '0.3'")
    own = page.run(OWN)
    checks.note("a preset's system prompt and parameters are shown", own == [SYSTEM, SYSTEM, "0.3"], own)
    context = page.run("return document.getElementById('context-text').title")
    checks.note("the context is the preset's", context.endswith("of 200 tokens"), context)
    page.picture("preset")
    page.set("system", "You are a cook.")
    own = page.run(OWN)
    checks.note("what is typed takes the place of the preset's prompt", own[0] == "You are a cook.", own)
    page.set("system", "")
    page.ask("And now?")
    sent = page.run("return window.bodies.at(-1)")
    checks.note("the preset is asked, and its prompt left to the server",
                sent["model"] == "sailor" and sent["messages"][0]["role"] == "user", sent)
    device = page.run("return document.getElementById('device').textContent")
    checks.note("its engine is found under the model's name", device == "", device)
    sailors = page.address_of_page()
    page.click("#new")
    choose(page, "demo")
    page.brief()
    page.ask("A talk of its own")
    page.run("location.hash = arguments[0]", sailors.split("#")[1])
    page.wait("the other one is shown", "return document.querySelectorAll('.question').length === 2")
    checks.note("a conversation keeps its model", page.run(MODEL) == "sailor", page.run(MODEL))
    page.run("window.asked = []")
    time.sleep(2.5 * LOOKS)
    asked = page.run("return window.asked")
    checks.note("the models are not asked for again and again", "v1/trine/status" in asked and "v1/models" not in asked, asked)


def check_removed(page: Page, server: Server, checks: Checks) -> None:
    """A model that another client removes while its conversation is shown."""
    delete(server, "sailor")
    page.ask("Are you there?")
    failed = page.wait("the failure is shown", "return document.querySelector('.turn:last-child')?.textContent")
    checks.note("a removed model is told", "does not exist here" in failed and "Choose another model" in failed, failed)
    page.wait("it is marked", "return document.getElementById('model').selectedOptions[0].textContent === 'sailor (not here)'")
    page.picture("removed")
    page.set("message", "Still here")
    page.run("document.getElementById('composer').requestSubmit()")
    said = page.wait("it is said", "return !document.getElementById('toast').hidden && document.getElementById('toast-text').textContent")
    kept = page.run("return [document.getElementById('message').value, document.activeElement.id]")
    checks.note("nothing is sent to another model", "sailor" in said and kept == ["Still here", "model"], [said, kept])
    page.get_again()
    checks.note("it stays marked", page.run(MODEL) == "sailor" and len(page.questions()) == 3, page.run(MODEL))
    choose(page, "demo")
    page.press_words(".turn:last-child", "Try again")
    page.wait("the question is asked again", "return document.querySelectorAll('.answer').length === 3")
    page.wait_idle()
    checks.note("with another model the conversation goes on", len(page.answers()) == 3, page.answers())
    page.click("#new")
    page.run("localStorage.setItem('trine-model', 'sailor'); sessionStorage.removeItem('trine-new-chat')")
    page.get_again()
    page.brief()
    page.ask("A new start")
    model = page.run("return [document.getElementById('model').value, document.getElementById('model').options.length]")
    checks.note("a new chat begins with a model that is there", model == ["demo", 2] and len(page.answers()) == 1, model)
