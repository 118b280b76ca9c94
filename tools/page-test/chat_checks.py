"""Asking and answering: streams, versions, editing, deleting, parameters, the engine's picture."""

from __future__ import annotations

import json
import re
import tempfile
import time
from pathlib import Path

from access_checks import CONTRAST
from browser import CONTROL, ENTER, FIGURES, SHIFT, UP, Checks, Page, Server

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

#: Notes every length of the last answer while it is written; with an argument, presses Stop when it is that long.
WATCH = """
window.lengths = [];
window.watch?.disconnect();
window.watch = new MutationObserver(() => {
  const said = [...document.querySelectorAll('.answer .said')].at(-1);
  const length = said ? said.textContent.length : 0;
  if (length > 0 && window.lengths.at(-1) !== length) window.lengths.push(length);
  if (arguments[0] && length >= arguments[0]) document.getElementById('stop').click();
});
window.watch.observe(document.getElementById('turns'), { subtree: true, childList: true, characterData: true });
"""

#: Notes the bodies of the page's requests.
RECORD = """
const real = window.fetch;
window.sent = [];
window.fetch = (path, options) => {
  if (String(path).endsWith('completions')) window.sent.push(JSON.parse(options.body));
  return real(path, options);
};
"""

LAST_VERSIONS = "return document.querySelector('.turn:last-child .count')?.textContent ?? ''"


def check_chat(page: Page, server: Server, checks: Checks) -> None:
    """Sending, streaming, stopping."""
    values = page.wait("the model's values are shown", "const value = document.getElementById('temperature').placeholder;"
                       "return value && [value, document.getElementById('top_k').placeholder, document.getElementById('seed').placeholder]")
    checks.note("fields show the model's own values", all(re.fullmatch(r"[\d.]+", value) for value in values[:2])
                and values[2] == "random", values)
    folded = page.run("return ['panel', 'picture'].every(id => !document.getElementById(id).checkVisibility())")
    checks.note("the monitor is folded at first", folded)
    page.run(WATCH)
    page.run(RECORD)
    page.set("max_tokens", 60)
    page.set("system", "You tell stories.")
    with server.slowed():
        page.ask("Tell me a story about a dog.")
    lengths = page.run("return window.lengths")
    checks.note("an answer streams", len(lengths) >= 3, lengths)
    figures = page.run(FIGURES)
    checks.note("it has its figures", re.search(r"\d+ tokens · [\d.,]+ tokens/s · first after [\d.]+ s", figures), figures)
    context = page.run("const text = document.getElementById('context-text');"
                       "return [text.title, text.textContent, document.getElementById('context').hidden]")
    checks.note("the context is metered, and not spoken of while there is room",
                re.fullmatch(r"[1-9]\d* of [\d,]+ tokens", context[0]) and context[1:] == ["", True], context)
    shown = "return document.querySelector('.answer .numbers-of').checkVisibility()"
    folded = page.run(shown)
    page.act(".answer:last-child", "info")
    checks.note("its figures are shown to who asks for them", [folded, page.run(shown)] == [False, True], folded)
    spoken = page.run("return document.getElementById('announcer').textContent")
    checks.note("the answer is announced whole", spoken.startswith("Answer: ") and len(spoken) > 20, spoken)
    sent = page.run("return window.sent[0]")
    checks.note("system prompt and parameters are sent", sent["max_tokens"] == 60
                and sent["messages"][0] == {"role": "system", "content": "You tell stories."}, sent)
    title = page.run("return [document.title, ...arguments[0]]", page.titles())
    checks.note("the first message names the conversation", title[0].startswith("Tell me a story about a dog.")
                and title[1] == "Tell me a story about a dog.", title)

    page.endless()
    page.run(WATCH, 10)
    with server.slowed():
        page.ask("Tell me a long story about a cat.")
    page.run("window.watch.disconnect()")
    figures = page.run(FIGURES)
    checks.note("Stop ends an answer", "stopped" in figures, figures)
    deadline = time.monotonic() + 20
    while server.status()["running"] and time.monotonic() < deadline:
        time.sleep(0.02)
    before = server.status()
    time.sleep(0.3)
    after = server.status()
    checks.note("the engine ends it too", after["running"] == 0 and after["steps"] == before["steps"], after)
    page.brief()


