"""Keyboard, screen readers, colours, narrow windows, and what the browser logged."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from browser import ALT, CONTROL, ESCAPE, TAB, UP, Checks, Page, Server

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
// What is partly transparent is mixed with its ground.
const strength = node => {
  let product = 1;
  for (let at = node; at; at = at.parentElement) product *= Number(getComputedStyle(at).opacity);
  return product;
};
const bad = [];
for (const node of document.querySelectorAll('body *')) {
  const hasText = [...node.childNodes].some(child => child.nodeType === 3 && child.data.trim()) || node.value || node.placeholder;
  if (!hasText || !node.checkVisibility() || node.closest('option') || node.matches('meter, :disabled')) continue;
  const under = ground(node);
  const share = strength(node);
  if (share === 0) continue;
  const text = parse(getComputedStyle(node).color).slice(0, 3).map((value, index) => value * share + under[index] * (1 - share));
  const pair = [light(text), light(under)].sort((a, b) => b - a);
  const ratio = (pair[0] + .05) / (pair[1] + .05);
  if (ratio < 4.5) bad.push(`${node.tagName}#${node.id}.${node.className} ${ratio.toFixed(2)}`);
}
return bad;
"""

#: Controls that have no name for a screen reader.
NAMELESS = """
return [...document.querySelectorAll('button, input, select, textarea, meter, [role=img]')]
  .filter(node => node.checkVisibility() && !node.getAttribute('aria-label') && !node.title && !node.labels?.length && !node.textContent.trim())
  .map(node => node.outerHTML.slice(0, 80));
"""

#: What says a name twice, hides from the eye what readers reach, or skips a level of headings.
READERS = """
const bad = [...document.querySelectorAll('[title][aria-label]')].map(node => `${node.id} has its name twice`);
for (const node of document.querySelectorAll('input[type=file]')) if (node.checkVisibility()) bad.push(`${node.id} is reached`);
const levels = [...document.querySelectorAll('h1, h2, h3, h4, h5, h6')].filter(node => node.checkVisibility()).map(node => Number(node.tagName[1]));
levels.forEach((level, index) => { if (index > 0 && level > levels[index - 1] + 1) bad.push(`a heading of level ${level} after ${levels[index - 1]}`); });
const names = ['nav', '#menu', '#conversation', '#panel'].map(one => document.querySelector(one))
  .map(node => node.getAttribute('aria-label') ?? node.title);
if (new Set(names).size < names.length) bad.push(`one name for several parts: ${names}`);
const described = document.getElementById('message').getAttribute('aria-describedby');
if (document.getElementById('message').labels[0].textContent !== 'Message' || !document.getElementById(described)) bad.push('the message');
return bad;
"""

#: Controls smaller than 24 pixels.
SMALL = """
return [...document.querySelectorAll('button, select, summary, #talks a')].filter(node => node.checkVisibility()).filter(node => {
  const { width, height } = node.getBoundingClientRect();
  return (width < 24 || height < 24) && !node.closest('.unseen') && width > 1;
}).map(node => `${node.tagName}#${node.id}.${node.className}`);
"""

#: A conversation that looks like one.
SHOWN = {
    "trine_conversation": 2,
    "title": "Sorting in Rust",
    "system": "You are a patient teacher.",
    "messages": [
        {"role": "user", "content": "How do I sort a vector of names without regard to case?"},
        {"role": "assistant", "content": "Use `sort_by_key` with a key in lower case:\n\n```rust\nlet mut names = vec![\"bob\", \"Alice\"];\n"
         "names.sort_by_key(|name| name.to_lowercase());\n```\n\n- It is **stable**: equal names keep their order.\n"
         "- Each comparison makes a string; `sort_by_cached_key` makes each only once.", "earlier": ["Sort them."]},
        {"role": "user", "content": "File: names.txt\n```\nbob\nAlice\nCarol\n```\n\nWhat would this list become?"},
        {"role": "assistant", "content": "| before | after |\n|---|---|\n| bob | Alice |\n| Alice | bob |\n| Carol | Carol |"},
    ],
}


