"""Servers that refuse, stop, die and come back: nothing that was typed or answered is lost."""

from __future__ import annotations

import re
import tempfile

from browser import ENTER, Checks, Page, Server

TROUBLE = "return [...document.querySelectorAll('.trouble:not([hidden])')].map(one => one.textContent)"


def check_key(page: Page, program: str, checks: Checks) -> None:
    """A server that wants a key."""
    with tempfile.NamedTemporaryFile("w", suffix=".keys") as keys:
        keys.write("secret-key-1\n")
        keys.flush()
        server = Server(program, "--api-key-file", keys.name)
        try:
            page.url = server.url
            page.post("/url", {"url": server.url + "/"})
            page.wait("it asks for a key", "return document.getElementById('key-dialog').open")
            checks.note("no word of a wrong key at first", page.run("return document.getElementById('key-wrong').hidden"))
            page.type("#key", "wrong-key" + ENTER)
            told = page.wait("it says that the key is wrong", "const wrong = document.getElementById('key-wrong');"
                             "return document.getElementById('key-dialog').open && !wrong.hidden && wrong.textContent")
            checks.note("a wrong key is told", "did not accept this key" in told, told)
            page.picture("wrong-key")
            # A server that was started again with other keys: the page holds one that was right.
            page.run("document.getElementById('key-cancel').click(); document.getElementById('message').focus()")
            page.type("#message", "Typed before the key" + ENTER)
            page.wait("it asks again", "return document.getElementById('key-dialog').open")
            page.type("#key", "secret-key-1" + ENTER)
            page.wait("the message is answered", "return document.querySelector('.answer .said')?.textContent.length > 0")
            page.wait_idle()
            checks.note("with the right key the message is answered", page.questions() == ["Typed before the key"]
                        and not page.run(TROUBLE), [page.questions(), page.run(TROUBLE)])
            kept = page.run("return (async () => { const { Store } = await import('/page/store.js');"
                            " const store = new Store(() => {}); await store.open();"
                            " const talks = await Promise.all((await store.list()).map(head => store.load(head.id)));"
                            " return [JSON.stringify(localStorage), document.documentElement.outerHTML,"
                            "  JSON.stringify(talks.map(talk => [...talk.nodes.values()]))].join(); })()")
            checks.note("the key is kept in the tab only", "secret-key-1" not in kept and "Typed before" in kept)
        finally:
            server.end()


def check_long_message(page: Page, checks: Checks) -> None:
    """A message that no context has room for."""
    text = "word " * 20000
    page.set("max_tokens", 8)
    page.set("message", text)
    warned = page.run("return document.getElementById('context-text').textContent")
    checks.note("a message that is too long is told before it is sent", re.fullmatch(r"too long: [\d,]+ tokens fit", warned), warned)
    page.click("#send")
    told = page.wait("it is refused", TROUBLE)
    checks.note("it says what to do, with the request's id", len(told) == 1
                and re.match(r"Your message is too long for this model \(about [\d,]+ tokens; [\d,]+ fit\)\. Shorten it\.Details"
                         r"Request req-\w+", told[0]), told)
    marked = page.run("return [document.querySelectorAll('.left-out').length, document.querySelectorAll('.unsent').length]")
    checks.note("nothing is left out for a message that was not sent", marked == [0, 0], marked)
    page.picture("too-long")
    page.press_words(".trouble", "Edit")
    edited = page.run("return document.querySelector('.edited').value")
    checks.note("its text is kept for editing", edited == text.strip(), len(edited))
    page.run("document.querySelector('.edited').value = 'A short word'")
    page.press(ENTER)
    page.wait("it is answered", "return document.querySelector('.answer .said')?.textContent.length > 0")
    page.wait_idle()
    page.ask("And on")
    checks.note("the conversation goes on after it", page.questions() == ["A short word", "And on"] and len(page.answers()) == 2
                and not page.run(TROUBLE), [page.questions(), page.run(TROUBLE)])


def check_death(page: Page, program: str, checks: Checks) -> None:
    """A server that dies in the middle of an answer, is away, and comes back."""
    server = Server(program)
    try:
        page.open(server.url)
        check_long_message(page, checks)
        page.endless()
        with server.slowed():
            page.type("#message", "Tell me a story that breaks off" + ENTER)
            page.wait("it is being answered", "return document.querySelectorAll('.answer').length === 3"
                      " && document.querySelector('.answer:last-child .said').textContent.length > 0")
            server.kill()
        told = page.wait("it is told", TROUBLE)
        partial = page.answers()[-1]
        checks.note("a server that dies is told of in words", len(told) == 1 and "connection ended" in told[0]
                    and "defect" not in told[0], told)
        checks.note("what it wrote is kept", partial != "", partial)
        page.wait("the page says that the server is away",
                  "return document.getElementById('banner-text').textContent.includes('cannot be reached')")
        page.picture("server-gone")
        page.type("#message", "Typed while it is away" + ENTER)
        page.wait("that is told with the message", "return document.querySelectorAll('.trouble:not([hidden])').length === 2")
        # A second one: neither is in the way of the other.
        page.type("#message", "And another" + ENTER)
        page.wait("that too", "return document.querySelectorAll('.trouble:not([hidden])').length === 3")
        asked = page.questions()
        left_out = page.run("return [...document.querySelectorAll('.question .figures')].map(one => one.textContent).filter(Boolean)")
        boxes = page.run("return [...document.querySelectorAll('.trouble:not([hidden])')].map(one => [one.className, one.textContent])")
        checks.note("the cause is told once, and what failed for it mildly", all("mild" in box[0] for box in boxes)
                    and all("Is it still running" not in box[1] for box in boxes[1:]), boxes)
        checks.note("a question without an answer is marked", left_out == ["not answered: the model does not get this"], left_out)
        server = Server(program, port=server.port)
        page.wait("the page finds the server again", "return document.getElementById('banner').hidden")
        page.get_again()
        page.wait("a reload keeps all of it", "return document.querySelectorAll('.trouble:not([hidden])').length === 3")
        checks.note("what failed outlives a reload", page.questions() == asked and partial in page.answers(), page.questions())
        page.brief()
        page.press_words(".turn:last-child .trouble", "Try again")
        page.wait("it is answered", "return document.querySelector('.turn:last-child').matches('.answer:not(.writing)')")
        page.wait_idle()
        page.ask("After it all")
        state = [page.questions()[-2:], len(page.answers()), len(page.run(TROUBLE))]
        checks.note("the conversation goes on when the server is back", state == [["And another", "After it all"], 5, 2], state)
        # The answer that broke off is not the last one any more; a new version of it is.
        page.run("[...document.querySelectorAll('.trouble:not([hidden]) button')].find(one => one.textContent === 'Continue').click()")
        page.wait("it is done", "return document.querySelectorAll('.trouble:not([hidden])').length === 1"
                  " && !document.querySelector('.writing')")
        checks.note("an answer that broke off can be continued", page.answers()[2].startswith(partial.rstrip()[:20])
                    and not any("connection" in one for one in page.run(TROUBLE)), page.run(TROUBLE))
    finally:
        server.end()
