"""Getting a model on the page, from a small hub on this machine; names of models; and one that was not trained to chat."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import urllib.request
from pathlib import Path

from browser import Checks, Page, Server
from image_checks import CHIPS, SEER, drop
from models_checks import choose

sys.path.insert(0, str(Path(__file__).parent.parent / "server-test"))
from hub import Hub  # noqa: E402

MODEL = Path(__file__).parent.parent.parent / "assets" / "demo.gguf"
OFFER = "return document.querySelector(`#offers [data-name=\"${arguments[0]}\"]`)?.textContent"
BUTTON = "return document.querySelector(`#offers [data-name=\"${arguments[0]}\"] button`)?.firstChild.textContent"
PRESS = "document.querySelector(`#offers [data-name=\"${arguments[0]}\"] button`).click()"
#: The labels of the list of models, and their titles.
LABELS = "return [...document.getElementById('model').options].map(option => [option.textContent, option.title])"
DROP = """
const data = new DataTransfer();
data.items.add(new File([new Uint8Array(8)], 'red.png', { type: 'image/png' }));
dispatchEvent(new DragEvent('drop', { dataTransfer: data, cancelable: true, bubbles: true }));
"""


def catalogue(server: Server) -> list[dict]:
    with urllib.request.urlopen(server.url + "/v1/trine/catalog", timeout=60) as response:
        return json.load(response)["models"]


def open_list(page: Page) -> None:
    """Chooses the entry that gets a model, which is there once the page knows that the server lets it."""
    page.wait("there is a way to get models",
              "return [...document.getElementById('model').options].some(option => option.value === 'get a model')")
    choose(page, "get a model")


def check_getting(page: Page, program: str, checks: Checks) -> None:
    """From the model inside the program to another one, without a terminal."""
    with tempfile.TemporaryDirectory() as store, Hub({}) as hub:
        for quant in ("Q4_0", "Q8_0"):
            file = Path(store, "owner", "Tiny-GGUF", f"tiny-{quant}.gguf")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(MODEL.read_bytes())
        environment = os.environ | {"TRINE_HOME": store, "HF_ENDPOINT": hub.url, "HF_HOME": store + "/none", "HOME": store + "/none"}
        server = Server(program, environment=environment)
        try:
            best = next(model for model in catalogue(server) if model["recommended"])
            repository, quant = best["model"].split(":")
            hub.repositories[repository] = {f"model-{quant}.gguf": MODEL.read_bytes()}
            hub.pause = 0.02
            page.open(server.url)
            check_beginning(page, best["name"], checks)
            check_download(page, hub, best, checks)
        finally:
            server.end()


def check_beginning(page: Page, best: str, checks: Checks) -> None:
    """What an empty page says of the model inside the program, and what an image is answered with."""
    page.run("document.getElementById('new').click()")
    choose(page, "demo")
    told = page.wait("a better model is named", "const about = document.getElementById('about-model');"
                     "return about.querySelector('button') && about.checkVisibility() && about.textContent")
    checks.note("the page says what demo is, and offers another model", "only tells short stories" in told and f"Get {best}" in told, told)
    examples = page.run("return [...document.querySelectorAll('#examples button')].map(one => one.textContent)")
    checks.note("there are examples that it can answer", len(examples) == 3 and all("story" in one for one in examples), examples)
    page.picture("begin")
    labels = page.run(LABELS)
    wanted = [["demo · 12.5 MB", "demo"], ["Tiny:Q4_0 · 12.5 MB", "owner/Tiny-GGUF:Q4_0"], ["Tiny:Q8_0 · 12.5 MB", "owner/Tiny-GGUF:Q8_0"]]
    checks.note("models have short names and sizes, and the whole name as a title", labels[:3] == wanted
                and labels[-1][0].startswith("Get a model"), labels)
    page.run(DROP)
    note = page.wait("an image is not taken", "const note = document.getElementById('note');"
                     "return !note.hidden && [note.textContent, document.getElementById('banner').hidden]")
    checks.note("a note at the message offers a model that reads images", "demo takes text only" in note[0] and "reads images" in note[0]
                and "Get gemma" in note[0] and note[1], note)
    page.click("#note-close")
    page.run("document.querySelector('#examples button').click()")
    page.wait("the example is sent", "return document.querySelector('.question')")
    page.wait_idle()
    checks.note("an example is a message", page.questions() == examples[:1] and len(page.answers()) == 1, page.questions())
    page.run("document.getElementById('new').click()")


def check_download(page: Page, hub: Hub, best: dict, checks: Checks) -> None:
    """The catalogue, a download that is cancelled and continued, and the model that it brings."""
    name = best["name"]
    open_list(page)
    page.wait("the machine is measured", "return document.getElementById('get-machine').textContent.startsWith('Forecasts for')")
    offer = page.run(OFFER, name)
    # With speeds known, another model may be the one to take.
    badges = page.run("return document.querySelectorAll('#offers .badge').length")
    checks.note("the catalogue says size, fit and speed", "GB" in offer and "fits this machine" in offer and "tokens/s" in offer
                and badges == 1, [offer, badges])
    count = "return document.querySelectorAll('#offers .offer').length"
    few = page.run(count)
    page.click("#get-all")
    checks.note("all files are shown to who wants them", page.run(count) > 2 * few, [few, page.run(count)])
    page.click("#get-all")
    page.picture("get")
    page.set("get-name", "no/such")
    page.run("document.getElementById('get-form').requestSubmit()")
    told = page.wait("a repository that is not there is told", "return document.querySelector('#offers .wrong')?.textContent")
    checks.note("a download that fails says why", "no/such" in told, told)

    page.run(PRESS, name)
    page.wait("bytes come", "return / MB of about/.test(document.getElementById('offers').textContent)")
    words = page.run(OFFER, name)
    checks.note("progress is shown with a way to cancel", "of about" in words and "Cancel" in words, words)
    page.picture("getting")
    page.run(PRESS, name)
    words = page.wait("it can be continued", BUTTON + "?.startsWith('Continue') ? " + BUTTON.removeprefix("return ") + " : ''", name)
    checks.note("a cancelled download can be continued", words.startswith("Continue"), words)
    page.get_again()
    open_list(page)
    page.wait("it can be continued after a reload", BUTTON + "?.startsWith('Continue')", name)
    page.run(PRESS, name)
    page.wait("the model is chosen", "return document.getElementById('model').value === arguments[0]", name)
    label = page.run("const option = document.getElementById('model').selectedOptions[0]; return [option.textContent, option.title]")
    checks.note("the new model is there under the name it was asked for", label == [f"{name} · 12.5 MB", best["model"]], label)
    file = next(path for path in hub.asked if path.endswith(".gguf") and "/resolve/" in path)
    checks.note("nothing was fetched twice from its beginning", hub.asked[file] >= 2, hub.asked)
    told = page.run("return [document.getElementById('get-dialog').open, document.getElementById('toast-text').textContent]")
    checks.note("it is told that it is ready", told == [False, f"{name} is ready."], told)
    page.brief()
    page.ask("Who are you?")
    checks.note("and it answers", len(page.answers()) == 1 and page.answers()[0] != "", page.answers())
    # A chat of before knows the model by its long name.
    page.run("""return (async () => {
      const [{ Store }, { Talk }] = await Promise.all([import('/page/store.js'), import('/page/conversation.js')]);
      const store = new Store(() => {});
      await store.open();
      const talk = new Talk({ id: 'longname', title: 'Long name', model: arguments[0] });
      talk.add('user', 'Hello', null);
      await store.save(talk);
    })()""", best["model"])
    page.run("location.hash = '#chat-longname'")
    page.wait("the chat is shown", "return document.querySelector('h1').textContent === 'Long name'")
    checks.note("a chat with the model's long name finds it", page.run("return document.getElementById('model').value") == name)


def check_base(page: Page, program: str, checks: Checks) -> None:
    """A model without a chat template continues texts, as in the terminal."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "base.gguf")
        # Under another key the template is no template.
        file.write_bytes(MODEL.read_bytes().replace(b"tokenizer.chat_template", b"tokenizer.chat_templatX"))
        server = Server(program, str(file))
        try:
            page.open(server.url)
            page.run("document.getElementById('new').click()")
            told = page.wait("a base model is told of", "const about = document.getElementById('about-model');"
                             "return about.checkVisibility() && about.textContent.includes('base model') && about.textContent")
            checks.note("the page says what a base model is", "-it in its name" in told, told)
            page.run("""window.bodies = [];
                const real = window.fetch;
                window.fetch = (path, options) => {
                  if (String(path).endsWith('completions')) window.bodies.push([String(path), JSON.parse(options.body)]);
                  return real(path, options);
                };""")
            page.set("max_tokens", 8)
            page.ask("Once upon a time")
            checks.note("a base model continues the text", len(page.answers()) == 1 and page.answers()[0] != ""
                        and not page.run("return document.querySelector('.trouble:not([hidden])')"), page.answers())
            path, body = page.run("return window.bodies[0]")
            checks.note("it is sent the words alone", path == "v1/completions" and body["prompt"] == "Once upon a time", [path, body])
            first = page.answers()[0]
            page.act(".answer:last-child", "continue")
            page.wait("it goes on", "return window.bodies.length === 2")
            page.wait_idle()
            body = page.run("return window.bodies[1][1]")
            checks.note("and goes on with its own", body["prompt"].startswith("Once upon a time" + first.rstrip()[:10]), body)
            # One with a vision tower, as far as the page can see; it answers itself.
            seer = SEER.replace("if (!String(path).endsWith('completions')) ", "")
            script = page.devtools("Page.addScriptToEvaluateOnNewDocument", source=seer)["identifier"]
            page.get_again()
            page.wait("the page knows that the model takes pictures",
                      "return document.getElementById('attach').title === 'Attach images and text files'")
            drop(page)
            page.wait("pictures are attached", CHIPS.replace("return", "return 2 ===") + ".length")
            page.ask("A square")
            told = page.run("return document.querySelector('.answer:last-child .figures').textContent")
            checks.note("a picture that it does not see is told", "2 images left out" in told, told)
            page.devtools("Page.removeScriptToEvaluateOnNewDocument", identifier=script)
        finally:
            server.end()