def show(page: Page) -> None:
    """Shows the conversation for pictures."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "shown.json")
        file.write_text(json.dumps(SHOWN))
        page.import_file(file)
        page.wait("it is shown", "return document.querySelector('h1').textContent === 'Sorting in Rust'")
    page.run("document.getElementById('toast').hidden = true")


def check_keyboard(page: Page, checks: Checks) -> None:
    """The order of controls, and their names."""
    page.get_again()
    page.run("document.getElementById('skip').focus()")
    order = ["skip"]
    for _ in range(60):
        page.press(TAB)
        order.append(page.run("return document.activeElement.id || document.activeElement.className"))
        if order[-1] == "attach":
            break
    wanted = ["skip", "menu", "model", "settings", "new", "talk", "conversation", "message", "attach"]
    places = [order.index(name) if name in order else -1 for name in wanted]
    checks.note("Tab reaches everything in order", places[0] >= 0 and places == sorted(places), order)
    outline = page.run("document.getElementById('model').focus();"
                       "return getComputedStyle(document.activeElement).outlineStyle")
    checks.note("the focus is seen", outline == "solid", outline)
    page.run("for (const part of document.querySelectorAll('details')) part.open = true;"
             "if (document.getElementById('panel').hidden) document.getElementById('settings').click()")
    checks.note("every control has a name", not page.run(NAMELESS), page.run(NAMELESS))
    checks.note("screen readers get a name once, and headings in order", not page.run(READERS), page.run(READERS))
    page.run("document.getElementById('message').focus()")
    page.press(ALT, UP)
    focused = page.run("return document.activeElement.className")
    checks.note("a key leads from the message to the last answer", "answer" in focused, focused)
    page.press(CONTROL, "k")
    checks.note("a key leads to the search", page.run("return document.activeElement.id") == "find")
    page.type("#find", "sort_by_cached")
    found = page.wait("texts are searched", "return document.querySelector('#talks .piece')?.textContent")
    titles = page.titles()
    checks.note("chats are found by their text", titles == ["Sorting in Rust"] and "sort_by_cached" in found, [titles, found])
    page.run("const find = document.getElementById('find'); find.value = 'nowhere to be found'; find.dispatchEvent(new Event('input'))")
    page.wait("nothing is found", "return document.getElementById('no-talks').textContent === 'No matches.'")
    page.run("const find = document.getElementById('find'); find.value = ''; find.dispatchEvent(new Event('input'))")
    checks.note("every control is large enough to be hit", not page.run(SMALL), page.run(SMALL))
    landmarks = page.run("return ['header', 'main', 'nav', 'aside', 'h1', '[aria-live]', '[role=alert]']"
                         ".filter(name => !document.querySelector(name))")
    checks.note("the page has its landmarks and live regions", not landmarks, landmarks)
    tall = page.run("return document.documentElement.scrollHeight <= innerHeight")
    checks.note("the window scrolls in its parts only", tall, page.run("return document.documentElement.scrollHeight"))


def check_looks(page: Page, checks: Checks) -> None:
    """Contrast, and windows of every width."""
    ground = "return getComputedStyle(document.body).backgroundColor"
    page.scheme("light")
    light = page.run(ground)
    for theme, is_light in (("dark", False), ("light", True), ("", True)):
        page.run("const theme = document.getElementById('theme'); theme.value = arguments[0]; theme.dispatchEvent(new Event('change'))", theme)
        checks.note(f"colours are chosen by hand ({theme or 'as the system'})", (page.run(ground) == light) == is_light)
    for scheme in ("light", "dark"):
        page.scheme(scheme)
        page.run("document.getElementById('banner').hidden = false;"
                 "document.getElementById('banner-text').textContent = 'A message';"
                 "document.getElementById('toast').hidden = false;"
                 "document.getElementById('toast-text').textContent = 'A line'")
        bad = page.run(CONTRAST)
        checks.note(f"texts can be read in the {scheme} colours", not bad, bad)
        page.picture(f"everything-{scheme}")
        page.run("document.getElementById('banner').hidden = true; document.getElementById('toast').hidden = true")
    page.run("for (const part of document.querySelectorAll('details:not(.file)')) part.open = false;"
             "document.getElementById('settings').click()")
    for scheme in ("light", "dark"):
        page.scheme(scheme)
        page.picture(f"wide-{scheme}")
    for width in (320, 360, 800):
        page.size(width, 640)
        sizes = page.run("return [document.documentElement.scrollWidth, innerWidth, document.getElementById('send').getBoundingClientRect().bottom]")
        checks.note(f"{width} pixels are wide enough", sizes[:2] == [width, width] and sizes[2] <= 640, sizes)
    for scheme in ("light", "dark"):
        page.scheme(scheme)
        page.size(360, 640)
        page.picture(f"narrow-{scheme}")
        page.click("#menu")
        opened = page.run("return [document.activeElement.id, document.querySelector('main').inert]")
        checks.note(f"the list opens over the conversation ({scheme})", opened == ["new", True], opened)
        bad = page.run(CONTRAST)
        checks.note(f"its texts can be read ({scheme})", not bad, bad)
        page.picture(f"narrow-list-{scheme}")
        page.press(ESCAPE)
        closed = page.run("return [document.activeElement.id, document.querySelector('main').inert]")
        checks.note(f"Escape closes it ({scheme})", closed == ["menu", False], closed)
    page.click("#settings")
    page.picture("narrow-panel")
    page.press(ESCAPE)
    page.scheme("light")
    page.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-reduced-motion", "value": "reduce"}])
    moves = page.run("const busy = document.createElement('span'); busy.className = 'busy'; document.body.append(busy);"
                     "const name = getComputedStyle(busy).animationName; busy.remove(); return name")
    checks.note("nothing moves for those who asked for that", moves == "none", moves)
    page.devtools("Emulation.setEmulatedMedia", features=[])
    page.devtools("Emulation.clearDeviceMetricsOverride")


def check_logs(page: Page, server: Server, checks: Checks) -> None:
    """What the browser complained of and whom it asked, since the beginning."""
    complaints = [entry["message"] for entry in page.log("browser") if entry["level"] in ("SEVERE", "WARNING")]
    checks.note("the console is empty", not complaints, complaints)
    hosts = set()
    for entry in page.log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            url = message["params"]["request"]["url"]
            if not url.startswith(("data:", "blob:", "chrome:", "about:")):
                hosts.add("/".join(url.split("/")[:3]))
    checks.note("no other host was asked", hosts == {server.url}, hosts)
