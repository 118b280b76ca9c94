// The chat: what was said, what is asked, and what the controls do.

import { RequestError, askJson, setKey, streamChat } from './api.js';
import { element, render } from './markdown.js';
import { Picture, short } from './picture.js';

const STORE = 'trine-conversation';
const FORMAT = 1;
const PARAMETERS = ['temperature', 'top_p', 'top_k', 'min_p', 'max_tokens', 'seed'];
const IMPORT_BYTES_MAX = 8 << 20;
const ANNOUNCED_MAX = 2000;
/** Milliseconds between two looks of an answer being written, at least. */
const LOOK_PERIOD = 80;
const SAVE_PERIOD = 1000;

const $ = (id) => document.getElementById(id);

let talk = emptyTalk();
let contexts = new Map();
/** The controller of the request in flight. */
let writing = null;
/** What to do again once there is a key. */
let afterKey = null;

function emptyTalk() {
  return { format: FORMAT, model: '', system: '', parameters: {}, turns: [] };
}

// Keeping

function save() {
  try {
    localStorage.setItem(STORE, JSON.stringify(talk));
  } catch {
    complain('The conversation is too long for this browser to keep. Export it if you need it later.');
  }
}

/** A conversation out of JSON from a file or the store: known fields of known types alone. Throws what is wrong. */
function readTalk(text) {
  const given = JSON.parse(text);
  if (given?.format !== FORMAT || !Array.isArray(given.turns)) throw new Error('it is no conversation of this page');
  const read = emptyTalk();
  if (typeof given.model === 'string') read.model = given.model;
  if (typeof given.system === 'string') read.system = given.system;
  for (const name of PARAMETERS) {
    if (Number.isFinite(given.parameters?.[name])) read.parameters[name] = given.parameters[name];
  }
  read.turns = given.turns.map((turn) => {
    if (!['user', 'assistant'].includes(turn?.role) || typeof turn.content !== 'string') {
      throw new Error('one of its turns is no message');
    }
    const kept = { role: turn.role, content: turn.content };
    if (turn.figures) {
      kept.figures = {};
      for (const name of ['prompt', 'tokens', 'first', 'speed']) {
        if (Number.isFinite(turn.figures[name])) kept.figures[name] = turn.figures[name];
      }
      if (typeof turn.figures.reason === 'string') kept.figures.reason = turn.figures.reason;
    }
    return kept;
  });
  return read;
}

function show(read) {
  talk = read;
  $('system').value = talk.system;
  for (const name of PARAMETERS) $(name).value = talk.parameters[name] ?? '';
  if (contexts.has(talk.model)) $('model').value = talk.model;
  $('turns').replaceChildren(...talk.turns.map((turn) => turnElement(turn).item));
  follow();
}

// Showing

function turnElement(turn) {
  const isAnswer = turn.role === 'assistant';
  const said = element('div', 'said');
  const figures = element('p', 'figures');
  const item = element('li', `turn ${isAnswer ? 'answer' : 'question'}`);
  item.append(element('h2', '', isAnswer ? 'Answer' : 'You'), said);
  if (isAnswer) item.append(figures);
  const update = () => {
    if (isAnswer) said.replaceChildren(...render(turn.content));
    else said.textContent = turn.content;
    figures.textContent = figuresText(turn.figures);
  };
  update();
  return { item, figures, update };
}

function figuresText(figures) {
  if (!figures) return '';
  const parts = [];
  if (figures.tokens !== undefined) parts.push(`${short(figures.tokens)} tokens`);
  if (figures.speed !== undefined) parts.push(`${short(figures.speed)} tokens/s`);
  if (figures.first !== undefined) parts.push(`first after ${figures.first.toFixed(2)} s`);
  if (figures.reason === 'length') parts.push('ended at the limit of tokens');
  if (figures.reason === 'stopped') parts.push('stopped');
  if (figures.reason === 'failed') parts.push('failed');
  return parts.join(', ');
}

/** Brings the controls in line with the conversation. */
function follow() {
  const isWriting = writing !== null;
  $('empty').hidden = talk.turns.length > 0;
  $('send').disabled = isWriting;
  $('stop').disabled = !isWriting;
  $('regenerate').disabled = isWriting || talk.turns.length === 0;
  for (const id of ['import', 'clear']) $(id).disabled = isWriting;
  const figures = talk.turns.findLast((turn) => turn.figures?.prompt !== undefined)?.figures;
  const used = figures ? figures.prompt + (figures.tokens ?? 0) : 0;
  const context = contexts.get($('model').value);
  $('context').value = context ? Math.min(1, used / context) : 0;
  $('context-text').textContent = context ? `${short(used)} of ${short(context)} tokens` : `${short(used)} tokens`;
}

