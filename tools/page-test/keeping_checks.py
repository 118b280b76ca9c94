"""The list of conversations, files, two tabs, long conversations, and a browser without room."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from browser import CONTROL, ENTER, SHIFT, Checks, Page, Server

#: Whether the end of the conversation is in view.
AT_END = """
const box = document.getElementById('conversation');
const last = document.getElementById('turns').lastElementChild?.getBoundingClientRect();
const frame = box.getBoundingClientRect();
return Boolean(last) && last.bottom <= frame.bottom + 2 && last.bottom > frame.top && frame.bottom <= innerHeight;
"""

#: Changes conversations at random and gives what was found wrong. Every message that is not deleted can be reached by arrows,
#: what is undone is as before, questions and answers that are sent alternate, and an export holds what is shown.
RANDOM = """
return (async () => {
  const [{ Talk, sendable }, { read, written }] = await Promise.all([import('/page/conversation.js'), import('/page/file.js')]);
  let state = 7;
  const below = count => { state = (state * 1103515245 + 12345) % 2147483648; return Math.floor(state / 65536) % count; };
  const shown = talk => talk.shown().map(entry => entry.node.content).join();
  for (let round = 0; round < 60; round += 1) {
    const talk = new Talk();
    for (let step = 0; step < 40; step += 1) {
      const path = talk.shown().map(entry => entry.node);
      const node = path[below(path.length)];
      const name = `${round}.${step}`;
      const kind = below(6);
      if (path.length === 0 || kind === 0) talk.add('user', name, talk.last()?.id ?? null);
      else if (kind <= 2 && talk.last().role === 'user') talk.add('assistant', name, talk.last().id);
      else if (kind === 3) talk.add(node.role, name, talk.parentOf(node));
      else if (kind === 4) talk.choose([...talk.nodes.values()].filter(one => !one.isRemoved)[0]);
      else {
        const before = shown(talk);
        const undo = talk.remove(node);
        if (below(2) === 0) {
          talk.restore(undo);
          if (shown(talk) !== before) return `${name}: ${before} is ${shown(talk)} after undoing`;
        }
      }
      const reached = new Set();
      const branches = talk.branches();
      const follow = parent => {
        for (const one of branches.get(parent) ?? []) {
          reached.add(one.id);
          follow(one.id);
        }
      };
      follow('');
      const lost = [...talk.nodes.values()].filter(one => !one.isRemoved && !reached.has(one.id));
      if (lost.length > 0) return `${name}: lost ${lost.map(one => one.content)}`;
      const sent = sendable(talk.shown().map(entry => entry.node));
      if (sent.some((one, index) => one.role !== ['user', 'assistant'][index % 2])) return `${name}: sent ${sent.map(one => one.role)}`;
      const [again] = read(JSON.stringify(written(talk)));
      if (shown(again) !== shown(talk)) return `${name}: ${shown(talk)} is ${shown(again)} after an import`;
    }
  }
  return '';
})()
"""

#: Keeps the text of what is exported.
CATCH = """
const real = URL.createObjectURL.bind(URL);
URL.createObjectURL = blob => { blob.text().then(text => { window.exported = text; }); return real(blob); };
"""


def new_chat(page: Page) -> None:
    page.press(CONTROL, SHIFT, "o")
    page.wait("there is a new chat", "return !document.querySelector('.turn') && !location.hash")


def check_list(page: Page, checks: Checks) -> None:
    """New, rename, delete, drafts."""
    wrong = page.run(RANDOM)
    checks.note("no change of a conversation loses a message", wrong == "", wrong)
    new_chat(page)
    checks.note("the shortcut begins a chat and the message has the focus",
                page.run("return document.activeElement.id") == "message")
    page.set("max_tokens", 8)
    page.type("#message", "An unsent draft")
    before = page.titles()
    page.run("document.querySelector('#talks a').click()")
    page.wait("the other conversation is shown", "return document.querySelector('.turn')")
    shown = page.run("return [document.getElementById('message').value, document.querySelector('[aria-current]').textContent]")
    checks.note("each conversation has its own draft", shown == ["", before[0]], shown)
    page.click("#new")
    page.get_again()
    draft = page.wait("the draft is back", "return document.getElementById('message').value")
    checks.note("a draft outlives leaving and a reload", draft == "An unsent draft", draft)
    page.set("message", "")
    page.set("system", "A habit.")
    page.set("min_p", 0.25)
    page.run("document.getElementById('habits').click()")
    page.get_again()
    kept = page.run("return document.getElementById('system').value")
    checks.note("a system prompt typed before the first message outlives a reload", kept == "A habit.", kept)
    page.run("document.querySelector('#talks a').click()")
    page.wait("the other conversation is shown", "return document.querySelector('.turn')")
    page.click("#new")
    habits = page.run("return ['system', 'min_p'].map(id => document.getElementById(id).value)")
    checks.note("new chats begin as the person wants", habits == ["A habit.", "0.25"], habits)
    page.set("system", "")
    page.set("min_p", "")
    page.run("document.getElementById('habits').click()")
    page.set("max_tokens", 8)
    page.ask("The lighthouse keeper\nand the sea")
    page.wait("it is listed", "return document.querySelector('#talks .talk-title').textContent === 'The lighthouse keeper'")
    page.act("#talks .talk-item", "edit")
    page.run("document.querySelector('.rename').value = 'Lighthouse <b>'")
    page.press(ENTER)
    page.wait("it is renamed", "return document.querySelector('#talks .talk-title')?.textContent === 'Lighthouse <b>'")
    name = page.run("return [document.querySelector('h1').textContent, document.activeElement.className]")
    checks.note("a conversation is renamed", name == ["Lighthouse <b>", "talk"], name)
    titles, address = page.titles(), page.address_of_page()
    page.act("#talks .talk-item", "delete")
    page.wait("it is gone", "return document.querySelectorAll('#talks .talk').length === arguments[0]", len(titles) - 1)
    checks.note("a deleted conversation is off the page", not page.questions() and "#" not in page.address_of_page())
    page.press_words("#toast", "Undo")
    page.wait("it is back", "return document.querySelectorAll('#talks .talk').length === arguments[0]", len(titles))
    checks.note("Undo brings the conversation back", page.titles() == titles and page.address_of_page() == address
                and len(page.questions()) == 1, page.titles())
    page.get_again()
    checks.note("it is kept again", page.titles() == titles and len(page.answers()) == 1, page.titles())


def check_background(page: Page, server: Server, checks: Checks) -> None:
    """Going elsewhere, and deleting, while an answer is being written."""
    new_chat(page)
    page.endless()
    page.set("max_tokens", 60)
    with server.slowed():
        page.type("#message", "Go on without me" + ENTER)
        page.wait("it is being answered", "return document.querySelector('.writing .said')?.textContent.length > 0")
        address = page.address_of_page()
        page.press(CONTROL, SHIFT, "o")
        page.wait("the list shows what is being answered", "return document.querySelector('#talks .busy')")
        page.type("#message", "typed meanwhile")
    page.wait("it ends", "return !document.querySelector('#talks .busy')")
    checks.note("what is typed meanwhile stays", page.run("return document.getElementById('message').value") == "typed meanwhile")
    page.set("message", "")
    page.run("location.href = arguments[0]", address)
    page.wait("the conversation is shown", "return document.querySelectorAll('.turn').length === 2")
    figures = page.run("return document.querySelector('.answer .figures').textContent")
    checks.note("an answer goes on while another conversation is shown", figures.startswith("60 tokens"), figures)
    page.set("max_tokens", "")
    with server.slowed():
        page.type("#message", "Never mind" + ENTER)
        page.wait("it is being answered", "return document.querySelector('.writing .said')?.textContent.length > 0")
        count = len(page.titles())
        page.act("#talks .talk-item", "delete")
        page.wait("it is gone", "return document.querySelectorAll('#talks .talk').length === arguments[0]", count - 1)
    page.get_again()
    checks.note("a conversation deleted while it is answered stays deleted", len(page.titles()) == count - 1
                and not page.questions(), page.titles())


def check_reload(page: Page, server: Server, checks: Checks) -> None:
    """A reload while an answer is being written, and a browser that keeps nothing."""
    new_chat(page)
    page.endless()
    with server.slowed():
        page.type("#message", "Reload me" + ENTER)
        page.wait("some of it is kept", """return (async () => {
          const { Store } = await import('/page/store.js');
          const store = new Store(() => {});
          await store.open();
          const talk = await store.load(location.hash.slice('#chat-'.length));
          return [...(talk?.nodes.values() ?? [])].some(node => node.role === 'assistant' && node.content.length > 5);
        })()""")
        page.get_again()
    told = page.wait("it is told", "return document.querySelector('.trouble:not([hidden])')?.textContent")
    kept = page.answers()[0]
    checks.note("a reload keeps what was written of an answer", len(kept) > 5 and "closed" in told, [kept, told])
    page.brief()
    page.press_words(".trouble", "Continue")
    page.wait("it is done", "return /^\\d+ tokens/.test(document.querySelector('.answer:not(.writing) .figures')?.textContent ?? '')"
              " && !document.querySelector('.trouble:not([hidden])')")
    checks.note("and it can be continued", page.answers()[0].startswith(kept.rstrip()), page.answers())

    script = """Object.defineProperty(window, 'indexedDB', { get() { throw new DOMException('blocked', 'SecurityError'); } });
        for (const name of ['localStorage', 'sessionStorage']) {
          Object.defineProperty(window, name, { get() { throw new DOMException('blocked', 'SecurityError'); } });
        }"""
    added = page.devtools("Page.addScriptToEvaluateOnNewDocument", source=script)["identifier"]
    page.open(page.url)
    page.get_again()
    told = page.wait("it is told", "return document.getElementById('banner-text').textContent")
    page.brief()
    page.ask("Without any storage")
    checks.note("a browser that keeps nothing is told of, and the page works", "keeps nothing" in told
                and len(page.answers()) == 1 and page.titles() == ["Without any storage"], [told, page.titles()])
    page.devtools("Page.removeScriptToEvaluateOnNewDocument", identifier=added)
    page.open(page.url)
    page.get_again()


def check_files(page: Page, checks: Checks) -> None:
    """Attachments, export and import."""
    new_chat(page)
    page.set("max_tokens", 8)
    with tempfile.TemporaryDirectory() as folder:
        notes, binary, large = Path(folder, "notes.txt"), Path(folder, "picture.png"), Path(folder, "large.log")
        notes.write_text("The fox is red.\n```\nfenced\n```\n")
        binary.write_bytes(bytes(range(256)))
        large.write_text("x" * (1 << 21))
        page.type("#attach-file", f"{notes}\n{binary}\n{large}")
        page.wait("what cannot be attached is told", "return !document.getElementById('note').hidden")
        told = page.run("return document.getElementById('note-text').textContent")
        chips = page.run("return [...document.querySelectorAll('#files .chip')].map(chip => chip.textContent)")
        checks.note("a text file is attached with its size", len(chips) == 1 and chips[0].startswith("notes.txt 31 bytes"), chips)
        checks.note("others are refused with a reason", "picture.png" in told and "text only" in told and "large.log" in told, told)
        page.click("#note-close")
        page.run("""const data = new DataTransfer();
            data.items.add(new File(['dropped words'], 'dropped.md'));
            dispatchEvent(new DragEvent('drop', { dataTransfer: data, cancelable: true, bubbles: true }));""")
        page.wait("a file can be dropped", "return document.querySelectorAll('#files .chip').length === 2")
        page.run("""const real = window.fetch;
            window.sent = [];
            window.fetch = (path, options) => {
              if (String(path).endsWith('completions')) window.sent.push(JSON.parse(options.body));
              return real(path, options);
            };""")
        page.ask("What colour is the fox?")
        sent = page.run("return window.sent[0].messages.at(-1).content")
        wanted = ("File: notes.txt\n````\nThe fox is red.\n```\nfenced\n```\n````\n\nFile: dropped.md\n```\ndropped words\n```\n\n"
                  "What colour is the fox?")
        checks.note("files are part of the message", sent == wanted, sent)
        names = page.run("return [...document.querySelectorAll('.question .file .file-name')].map(name => name.textContent)")
        checks.note("and shown apart from its words", names == ["notes.txt", "dropped.md"]
                    and page.questions() == ["What colour is the fox?"], [names, page.questions()])

        page.act(".answer:last-child", "redo")
        page.wait("there is another answer", "return document.querySelector('.answer .count')")
        page.wait_idle()
        page.devtools("Browser.setDownloadBehavior", behavior="deny")
        page.run(CATCH)
        page.click("#settings")
        page.click("#export")
        exported = json.loads(page.wait("it is exported", "return window.exported"))
        answer = exported["messages"][1]
        checks.note("the export has the format", exported["trine_conversation"] == 2 and exported["system"] is None
                    and exported["title"] == "What colour is the fox?" and exported["parameters"] == {"max_tokens": 8}
                    and [one["role"] for one in exported["messages"]] == ["user", "assistant"]
                    and exported["messages"][0]["content"] == wanted and len(answer["earlier"]) == 1, exported)
        page.run("window.exported = null")
        page.click("#export-all")
        everything = json.loads(page.wait("all are exported", "return window.exported"))
        page.click("#settings")
        checks.note("all conversations are exported as a list", [one["title"] for one in everything] == page.titles(),
                    [one.get("title") for one in everything])
        formats = {
            "exported": exported | {"title": "Imported again", "unknown": 1},
            "with unanswered questions": {"trine_conversation": 2, "title": "Twice asked", "model": "", "system": None, "messages": [
                {"role": "user", "content": "third", "earlier": ["other third"], "unanswered": ["first", "second"]},
                {"role": "assistant", "content": "yes"}]},
            "of the command line": {"trine_conversation": 1, "model": "demo", "system": "Be brief.",
                                    "messages": [{"role": "user", "content": "old line"}, {"role": "assistant", "content": "yes"}]},
            "of the first page": {"format": 1, "model": "demo", "system": "", "parameters": {"seed": 4},
                                  "turns": [{"role": "user", "content": "old page"}, {"role": "assistant", "content": "no"}]},
        }
        for name, talk in formats.items():
            file = Path(folder, "talk.json")
            file.write_text(json.dumps(talk))
            page.import_file(file)
            title = talk.get("title") or (talk.get("messages") or talk.get("turns"))[0]["content"]
            page.wait(f"a file {name} is imported", "return document.querySelector('h1').textContent === arguments[0]", title)
            page.run("window.exported = null")
            page.run("document.getElementById('export').click()")
            again = json.loads(page.wait("it is exported", "return window.exported"))
            messages = talk.get("messages") or talk.get("turns")
            same = again["messages"] == messages and again["system"] == (talk.get("system") or None)
            checks.note(f"a conversation {name} comes back whole", same
                        and again.get("parameters", {}) == talk.get("parameters", {}), [talk, again])


def check_takeover(page: Page, checks: Checks) -> None:
    """The conversation that the page before this one kept."""
    turns = [{"role": "user", "content": "Kept since long ago"}, {"role": "assistant", "content": "Indeed."}]
    page.run("localStorage.setItem('trine-conversation', arguments[0])",
             json.dumps({"format": 1, "model": "", "system": "Old.", "parameters": {}, "turns": turns}))
    page.open(page.url)
    page.wait("it is shown", "return document.querySelector('.question')?.textContent.includes('long ago')")
    state = page.run("return [localStorage.getItem('trine-conversation'), document.getElementById('system').value]")
    checks.note("an old page's conversation is taken over", state == [None, "Old."] and "Kept since long ago" in page.titles(), state)


def check_tabs(page: Page, server: Server, checks: Checks) -> None:
    """Two tabs on one conversation."""
    new_chat(page)
    page.set("max_tokens", 8)
    page.ask("From the first tab")
    first = page.tabs()[0]
    second = page.new_tab(page.address_of_page())
    page.wait("it shows the same", "return document.querySelectorAll('.turn').length === 2")
    page.ask("From the second tab")
    page.switch(first)
    page.wait("the first tab shows it too", "return document.querySelectorAll('.turn').length === 4 && !document.querySelector('.writing')")
    page.endless()
    with server.slowed():
        page.type("#message", "A long one" + ENTER)
        page.switch(second)
        page.wait("it sees that the other writes", "return document.querySelector('.writing')")
        page.type("#message", "Waits" + ENTER)
        state = page.run("return [document.querySelectorAll('.question').length, document.getElementById('message').value]")
        checks.note("a tab waits while the other writes, and keeps its text", state == [3, "Waits"], state)
        page.switch(first)
        page.press("\ue00c")
    page.wait_idle()
    page.brief()
    page.switch(second)
    page.wait("the other has ended", "return !document.querySelector('.writing')")
    page.run("document.getElementById('message').focus()")
    page.press(ENTER)
    page.wait("it is sent", "return document.querySelectorAll('.question').length === 4")
    page.wait_idle()
    wanted = ["From the first tab", "From the second tab", "A long one", "Waits"]
    both = []
    for tab in (second, first):
        page.switch(tab)
        page.get_again()
        both.append(page.wait("all is there", "const all = [...document.querySelectorAll('.question .words')];"
                              "return all.length === 4 && all.map(one => one.textContent)"))
    checks.note("no turn is lost between two tabs", both == [wanted, wanted], both)

    merged = page.run("""return (async () => {
      const [{ Store }, { Talk }] = await Promise.all([import('/page/store.js'), import('/page/conversation.js')]);
      const stores = [new Store(() => {}), new Store(() => {})];
      for (const store of stores) await store.open();
      const begun = new Talk();
      const root = begun.add('user', 'root', null);
      begun.set('title', 'Merged');
      await stores[0].save(begun);
      const [one, other] = await Promise.all(stores.map(store => store.load(begun.id)));
      one.add('assistant', 'one', root.id);
      one.set('system', 'of one');
      other.add('assistant', 'other', root.id);
      other.set('title', 'of other');
      await Promise.all([stores[0].save(one), stores[1].save(other)]);
      const found = await stores[0].load(begun.id);
      // One tab deletes it while the other still writes.
      await stores[0].remove(begun.id);
      one.add('user', 'later', one.last().id);
      await stores[1].save(one);
      const saved = await stores[0].load(begun.id);
      await stores[0].remove(begun.id);
      return [[...found.nodes.values()].map(node => node.content).sort(), found.head.title, found.head.system,
        [...saved.nodes.values()].map(node => node.content).sort()];
    })()""")
    checks.note("what two tabs write at once is merged", merged[:3] == [["one", "other", "root"], "of other", "of one"], merged)
    checks.note("what is written after a deletion is whole", {"root", "one", "later"} <= set(merged[3]), merged[3])

    titles = page.titles()
    page.switch(second)
    page.act("#talks .talk-item", "delete")
    page.wait("it is gone", "return document.querySelectorAll('#talks .talk').length === arguments[0]", len(titles) - 1)
    page.switch(first)
    page.wait("the first tab tells of it", "return document.getElementById('toast').textContent.includes('another tab')")
    page.press_words("#toast", "Undo")
    page.wait("it can be put back", "return document.querySelectorAll('.question').length === 4")
    page.switch(second)
    page.close_tab(first)


def check_room(page: Page, checks: Checks) -> None:
    """A browser that has no room left."""
    new_chat(page)
    page.set("max_tokens", 8)
    page.ask("Before the room ends")
    # As browsers do it: the transaction is given up. Their own quotas are too large to fill in a test.
    page.run("""window.realPut = IDBObjectStore.prototype.put;
        IDBObjectStore.prototype.put = function () {
          this.transaction.abort();
          throw new DOMException('full', 'QuotaExceededError');
        };""")
    page.set("message", "No room for this. " * 20)
    page.run("document.getElementById('message').focus()")
    page.press(ENTER)
    page.wait("it is told", "return document.getElementById('banner-text').textContent.includes('no room')")
    page.wait_idle()
    shown = page.questions()
    checks.note("without room the conversation stays on the page", len(shown) == 2 and len(page.answers()) == 2, shown)
    export = page.run("return document.getElementById('banner-action').textContent")
    checks.note("and can be exported", export == "Export", export)
    page.run("IDBObjectStore.prototype.put = window.realPut")
    page.ask("With room again")
    page.wait("the banner goes", "return document.getElementById('banner').hidden")
    page.get_again()
    page.wait("everything was kept", "return document.querySelectorAll('.turn').length === 6")
    checks.note("with room again everything is kept", len(page.questions()) == 3, page.questions())


def check_long(page: Page, checks: Checks) -> None:
    """A conversation of 200 turns, also in a narrow window."""
    messages = []
    for number in range(100):
        messages.append({"role": "user", "content": f"Question {number}: how does the river run through the town?"})
        messages.append({"role": "assistant", "content": f"Answer {number}.\n\n- It **runs**\n- on `and` on\n\n```\ncode {number}\n```"})
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "long.json")
        file.write_text(json.dumps({"trine_conversation": 2, "title": "Two hundred", "messages": messages}))
        page.import_file(file)
        page.wait("it is shown", "return document.querySelector('h1').textContent === 'Two hundred'")
    page.wait("all of it is drawn", "return document.querySelectorAll('.turn').length === 200")
    checks.note("a long conversation shows its end", page.run(AT_END))
    page.set("max_tokens", 8)
    page.run("for (const turn of document.querySelectorAll('.turn .said')) turn.firstChild.isOld = true")
    page.ask("And the mill?")
    old = page.run("return [...document.querySelectorAll('.turn .said')].filter(said => said.firstChild?.isOld).length")
    checks.note("a new turn draws no other again", old == 200, old)
    checks.note("what no longer fits is marked", page.run("return document.querySelectorAll('.left-out').length") == 1)
    checks.note("and the end is in view", page.run(AT_END))
    for width, height in ((360, 640), (1200, 657)):
        page.size(width, height)
        page.get_again()
        page.wait("all of it is drawn", "return document.querySelectorAll('.turn').length === 202")
        checks.note(f"after a reload at {width} pixels the end is in view", page.run(AT_END))
    page.run("document.getElementById('conversation').scrollTop = 0")
    page.wait("there is a way back to the end", "return !document.getElementById('to-end').hidden")
    page.click("#to-end")
    checks.note("it leads there", page.run(AT_END))
    page.devtools("Emulation.clearDeviceMetricsOverride")
