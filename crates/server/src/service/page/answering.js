// Asking the server for answers: each conversation has at most one being written, also while another one is shown.

import { RequestError, streamChat } from './api.js';
import { TAB, sendable } from './conversation.js';
import { aboutTokens } from './attach.js';
import { fit, messagesOf } from './fit.js';
import { short } from './picture.js';

/** Milliseconds between two looks of an answer being written, at least. */
const LOOK_PERIOD = 80;
const SAVE_PERIOD = 1000;
/** Most tokens of a text that is continued, where nobody said how long it may be: base models end rarely by themselves. */
const CONTINUED_TOKENS = 256;
/** Milliseconds between two signs of life for other tabs. */
const ALIVE_PERIOD = 5000;

export class Answering {
  /**
   * `keep` saves a conversation; `look` draws one, with words about what is waited for; `ended` is told of the end of an
   * answer: the conversation, the message or null, and the error or null. `asked` promises what is asked of the
   * model: its name, parameters, whether it thinks, undefined if it cannot, whether it sees, and whether it was trained to chat,
   * undefined if that is not known; `contextOf` gives its context, or null as long as it is not known.
   */
  constructor({ keep, look, ended, asked, contextOf }) {
    Object.assign(this, { keep, look, ended, asked, contextOf });
    this.running = new Map();
  }

  /** The message that is being written in a conversation, or null. */
  writing(talk) {
    return this.running.get(talk.id)?.node ?? null;
  }

  /** Ends the answer of a conversation; what was written stays. */
  stop(talk) {
    this.running.get(talk.id)?.controller.abort();
  }

  /** Asks for a new answer to a question. */
  async answer(talk, question) {
    const earlier = talk.shown().find(({ node }) => talk.parentOf(node) === question.id && node.role === 'assistant')?.node;
    const node = talk.add('assistant', '', question.id);
    node.figures = {};
    await this.run(talk, node, { turns: sendable(talk.pathTo(question)), holder: earlier ?? question, isNew: true });
  }

  /** Goes on with an answer that ended early. */
  async resume(talk, node) {
    // The server leaves blanks at the end out of what is gone on with.
    node.content = node.content.trimEnd();
    node.figures = {};
    await this.run(talk, node, { turns: sendable(talk.pathTo(node)), holder: node, isNew: false });
  }

  async run(talk, node, { turns, holder, isNew }) {
    const controller = new AbortController();
    this.running.set(talk.id, { controller, node });
    for (const one of [holder, talk.nodes.get(node.parent)]) {
      if (one?.error) {
        delete one.error;
        talk.touch(one);
      }
    }
    const live = () => {
      node.writing = { tab: TAB, at: Date.now() };
      talk.touch(node);
      this.keep(talk);
    };
    live();
    const alive = setInterval(live, ALIVE_PERIOD);
    this.look(talk, 'waiting for the model');
    const before = node.content;
    let failure = null;
    try {
      await this.write(talk, node, turns, controller.signal);
    } catch (error) {
      failure = controller.signal.aborted ? null : error;
      node.figures.reason = failure ? 'failed' : 'stopped';
    }
    clearInterval(alive);
    this.running.delete(talk.id);
    delete node.writing;
    talk.touch(node);
    const isLost = isNew && node.content === '' && !node.thoughts && node.figures.reason !== 'stop';
    if (isLost) this.drop(talk, node, holder);
    const told = failure ? toldOf(failure) : { message: 'Stopped before an answer came.', code: 'stopped', id: null };
    if (failure || isLost) {
      const place = isLost ? holder : node;
      place.error = told;
      talk.touch(place);
    }
    this.keep(talk);
    this.ended(talk, { node: isLost ? null : node, text: node.content.slice(before.length), failure, told });
  }

  /** Takes away an answer that never began, and shows what was there before. */
  drop(talk, node, holder) {
    node.isRemoved = true;
    talk.touch(node);
    if (holder.role === 'assistant') talk.choose(holder);
  }

