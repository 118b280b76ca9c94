"""Pictures: attached, shown, sent, kept with their messages, and refused where the model takes text only."""

from __future__ import annotations

from browser import Checks, Page

#: Makes the server's model one that takes pictures, as far as the page can see, and keeps what it is asked.
SEER = r"""
const real = window.fetch;
window.sent = [];
window.fetch = async (path, options) => {
  if (String(path).endsWith('api/show')) {
    const answer = await (await real(path, options)).json();
    answer.capabilities = [...(answer.capabilities ?? []), 'vision'];
    return new Response(JSON.stringify(answer), { status: 200 });
  }
  if (!String(path).endsWith('completions')) return real(path, options);
  window.sent.push(JSON.parse(options.body));
  const chunk = { choices: [{ index: 0, delta: { content: 'A square.' }, finish_reason: 'stop' }] };
  return new Response(`data: ${JSON.stringify(chunk)}\n\ndata: [DONE]\n\n`, { status: 200 });
};
"""
#: The same for a model that takes text only.
READER = SEER.replace("answer.capabilities = [...(answer.capabilities ?? []), 'vision'];", "")
#: Gives the page files by a drop: a red square as PNG, a square that is too many bytes, a file that is no picture.
DROP = r"""
const done = arguments[arguments.length - 1];
const square = (side, isNoisy) => {
  const canvas = new OffscreenCanvas(side, side);
  const pen = canvas.getContext('2d');
  const pixels = pen.createImageData(side, side);
  for (let at = 0; at < pixels.data.length; at += 1) pixels.data[at] = at % 4 === 3 || at % 4 === 0 ? 255 : 0;
  if (isNoisy) {
    for (let at = 0; at < pixels.data.length; at += 65536) {
      crypto.getRandomValues(pixels.data.subarray(at, Math.min(at + 65536, pixels.data.length)));
    }
  }
  pen.putImageData(pixels, 0, 0);
  return canvas.convertToBlob({ type: 'image/png' });
};
Promise.all([square(40, false), square(2500, true)]).then(([small, large]) => {
  const data = new DataTransfer();
  data.items.add(new File([small], 'red.png', { type: 'image/png' }));
  data.items.add(new File([large], 'noise.png', { type: 'image/png' }));
  data.items.add(new File(['not a picture'], 'wrong.png', { type: 'image/png' }));
  dispatchEvent(new DragEvent('drop', { dataTransfer: data, cancelable: true, bubbles: true }));
  done([small.size, large.size]);
});
"""
CHIPS = "return [...document.querySelectorAll('#files .chip')].map(chip => chip.textContent)"
TOLD = "return !document.getElementById('note').hidden && document.getElementById('note-text').textContent"
#: The pictures of the questions: name, sides, and the colour in the middle.
SHOWN = """
return [...document.querySelectorAll('.question .image')].map(place => {
  const canvas = place.querySelector('canvas');
  const [x, y] = canvas ? [canvas.width / 2, canvas.height / 2] : [0, 0];
  const colour = canvas ? [...canvas.getContext('2d').getImageData(x, y, 1, 1).data] : null;
  return [place.getAttribute('aria-label'), canvas?.width, canvas?.height, colour];
});
"""


def drop(page: Page) -> list[int]:
    """Drops the files; returns the bytes of the two pictures."""
    body = {"script": DROP, "args": []}
    return page.post("/execute/async", body)


def check_images(page: Page, checks: Checks) -> None:
    """The model as it is, and one that takes pictures."""
    page.run("document.getElementById('new').click()")
    label = page.run("return document.getElementById('attach').title")
    drop(page)
    told = page.wait("pictures are refused", TOLD)
    checks.note("a model of texts takes no pictures", "red.png" in told and "takes text only" in told
                and label == "Attach text files" and page.run(CHIPS) == [], [told, label])
    page.click("#note-close")

    script = page.devtools("Page.addScriptToEvaluateOnNewDocument", source=SEER)["identifier"]
    page.get_again()
    page.wait("the page knows that the model takes pictures",
              "return document.getElementById('attach').title === 'Attach images and text files'")
    _, large = drop(page)
    told = page.wait("what is no picture is told", TOLD)
    chips = page.run(CHIPS)
    checks.note("pictures are attached with their sizes", len(chips) == 2 and chips[0].startswith("red.png")
                and chips[1].startswith("noise.png"), chips)
    checks.note("what is no picture is refused with a reason", "wrong.png" in told and "PNG or JPEG" in told, told)
    page.click("#note-close")
    page.ask("What is this?")
    parts = page.run("return window.sent[0].messages.at(-1).content")
    kinds = [part["type"] for part in parts]
    urls = [part["image_url"]["url"] for part in parts[:2]]
    checks.note("they come before the text, as data URLs", kinds == ["image_url", "image_url", "text"]
                and parts[2]["text"] == "What is this?" and urls[0].startswith("data:image/png;base64,"), kinds)
    checks.note("large ones are sent smaller", urls[1].startswith("data:image/jpeg;base64,") and len(urls[1]) < large,
                [urls[1][:40], len(urls[1]), large])
    page.wait("they are drawn", "return document.querySelectorAll('.question canvas').length === 2")
    shown = page.run(SHOWN)
    checks.note("they are shown with their names", [image[0] for image in shown] == ["red.png", "noise.png"]
                and shown[0][1:] == [40, 40, [255, 0, 0, 255]] and shown[1][1:3] == [320, 320], shown)

    page.get_again()
    page.wait("the conversation is drawn", "return document.querySelectorAll('.question canvas').length === 2")
    page.ask("And now?")
    messages = page.run("return window.sent[0].messages")
    checks.note("they outlive a reload and are sent again", [type(message["content"]).__name__ for message in messages]
                == ["list", "str", "str"] and messages[0]["content"][0]["image_url"]["url"] == urls[0], len(messages))
    stored = page.run("return Object.keys(localStorage).reduce((sum, key) => sum + localStorage[key].length, 0)")
    checks.note("nothing of them is in the small storage", stored < 20000, stored)

    page.act(".question", "edit")
    page.run("document.querySelector('.question .files .act-close').click()")
    page.run("[...document.querySelectorAll('.question button')].find(one => one.textContent === 'Send').click()")
    page.wait("the changed message is asked", "return window.sent.length === 2")
    page.wait_idle()
    parts = page.run("return window.sent[1].messages.at(-1).content")
    checks.note("a picture can be left out of a changed message", len(parts) == 2 and parts[0]["image_url"]["url"] == urls[1],
                len(parts))
    page.devtools("Page.removeScriptToEvaluateOnNewDocument", identifier=script)

    script = page.devtools("Page.addScriptToEvaluateOnNewDocument", source=READER)["identifier"]
    page.get_again()
    page.ask("And what now?")
    contents = page.run("return window.sent[0].messages.map(message => message.content)")
    note = page.run("return [...document.querySelectorAll('.answer .figures')].at(-1).textContent")
    checks.note("a model of texts is sent no pictures of earlier turns, with a note", contents[-1] == "And what now?"
                and all(isinstance(content, str) for content in contents) and "an image left out" in note, [contents, note])
    page.devtools("Page.removeScriptToEvaluateOnNewDocument", identifier=script)
    page.run("document.getElementById('new').click()")
    page.get_again()