function complain(message, id) {
  $('banner-text').textContent = id ? `${message}\nRequest ${id}` : message;
  $('banner').hidden = false;
}

function uncomplain() {
  $('banner').hidden = true;
  $('banner-text').textContent = '';
}

/** Tells of a failed request; asks for a key if that is what was missing, and then does `again`. */
function fail(error, again) {
  if (error instanceof RequestError && error.status === 401) {
    picture.pause();
    if (again) afterKey = again;
    if (!$('key-dialog').open) $('key-dialog').showModal();
  } else if (error instanceof RequestError) {
    complain(error.message, error.id);
  } else {
    complain(`The page met a defect: ${error.message}`);
  }
}

/** What scrolls: the conversation's own box, or the whole page on narrow windows. */
function scroller() {
  const box = $('conversation');
  return getComputedStyle(box).overflowY === 'auto' ? box : document.scrollingElement;
}

function isAtEnd() {
  const box = scroller();
  return box.scrollHeight - box.scrollTop - box.clientHeight < 80;
}

function scrollToEnd() {
  const box = scroller();
  box.scrollTop = box.scrollHeight;
}

// Asking

/** The parameters that the fields name; none if one of them is out of range. */
function readParameters() {
  const parameters = {};
  for (const name of PARAMETERS) {
    const field = $(name);
    if (!field.checkValidity()) {
      $('settings').open = true;
      field.reportValidity();
      return null;
    }
    if (field.value !== '') parameters[name] = Number(field.value);
  }
  return parameters;
}

function send() {
  const text = $('message').value.trim();
  if (text === '' || writing || readParameters() === null) return;
  $('message').value = '';
  const turn = { role: 'user', content: text };
  talk.turns.push(turn);
  $('turns').append(turnElement(turn).item);
  answer();
}

function regenerate() {
  if (writing || talk.turns.length === 0 || readParameters() === null) return;
  if (talk.turns.at(-1).role === 'assistant') {
    talk.turns.pop();
    $('turns').lastElementChild.remove();
  }
  if (talk.turns.length > 0) answer();
  else follow();
}

function requestBody() {
  const messages = talk.turns.map(({ role, content }) => ({ role, content }));
  if (talk.system.trim() !== '') messages.unshift({ role: 'system', content: talk.system });
  const body = { messages, ...talk.parameters };
  if ($('model').value !== '') body.model = $('model').value;
  return body;
}

/** Streams the answer to what was said so far. */
async function answer() {
  const body = requestBody();
  const turn = { role: 'assistant', content: '', figures: {} };
  const shown = turnElement(turn);
  writing = new AbortController();
  talk.turns.push(turn);
  $('turns').append(shown.item);
  shown.item.classList.add('writing');
  shown.item.setAttribute('aria-busy', 'true');
  shown.figures.textContent = 'waiting';
  uncomplain();
  follow();
  if (document.activeElement === document.body || document.activeElement.disabled) $('stop').focus();
  scrollToEnd();
  save();
  let failure = null;
  try {
    await write(turn, shown, body, writing.signal);
  } catch (error) {
    failure = writing.signal.aborted ? null : error;
    turn.figures.reason = failure ? 'failed' : 'stopped';
  }
  writing = null;
  shown.item.classList.remove('writing');
  shown.item.removeAttribute('aria-busy');
  if (failure && turn.content === '') {
    talk.turns.pop();
    shown.item.remove();
  } else {
    shown.update();
    $('announcer').textContent = `Answer: ${turn.content.slice(0, ANNOUNCED_MAX)}`;
  }
  const hadFocus = document.activeElement === $('stop');
  follow();
  if (hadFocus) $('message').focus();
  save();
  if (failure) fail(failure, answer);
}

/** Fills a turn with what the server streams. */
async function write(turn, shown, body, signal) {
  const begin = performance.now();
  let first = null;
  let looked = 0;
  let saved = begin;
  let cost = 0;
  for await (const { text, usage, reason } of streamChat(body, signal)) {
    const now = performance.now();
    if (text) {
      turn.content += text;
      first ??= now;
      turn.figures.first = (first - begin) / 1000;
    }
    if (usage) {
      turn.figures.prompt = usage.prompt_tokens;
      turn.figures.tokens = usage.completion_tokens;
      if (text && usage.completion_tokens > 1 && now > first) {
        turn.figures.speed = ((usage.completion_tokens - 1) * 1000) / (now - first);
      }
    }
    if (reason) turn.figures.reason = reason;
    // Long answers take long to lay out: the page is left at least as much time for everything else.
    if (now - looked > Math.max(LOOK_PERIOD, 3 * cost)) {
      const wasAtEnd = isAtEnd();
      shown.update();
      follow();
      if (wasAtEnd) scrollToEnd();
      looked = performance.now();
      cost = looked - now;
    }
    if (now - saved > SAVE_PERIOD) {
      save();
      saved = now;
    }
  }
  const wasAtEnd = isAtEnd();
  shown.update();
  if (wasAtEnd) scrollToEnd();
}