  /** Fills a message with what the server streams. */
  async write(talk, node, turns, signal) {
    const { model, parameters, thinks, sees, chats } = await this.asked(talk, signal);
    if (chats === false) {
      const images = turns.findLast((turn) => turn.role === 'user')?.images ?? [];
      node.figures.unseen = images.length;
      await this.stream(talk, node, continuing(model, parameters, turns), signal);
      return;
    }
    const kept = talk.head.start;
    let isTight = false;
    for (;;) {
      const context = this.contextOf(model);
      const known = kept?.context === context ? turns.findIndex((turn) => turn.id === kept.id) : 0;
      const { system } = talk.head;
      const room = { context, maxTokens: parameters.max_tokens };
      const start = await fit({ turns, system, model, sees, ...room, start: Math.max(0, known), isTight, signal });
      const begin = start > 0 ? { id: turns[start].id, context } : null;
      if (JSON.stringify(begin) !== JSON.stringify(talk.head.start)) talk.set('start', begin);
      const sent = turns.slice(start);
      if (sees === false) node.figures.unseen = sent.reduce((sum, { images = [] }) => sum + images.length, 0);
      const body = { messages: messagesOf(system, sent, sees), ...parameters };
      // A budget by itself would make the model think.
      if (thinks !== true) delete body.thinking_token_budget;
      if (model) body.model = model;
      if (thinks !== undefined) body.enable_thinking = thinks;
      if (turns.at(-1) === node) Object.assign(body, { continue_final_message: true, add_generation_prompt: false });
      try {
        await this.stream(talk, node, body, signal);
        return;
      } catch (error) {
        const isTooLong = error instanceof RequestError && error.code === 'context_length_exceeded';
        if (!isTooLong) throw error;
        const isLast = turns.slice(start).filter((turn) => turn.role === 'user').length === 1;
        if (isTight || isLast) {
          // Nothing was sent, and nothing is left out of what the model gets.
          if (talk.head.start !== kept) talk.set('start', kept);
          throw tooLong(error, system, turns, context);
        }
        isTight = true;
      }
    }
  }

  async stream(talk, node, body, signal) {
    const begin = performance.now();
    let first = null;
    let looked = 0;
    let saved = begin;
    let cost = 0;
    for await (const { text, thought, usage, reason } of streamChat(body, signal)) {
      const now = performance.now();
      if (text || thought) {
        if (text) node.content += text;
        else node.thoughts = (node.thoughts ?? '') + thought;
        first ??= now;
        node.figures.first = (first - begin) / 1000;
      }
      if (usage) {
        node.figures.prompt = usage.prompt_tokens;
        node.figures.tokens = usage.completion_tokens;
        node.figures.thoughts = usage.completion_tokens_details?.reasoning_tokens;
        if ((text || thought) && usage.completion_tokens > 1 && now > first) {
          node.figures.speed = ((usage.completion_tokens - 1) * 1000) / (now - first);
        }
      }
      if (reason) node.figures.reason = reason;
      // Long answers take long to lay out: the page is left at least as much time for everything else.
      if (now - looked > Math.max(LOOK_PERIOD, 3 * cost)) {
        talk.touch(node);
        this.look(talk, first === null ? 'waiting for the model' : node.content === '' ? 'thinking' : '');
        looked = performance.now();
        cost = looked - now;
      }
      if (now - saved > SAVE_PERIOD) {
        node.writing = { tab: TAB, at: Date.now() };
        talk.touch(node);
        this.keep(talk);
        saved = now;
      }
    }
  }
}

/** The request that continues a text: base models know no turns, and each message is continued by itself. */
function continuing(model, parameters, turns) {
  const question = turns.findLastIndex((turn) => turn.role === 'user');
  const prompt = turns.slice(question).map((turn) => turn.content).join('');
  const body = { prompt, max_tokens: CONTINUED_TOKENS, ...parameters };
  delete body.thinking_token_budget;
  if (model) body.model = model;
  return body;
}

function tooLong(error, system, turns, context) {
  // What the server advises is for those who started it.
  const ofMessage = aboutTokens(turns.findLast((turn) => turn.role === 'user').content);
  const ofSystem = aboutTokens(system);
  const what = ofSystem > ofMessage ? 'instructions are' : 'message is';
  const counted = Math.max(ofSystem, ofMessage);
  // The count is by bytes; a message that is a little too long may look as if it fitted.
  const counts = counted > context ? ` (about ${rounded(counted)} tokens; ${short(context)} fit)` : context ? ` (${short(context)} tokens fit)` : '';
  const message = `Your ${what} too long for this model${counts}. Shorten ${ofSystem > ofMessage ? 'them' : 'it'}.`;
  return new RequestError(message, error.status, error.code, error.id);
}

/** A count with two digits that matter. */
function rounded(count) {
  return short(Number(count.toPrecision(2)));
}

/** What is kept of an error with the message that it befell. */
function toldOf(error) {
  if (error instanceof RequestError) return { message: error.message, code: error.code, id: error.id };
  return { message: `The page has met a bug: ${error.message}`, code: 'defect', id: null };
}
