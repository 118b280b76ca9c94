"""Thoughts: the switch, how they are shown while they come and after, and what becomes of them."""

from __future__ import annotations

from browser import ENTER, FIGURES, Checks, Page

#: Makes the server's model one that thinks, as far as the page can see: what it is asked, and what it answers.
THINKER = r"""
const real = window.fetch;
window.sent = [];
window.steps = [];
window.shows = [];
const chunk = (delta, reason, tokens, thoughts) => 'data: ' + JSON.stringify({
  choices: [{ index: 0, delta, finish_reason: reason }],
  usage: { prompt_tokens: 5, completion_tokens: tokens, completion_tokens_details: { reasoning_tokens: thoughts } },
}) + '\n\n';
window.fetch = async (path, options) => {
  if (String(path).endsWith('api/show')) {
    const answer = await (await real(path, options)).json();
    if (sessionStorage.getItem('slow')) await new Promise((go) => { window.shows.push(go); });
    answer.capabilities = [...(answer.capabilities ?? []), 'thinking'];
    return new Response(JSON.stringify(answer), { status: 200 });
  }
  if (!String(path).endsWith('completions')) return real(path, options);
  const body = JSON.parse(options.body);
  window.sent.push(body);
  const parts = body.enable_thinking
    ? [chunk({ reasoning_content: 'It is <b>a' }, null, 4, 4), chunk({ reasoning_content: ' riddle</b>.' }, null, 9, 9)]
    : [];
  parts.push(chunk({ content: 'Four.' }, null, 12, 9), chunk({}, 'stop', 12, parts.length ? 9 : 0), 'data: [DONE]\n\n');
  const text = new TextEncoder();
  const stream = new ReadableStream({
    async start(out) {
      for (const part of parts) {
        out.enqueue(text.encode(part));
        // The test goes on when it has looked.
        await new Promise((go) => { window.steps.push(go); });
      }
      out.close();
    },
  });
  return new Response(stream, { status: 200 });
};
"""
STATE = """
const turn = document.querySelector('.answer:last-child');
const thoughts = turn?.querySelector('.thoughts');
return turn && {
  isShown: !thoughts.hidden, isOpen: thoughts.open, text: thoughts.querySelector('pre').textContent,
  markup: thoughts.querySelectorAll('pre *').length, said: turn.querySelector('.said').textContent,
  waits: turn.querySelector('.figures').textContent,
};
"""
GO = "window.steps.shift()?.(); return true"
PRESSED = "const button = document.getElementById('think'); return button.checkVisibility() && button.getAttribute('aria-pressed')"


def say(page: Page, text: str) -> None:
    """Sends a message without waiting for its answer."""
    page.type("#message", text + ENTER)
    page.wait("the message is sent", "return document.getElementById('message').value === ''")


def finish(page: Page) -> None:
    """Lets the answer come to its end."""
    page.wait("the answer is whole", "window.steps.shift()?.(); return document.getElementById('stop').hidden"
              " && !document.querySelector('.writing') && document.querySelector('.answer')")


def check_thinking(page: Page, checks: Checks) -> None:
    """A model that can think, and the model as it is."""
    hidden = page.run(PRESSED)
    checks.note("a model that cannot think has no switch for it", hidden is False, hidden)
    script = page.devtools("Page.addScriptToEvaluateOnNewDocument", source=THINKER)["identifier"]
    page.run("document.getElementById('new').click()")
    page.get_again()
    page.wait("the switch is there", PRESSED)
    checks.note("thinking is off at first", page.run(PRESSED) == "false")
    say(page, "What is two and two?")
    finish(page)
    sent = page.run("return window.sent")
    checks.note("off is said to the model", [body.get("enable_thinking") for body in sent] == [False], sent)
    state = page.run(STATE)
    checks.note("an answer without thoughts shows none", not state["isShown"] and state["said"] == "Four.", state)

    page.set("thinking_token_budget", 50)
    page.click("#think")
    checks.note("the switch is pressed", page.run(PRESSED) == "true")
    say(page, "And now?")
    page.wait("a thought is there", "return document.querySelector('.answer:last-child .thoughts pre')?.textContent")
    state = page.run(STATE)
    checks.note("thoughts are folded while they come", state["isShown"] and not state["isOpen"] and state["said"] == "", state)
    page.run(GO)
    page.wait("the page says that it thinks", "return document.querySelector('.answer:last-child .figures').textContent === 'thinking'")
    finish(page)
    state = page.run(STATE)
    checks.note("thoughts stand apart as they were written", state["text"] == "It is <b>a riddle</b>." and state["markup"] == 0
                and state["said"] == "Four.", state)
    figures = page.run(FIGURES)
    checks.note("tokens of thoughts are counted", "12 tokens, 9 of thinking" in figures, figures)
    checks.note("on is said to the model", page.run("return window.sent.at(-1).enable_thinking") is True)
    budgets = page.run("return window.sent.map(body => body.thinking_token_budget ?? null)")
    checks.note("so is how long to think", budgets == [None, 50], budgets)
    page.set("thinking_token_budget", "")

    say(page, "Once more?")
    finish(page)
    messages = page.run("return window.sent.at(-1).messages")
    said = "".join(message["content"] for message in messages)
    checks.note("thoughts are not sent back", "riddle" not in said and said.count("Four.") == 2, messages)
    page.wait_idle()
    page.get_again()
    page.wait("the conversation is drawn", "return document.querySelectorAll('.answer').length === 3")
    state = page.run(STATE)
    checks.note("thoughts and the switch outlive a reload", "riddle" in state["text"] and page.run(PRESSED) == "true", state)

    page.run("sessionStorage.setItem('slow', 'yes')")
    page.get_again()
    page.wait("the page asks whether the model can think", "return document.getElementById('model').value && window.shows.length")
    say(page, "And at once?")
    page.run("sessionStorage.removeItem('slow'); for (const go of window.shows.splice(0)) go()")
    page.wait("the answer is asked for", "for (const go of window.shows.splice(0)) go(); return window.sent.length")
    finish(page)
    on = page.run("return window.sent.at(-1).enable_thinking")
    checks.note("on is said also before the page knows that the model can think", on is True, on)
    page.wait_idle()
    page.devtools("Page.removeScriptToEvaluateOnNewDocument", identifier=script)
    page.click("#think")
    page.run("document.getElementById('new').click()")
    page.get_again()