def check_versions(page: Page, checks: Checks) -> None:
    """Regenerating, continuing, editing, deleting: no text is lost."""
    first = page.answers()
    page.act(".answer:last-child", "redo")
    page.wait("there is another answer", LAST_VERSIONS)
    page.wait_idle()
    second = page.answers()
    # The earlier answer may have been stopped where this one ends.
    checks.note("Regenerate makes a version", page.run(LAST_VERSIONS) == "2/2" and len(second) == len(first), [first, second])
    page.act(".answer:last-child", "previous")
    checks.note("the earlier answer is kept", page.answers() == first and page.run(LAST_VERSIONS) == "1/2", page.answers())
    page.act(".answer:last-child", "next")
    figures = page.run(FIGURES)
    checks.note("a parameter counts", figures.startswith("8 tokens") and "maximum length" in figures, figures)
    page.act(".answer:last-child", "continue")
    page.wait("it goes on", "return [...document.querySelectorAll('.answer .said')].at(-1).textContent.length > arguments[0]",
              len(second[-1]))
    page.wait_idle()
    whole = page.answers()[-1]
    checks.note("Continue goes on where the answer ended", whole.startswith(second[-1].rstrip()), [second[-1], whole])

    page.run("document.getElementById('top_p').value = '7'")
    page.type("#message", "kept" + ENTER)
    state = page.run("return [document.activeElement.id, document.getElementById('message').value]")
    hint = page.run("return document.getElementById('top_p-hint').className")
    checks.note("a parameter out of range is shown and nothing sent", state == ["top_p", "kept"] and "wrong" in hint, [state, hint])
    page.set("top_p", "")
    page.run("document.getElementById('settings').click()")
    page.run(RECORD)
    page.set("repetition_penalty", 1.5)
    page.set("stops", "zebra\n\nthe end")
    page.set("message", "")

    before = [page.questions(), page.answers()]
    page.run("document.getElementById('message').focus()")
    page.press(UP)
    page.wait("the last message can be changed", "return document.activeElement.classList.contains('edited')")
    page.run("document.activeElement.value = 'Tell me about a bird.'")
    page.press(ENTER)
    page.wait("it is sent", "return document.querySelectorAll('.question').length === 2 && !document.querySelector('.edited')")
    page.wait_idle()
    sent = page.run("return window.sent.at(-1)")
    checks.note("penalties and stop texts are sent", [sent.get("repetition_penalty"), sent.get("stop")] == [1.5, ["zebra", "the end"]],
                sent)
    page.set("repetition_penalty", "")
    page.set("stops", "")
    edited = page.questions()
    checks.note("an edited message is asked", edited == [before[0][0], "Tell me about a bird."], edited)
    page.act(".question:nth-last-child(2)", "previous")
    checks.note("the earlier message and its answers are kept", [page.questions(), page.answers()] == before,
                [page.questions(), page.answers()])
    page.act(".question:nth-last-child(2)", "next")

    page.act(".question:nth-last-child(2)", "delete")
    checks.note("a deleted message goes with its answer", page.questions() == before[0], page.questions())
    page.press_words("#toast", "Undo")
    checks.note("Undo brings it back", page.questions() == edited, page.questions())
    page.act(".answer:last-child", "delete")
    checks.note("an answer can be deleted", len(page.answers()) == 1, page.answers())
    page.press_words("#toast", "Undo")

    page.run("""Object.defineProperty(navigator, 'clipboard',
        { value: { writeText: text => { window.copied = text; return Promise.resolve(); } } })""")
    page.act(".answer:last-child", "copy")
    copied = page.wait("it is copied", "return window.copied")
    checks.note("an answer is copied", copied.strip() != "", copied)
    page.wait("the button says so", "return document.querySelector('.answer:last-child .copied')?.textContent === 'Copied'")

    state = "return [...document.querySelectorAll('.turn .said')].map(said => said.textContent)"
    fields = "return ['system', 'temperature', 'max_tokens'].map(id => document.getElementById(id).value)"
    before = [page.run(state), page.run(LAST_VERSIONS), page.run(fields), page.titles()]
    page.get_again()
    after = [page.run(state), page.run(LAST_VERSIONS), page.run(fields), page.titles()]
    checks.note("a reload keeps conversation, versions and settings", before == after, [before, after])
    page.act(".question:nth-last-child(2)", "previous")
    page.act(".question:nth-last-child(2)", "next")
    page.run("document.getElementById('reset').click()")
    state = page.run("return [document.getElementById('temperature').value, document.getElementById('reset').disabled]")
    checks.note("Reset gives the model's values back", state == ["", True], state)


def check_engine(page: Page, checks: Checks) -> None:
    """The monitor unfolds, is remembered, and asks only while it is seen."""
    page.run("if (document.getElementById('panel').hidden) document.getElementById('settings').click();"
             "document.getElementById('engine').open = true")
    page.wait("the engine is drawn", "return document.querySelector('.line path').getAttribute('d').length > 5")
    line = page.wait("a line says where it runs", "return document.getElementById('engine-line').textContent")
    checks.note("one line says where the model runs", line.startswith("On "), line)
    device = page.run("return document.getElementById('engine-device').textContent")
    checks.note("the picture names the device", device not in ("–", "not loaded", ""), device)
    page.get_again()
    seen = page.run("return document.getElementById('picture').checkVisibility()")
    checks.note("the unfolded monitor is remembered", seen)
    count = "return performance.getEntriesByType('resource').filter(one => one.name.endsWith('/v1/trine/status')).length"
    page.run("performance.clearResourceTimings()")
    page.wait("the engine is asked again and again", count + " >= 3")
    page.run("Object.defineProperty(document, 'visibilityState', { value: 'hidden', configurable: true });"
             "document.dispatchEvent(new Event('visibilitychange')); performance.clearResourceTimings()")
    time.sleep(2.5)
    hidden = page.run(count)
    page.run("delete document.visibilityState; document.dispatchEvent(new Event('visibilitychange'))")
    page.wait("a tab that is seen asks", count + " >= 1")
    checks.note("a hidden tab asks nothing", hidden == 0, hidden)
    page.run("document.getElementById('engine').open = false")
    page.click("#settings")