async function loadModels() {
  try {
    const models = (await askJson('v1/models')).data;
    contexts = new Map(models.map((model) => [model.id, model.max_model_len]));
    const before = $('model').value || talk.model;
    $('model').replaceChildren(...models.map((model) => {
      const option = element('option', '', model.id);
      option.value = model.id;
      return option;
    }));
    if (contexts.has(before)) $('model').value = before;
    follow();
    picture.start();
  } catch (error) {
    fail(error, null);
  }
}

/** Takes over what a poll of the engine found. */
function heard(model, error) {
  if (error) {
    $('device').textContent = 'not reached';
    if (error.status === 401 || error.status === 429) picture.pause();
    if (error.status === 401) fail(error, null);
    return;
  }
  const text = model.is_loaded ? model.device : 'not loaded';
  if ($('device').textContent !== text) $('device').textContent = text;
  const context = model.status?.context;
  if (context && contexts.get(model.name) !== context) {
    contexts.set(model.name, context);
    follow();
  }
  // The server was not there when the page was opened.
  if ($('model').options.length === 0) loadModels();
}

// Controls

function exportTalk() {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(new Blob([JSON.stringify(talk, null, 2)], { type: 'application/json' }));
  link.download = 'conversation.json';
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

async function importTalk() {
  const file = $('import-file').files[0];
  $('import-file').value = '';
  if (!file) return;
  try {
    if (file.size > IMPORT_BYTES_MAX) throw new Error('it is larger than 8 MiB');
    const read = readTalk(await file.text());
    if (writing || (talk.turns.length > 0 && !confirm('Replace this conversation?'))) return;
    show(read);
    save();
  } catch (error) {
    complain(`This file cannot be imported: ${error.message}.`);
  }
}

function clearTalk() {
  if (writing || (talk.turns.length > 0 && !confirm('Delete this conversation?'))) return;
  show({ ...talk, turns: [] });
  save();
  $('message').focus();
}

function useKey(event) {
  event.preventDefault();
  const key = $('key').value.trim();
  // Header values are visible ASCII characters, and so are keys.
  if (!/^[!-~]+$/.test(key)) return;
  setKey(key);
  $('key').value = '';
  $('key-dialog').close();
  const again = afterKey;
  afterKey = null;
  loadModels();
  if (again && !writing) again();
}

function wire() {
  $('composer').addEventListener('submit', (event) => {
    event.preventDefault();
    send();
  });
  $('message').addEventListener('keydown', (event) => {
    if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  });
  document.addEventListener('keydown', (event) => {
    if (event.key === 'Escape' && !event.isComposing) writing?.abort();
  });
  $('stop').addEventListener('click', () => writing?.abort());
  $('regenerate').addEventListener('click', regenerate);
  $('model').addEventListener('change', () => {
    talk.model = $('model').value;
    picture.reset();
    follow();
    save();
  });
  $('system').addEventListener('input', () => {
    talk.system = $('system').value;
    save();
  });
  $('parameters').addEventListener('input', (event) => {
    const field = event.target;
    if (field.value !== '' && field.checkValidity()) talk.parameters[field.id] = Number(field.value);
    else delete talk.parameters[field.id];
    save();
  });
  $('export').addEventListener('click', exportTalk);
  $('import').addEventListener('click', () => $('import-file').click());
  $('import-file').addEventListener('change', importTalk);
  $('clear').addEventListener('click', clearTalk);
  $('banner-close').addEventListener('click', () => {
    uncomplain();
    $('message').focus();
  });
  $('key-form').addEventListener('submit', useKey);
  $('key-cancel').addEventListener('click', () => $('key-dialog').close());
  $('key-dialog').addEventListener('close', () => $('message').focus());
  addEventListener('pagehide', () => { if (writing) save(); });
}

const picture = new Picture($('picture'), () => $('model').value, heard);

function begin() {
  const kept = localStorage.getItem(STORE);
  if (kept !== null) {
    try {
      show(readTalk(kept));
    } catch {
      complain('What this browser kept of the conversation cannot be read.');
    }
  }
  wire();
  follow();
  loadModels();
}

begin();