def check_context(page: Page, checks: Checks) -> None:
    """A conversation longer than the context goes on without its oldest turns."""
    page.press(CONTROL, SHIFT, "o")
    page.wait("there is a new chat", "return !document.querySelector('.turn') && !location.hash")
    page.run(RECORD)
    page.set("max_tokens", 40)
    page.set("system", "Stay kind.")
    filler = "The fox and the hen went to the river and back to the house. " * 12
    # Four of these do not fit into 1,024 tokens with their answers.
    for number in range(6):
        page.set("message", f"{number}. {filler}")
        page.run("document.getElementById('message').focus()")
        page.press(ENTER)
        page.wait("it is sent", "return document.querySelectorAll('.question').length > arguments[0]", number)
        page.wait_idle()
    state = page.run("return [document.querySelectorAll('.answer').length, document.querySelectorAll('.trouble:not([hidden])').length,"
                     "document.querySelectorAll('.left-out').length, document.querySelectorAll('.unsent').length]")
    checks.note("a full context ends no conversation", state[:2] == [6, 0], state)
    checks.note("a mark shows what the model no longer gets", state[2] == 1 and state[3] > 0, state)
    page.set("message", "The hen. " * 300)
    told = page.run("return [document.getElementById('context-text').textContent, document.getElementById('context').hidden]")
    checks.note("a context that is nearly full is told of", told == ["full: the oldest messages will be left out", False]
                or re.fullmatch(r"[789]\d % full", told[0]) and not told[1], told)
    page.set("message", "")
    bad = page.run(CONTRAST)
    checks.note("and they can still be read", not bad, bad)
    last = page.run("return window.sent.at(-1)")["messages"]
    checks.note("the system prompt and the last message are sent", last[0]["content"] == "Stay kind."
                and last[-1]["content"].startswith("5. ") and last[1]["role"] == "user" and len(last) < 12,
                [one["content"][:10] for one in last])
    page.set("system", "")


def check_hostile(page: Page, checks: Checks) -> None:
    """A conversation that tries to run code."""
    turns = [{"role": "user", "content": HOSTILE}, {"role": "assistant", "content": HOSTILE}]
    talk = {"format": 1, "model": "<b>", "system": "", "parameters": {"seed": "<x>"}, "turns": turns}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "conversation.json")
        file.write_text(json.dumps(talk))
        page.import_file(file)
        page.wait("it is imported", "return document.querySelector('.question .words')?.textContent.startsWith('<img')")
        time.sleep(0.5)
        checks.note("nothing in it runs", page.run("return window.broken ?? null") is None)
        strange = "return document.querySelectorAll(':is(.said, #talks, h1) :is(img, script, svg:not(.icon), iframe, b, i)').length"
        checks.note("it makes no elements of its own", page.run(strange) == 0)
        links = page.run("return [...document.querySelectorAll('.turn a')].map(link => link.href)")
        web = [link for link in links if link.startswith("https://example.org/")]
        checks.note("only addresses of the web become links", links and links == web, links)
        code = page.run("return document.querySelector('.code code').textContent")
        checks.note("code is shown as it is", code == "<script>window.broken='code'</script>", code)
        ground = page.run("const begin = performance.now();"
                          "return import('/page/markdown.js').then(({ render }) => {"
                          " for (const bad of ['*a ', '[', '`` ` ', '_a_', '> ', '[](', '| ', '- ', '**a*', '~~'])"
                          "  render(bad.repeat(20000));"
                          " return performance.now() - begin; })")
        checks.note("texts made to be slow are not", ground < 20000, f"{ground} ms")
        page.run("""Object.defineProperty(navigator, 'clipboard',
            { value: { writeText: text => { window.copied = text; return Promise.resolve(); } } })""")
        page.click(".code button")
        checks.note("code is copied", page.wait("it is", "return window.copied") == code)
        before = page.titles()
        for text in ('{"format": 1, "turns": [{"role": "system", "content": 5}]}', '{"trine_conversation": 3, "messages": []}', "no",
                     '{"trine_conversation": 2, "messages": [{"role": "assistant", "content": "x"}]}'):
            page.run("document.getElementById('banner').hidden = true")
            file.write_text(text)
            page.import_file(file)
            page.wait("it is refused", "return !document.getElementById('banner').hidden")
        checks.note("a file that is not a conversation changes nothing", page.titles() == before, page.titles())
        page.click("#banner-close")
