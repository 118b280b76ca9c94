// The page: which conversation is shown, and what its controls do.

import { Answering } from './answering.js';
import { Beginning, BASE } from './begin.js';
import { Composer } from './composer.js';
import { Talk, sendable, titleFrom } from './conversation.js';
import { aboutTokens, sizeText, splitFiles } from './attach.js';
import { drawIcons } from './icons.js';
import { IMAGE_TOKENS } from './image.js';
import { Access } from './access.js';
import { Frame } from './frame.js';
import { Getter } from './get.js';
import { announce, closeToast, complain, note, toast, uncomplain, wireNotices } from './notice.js';
import { Picture, short } from './picture.js';
import { Settings } from './settings.js';
import { Sidebar } from './sidebar.js';
import { Store } from './store.js';
import { View } from './view.js';
import { exportAll, exportTalk, importFiles, takeOver } from './transfer.js';

const $ = (id) => document.getElementById(id);
const HASH = '#chat-';
const NEW = 'trine-new-chat';
/** Milliseconds between two looks whether another tab still writes. */
const OTHERS_PERIOD = 2000;
/** Milliseconds until screen readers are told that an answer is being written. */
const WRITING_WAIT = 1000;
/** The share of the context from which on people are told how full it is. */
const CONTEXT_TOLD = 0.7;

/** The conversation on the page. */
let talk = new Talk();
/** Conversations that are being answered, or that the store has not taken: the objects have to stay the same. */
const held = new Map();
let heads = [];
let isSending = false;
let othersTimer = null;
/** Counts the conversations that were gone to. */
let goes = 0;
/** Conversations that were deleted here: what still comes for them is not kept. */
const gone = new WeakSet();
const listing = { isWanted: false, run: null };

// Keeping

/** Writes a conversation; what goes wrong is told, and tried again with the next change. */
async function keep(one) {
  if (one.isEmpty || gone.has(one)) return;
  held.set(one.id, one);
  try {
    await store.save(one);
    uncomplain('room');
    if (!answering.writing(one) && one.dirty.size === 0) held.delete(one.id);
  } catch {
    const message = 'This browser has no room for this chat. It stays on the page until you close the tab: export it, or delete '
      + 'other chats.';
    complain(message, { kind: 'room', action: ['Export', () => exportTalk(one)] });
  }
  list();
}

/** Brings the list of conversations up to date. */
function list() {
  listing.isWanted = true;
  listing.run ??= (async () => {
    while (listing.isWanted) {
      listing.isWanted = false;
      heads = await store.list().catch(() => heads);
      sidebar.show(heads, talk.id);
      for (const name of ['export-all', 'delete-all']) $(name).disabled = heads.length === 0;
    }
    listing.run = null;
  })();
  return listing.run;
}

/** Another tab changed a conversation. */
async function heard(id) {
  list();
  const one = id === talk.id ? talk : held.get(id);
  if (!one) return;
  const found = await store.renew(one).catch(() => 'same');
  if (one !== talk) return;
  if (found === 'gone' && !answering.writing(talk)) {
    const deleted = talk;
    gone.add(deleted);
    newChat();
    toast(`Deleted “${deleted.title}” in another tab.`, () => putBack(deleted));
  } else if (found === 'news') {
    view.update(view.waits);
    settings.show(talk);
    follow();
  }
}

// Going from one conversation to another

function show(one) {
  closeToast();
  talk = one;
  document.title = talk.isEmpty ? 'trine' : `${talk.title} – trine`;
  $('title').textContent = talk.isEmpty ? 'trine' : talk.title;
  document.body.classList.toggle('with-title', !talk.isEmpty);
  view.show(talk);
  settings.show(talk);
  composer.open(talk.isEmpty ? 'new' : talk.id);
  sidebar.show(heads, talk.id);
  follow();
}

function newChat() {
  frame.closeOver();
  if (location.hash !== '') history.pushState(null, '', location.pathname + location.search);
  if (!talk.isEmpty) show(new Talk(settings.habits()));
  $('message').focus();
}

/** What was set for a conversation that has no message yet is kept in the tab. */
function rememberNew() {
  try {
    sessionStorage.setItem(NEW, JSON.stringify(talk.head));
  } catch { /* then a reload forgets it */ }
}

/** The conversation that was to be begun before a reload. */
function rememberedNew() {
  try {
    const { model, system, parameters, thinks } = JSON.parse(sessionStorage.getItem(NEW));
    return { model, system, parameters, thinks };
  } catch {
    return settings.habits();
  }
}

/** Shows the conversation that the address names. */
async function go() {
  const id = location.hash.startsWith(HASH) ? location.hash.slice(HASH.length) : '';
  if (id === talk.id && !talk.isEmpty) return;
  if (id === '') {
    if (!talk.isEmpty) show(new Talk(settings.habits()));
    return;
  }
  goes += 1;
  const mine = goes;
  const found = held.get(id) ?? await store.load(id).catch(() => null);
  // The person went on meanwhile.
  if (mine !== goes) return;
  if (!found) {
    history.replaceState(null, '', location.pathname + location.search);
    show(new Talk(settings.habits()));
    toast('This chat is no longer in this browser.');
    return;
  }
  // Both have to happen.
  const isTidied = [!held.has(id) && found.purge(), !answering.writing(found) && found.mend()].includes(true);
  if (isTidied) keep(found);
  show(found);
  frame.closeOver();
}

function renameTalk(head, title) {
  changeHead(head.id, (one) => one.set('title', title));
}

/** Changes a conversation that need not be the one on the page. */
async function changeHead(id, change) {
  const one = id === talk.id ? talk : held.get(id) ?? await store.load(id);
  if (!one) return;
  change(one);
  await keep(one);
  if (one !== talk) return;
  document.title = `${talk.title} – trine`;
  $('title').textContent = talk.title;
}

async function removeTalk(head) {
  const one = head.id === talk.id ? talk : held.get(head.id) ?? await store.load(head.id).catch(() => null);
  if (!one) return;
  gone.add(one);
  answering.stop(one);
  held.delete(one.id);
  const wasShown = one === talk;
  const next = nextFocus(head.id);
  await store.remove(one.id);
  if (wasShown) newChat();
  await list();
  if (!wasShown) next?.();
  toast(`Deleted “${one.title}”.`, () => putBack(one));
}

async function removeAll() {
  const count = heads.length;
  if (!confirm(`Delete ${count === 1 ? 'this chat' : `all ${count} chats`} from this browser? This cannot be undone.`)) return;
  for (const head of heads) {
    const one = head.id === talk.id ? talk : held.get(head.id);
    if (one) {
      gone.add(one);
      answering.stop(one);
      held.delete(one.id);
    }
    await store.remove(head.id);
  }
  newChat();
  await list();
  toast(count === 1 ? 'Deleted the chat.' : `Deleted ${count} chats.`);
}

/** What puts the focus on the neighbour of an item of the list that goes away. */
function nextFocus(id) {
  const ids = heads.map((head) => head.id);
  const near = ids[ids.indexOf(id) + 1] ?? ids[ids.indexOf(id) - 1];
  return () => [...$('talks').children].find((item) => item.dataset.talk === near)?.querySelector('a')?.focus();
}

async function putBack(one) {
  gone.delete(one);
  held.set(one.id, one);
  await store.putBack(one).catch(() => {});
  await keep(one);
  if (location.hash !== HASH + one.id) history.pushState(null, '', HASH + one.id);
  show(one);
}

// Asking

/** Whether another message can be asked now; says why not. */
function canAsk() {
  if (answering.writing(talk)) return false;
  if (talk.shown().some(({ node }) => Talk.isWrittenElsewhere(node))) {
    toast('Another tab is writing an answer in this chat. Your message stays here until it is done.');
    return false;
  }
  if (settings.isMissing) {
    toast(`“${settings.model}” is not on this server any more. Choose another model at the top; your message stays here.`);
    $('model').focus();
    return false;
  }
  return settings.parameters() !== null;
}

async function send() {
  const content = composer.content();
  if (composer.isEmpty || isSending || !canAsk()) return;
  isSending = true;
  try {
    // Another tab may have gone on with the conversation.
    if (!talk.isEmpty && await store.renew(talk).catch(() => 'same') === 'news') view.refresh();
    if (composer.content() !== content || !canAsk()) return;
    const question = talk.add('user', content, talk.last()?.id ?? null, composer.images());
    composer.clear();
    begin(question);
    ask(question);
  } finally {
    isSending = false;
  }
}

/** Gives a conversation its name and its address with its first message. */
function begin(question) {
  const name = splitFiles(question.content).title || question.images?.[0].name || '';
  if (!talk.head.title) talk.set('title', titleFrom(name));
  // What was chosen for new chats may not be here any more.
  if (settings.model && talk.head.model !== settings.model) talk.set('model', settings.model);
  document.title = `${talk.title} – trine`;
  $('title').textContent = talk.title;
  document.body.classList.add('with-title');
  if (location.hash === HASH + talk.id) return;
  history.replaceState(null, '', HASH + talk.id);
  composer.rename(talk.id);
  try {
    sessionStorage.removeItem(NEW);
  } catch { /* nothing was kept */ }
}

function ask(question) {
  uncomplain();
  const done = answering.answer(talk, question);
  view.toEnd();
  announceWriting(talk);
  return done;
}

/** Tells screen readers of an answer that takes its time. */
function announceWriting(one) {
  setTimeout(() => {
    if (one === talk && answering.writing(one)) announce('Writing');
  }, WRITING_WAIT);
}

const actions = {
  /** Sends a changed message as a new version. Whether it was sent. */
  change(node, content, images) {
    if (!canAsk()) return false;
    const question = talk.add('user', content, talk.parentOf(node), images);
    ask(question);
    $('message').focus();
    return true;
  },
  again(node) {
    const question = node.role === 'user' ? node : talk.nodes.get(talk.parentOf(node));
    if (question?.role !== 'user') toast('This answer has no question that could be asked again.');
    else if (canAsk()) ask(question);
  },
  resume(node) {
    if (!canAsk()) return;
    uncomplain();
    answering.resume(talk, node);
    view.toEnd();
    announceWriting(talk);
  },
  choose(node) {
    talk.choose(node);
    view.refresh();
    follow();
    keep(talk);
  },
  remove(node) {
    const one = talk;
    const undo = one.remove(node);
    changedTree(one);
    const message = node.role === 'user' ? 'Deleted the message.' : 'Deleted the answer.';
    toast(message, () => {
      one.restore(undo);
      changedTree(one);
    }, () => {
      if (one.purge()) keep(one);
    });
    $('message').focus();
  },
};

function changedTree(one) {
  keep(one);
  if (one !== talk) return;
  view.refresh();
  follow();
}

/** Draws an answer that is being written. */
function look(one, waits) {
  if (one === talk) {
    view.update(waits);
    follow();
  }
}

function ended(one, { node, text, failure, told }) {
  if (gone.has(one)) return;
  if (one === talk) {
    const hadFocus = document.activeElement === $('stop') || document.activeElement === document.body;
    view.update();
    follow();
    if (hadFocus) $('message').focus();
  } else if (!failure) {
    toast(`Answered “${one.title}”.`);
  }
  if (node && text) announce(`Answer: ${text}`);
  if (failure) announce(told.message, true);
  if (failure) access.failed(failure, () => retry(one));
  const isNews = ['context_length_exceeded', 'model_not_found'].includes(failure?.code);
  if (isNews || !settings.contextOf(settings.model)) settings.load().then(follow);
  list();
}

/** Asks again what failed for want of a key. */
function retry(one) {
  const node = one.last();
  if (one === talk && node?.error) actions.again(node);
}

/** Brings the controls in line with the conversation. */
function follow() {
  const isWriting = answering.writing(talk) !== null;
  $('send').hidden = isWriting;
  $('stop').hidden = !isWriting;
  $('send').disabled = composer.isEmpty;
  $('export').disabled = talk.isEmpty;
  const shown = talk.shown().map(({ node }) => node);
  const path = sendable(shown);
  const counted = path.findLastIndex((node) => node.figures?.prompt !== undefined);
  const figures = path[counted]?.figures;
  const said = figures ? figures.prompt + (figures.tokens ?? 0) : 0;
  const draft = composer.tokens();
  const ofImage = settings.sees === false ? 0 : IMAGE_TOKENS;
  const ofNode = ({ content, images = [] }) => aboutTokens(content) + images.length * ofImage;
  const used = said + draft + path.slice(counted + 1).reduce((sum, node) => sum + ofNode(node), 0);
  const context = settings.contextOf(settings.model);
  view.context = context;
  watchOthers(shown);
  beginning.draw();
  const share = context ? used / context : 0;
  $('context').hidden = share < CONTEXT_TOLD;
  $('context').value = Math.min(1, share);
  const isLong = context && draft > context;
  $('context-text').classList.toggle('wrong', Boolean(isLong));
  const full = share < 1 ? `${Math.floor(100 * share)} % full` : 'full: the oldest messages will be left out';
  const words = isLong ? `too long: ${short(context)} tokens fit` : share < CONTEXT_TOLD ? '' : full;
  $('context-text').textContent = words;
  $('context-text').title = context ? `${used > said ? 'about ' : ''}${short(used)} of ${short(context)} tokens` : '';
}

/** Looks again while another tab writes: if that was closed, its answer is ended here. */
function watchOthers(path) {
  clearTimeout(othersTimer);
  const last = path.at(-1);
  if (!last?.writing || answering.writing(talk)) return;
  othersTimer = setTimeout(() => {
    if (!answering.writing(talk) && talk.mend()) keep(talk);
    view.refresh();
    follow();
  }, OTHERS_PERIOD);
}

// Controls

/** Takes over what a look at the engines found. */
function heardEngine(status, error) {
  if (error) {
    access.lost(error);
    return;
  }
  access.found();
  const model = status.models.find((one) => one.root === settings.engine);
  const unloaded = settings.isMissing ? 'not on this server' : 'not loaded yet';
  const text = model?.is_loaded ? '' : unloaded;
  if ($('device').textContent !== text) $('device').textContent = text;
  const rate = model?.tokens_per_second ? `, ${short(model.tokens_per_second)} tokens/s` : '';
  const line = model?.is_loaded ? `On ${model.device}${rate}` : 'The model is loaded with the first message.';
  if ($('engine-line').textContent !== line) $('engine-line').textContent = line;
  if (settings.heard(status)) settings.load().then(follow);
  else follow();
}

/** Says what is to know of a model that was chosen, once the server has told. */
function heardOfModel() {
  if (settings.canGet && !getter.offers) getter.look(false);
  if (settings.chats === false && !talk.isEmpty) note(BASE);
}

function wire() {
  for (const id of ['new', 'new-small']) $(id).addEventListener('click', newChat);
  $('skip').addEventListener('click', (event) => {
    event.preventDefault();
    $('message').focus();
  });
  document.addEventListener('keydown', (event) => {
    if (event.key === 'Escape' && !event.isComposing && !frame.closeOver()) answering.stop(talk);
    if ((event.ctrlKey || event.metaKey) && event.shiftKey && event.key.toLowerCase() === 'o') {
      event.preventDefault();
      newChat();
    }
    if ((event.ctrlKey || event.metaKey) && !event.shiftKey && !event.altKey && event.key.toLowerCase() === 'k') {
      event.preventDefault();
      frame.openSidebar();
      if (!$('find').hidden) $('find').select();
      $('find').focus();
    }
  });
  for (const id of ['instructions', 'add-instructions']) {
    $(id).addEventListener('click', () => {
      frame.openPanel();
      $('system').focus();
    });
  }
  $('stop').addEventListener('click', () => answering.stop(talk));
  $('export').addEventListener('click', () => exportTalk(talk));
  $('export-all').addEventListener('click', () => exportAll(store, heads));
  $('delete-all').addEventListener('click', removeAll);
  $('import').addEventListener('click', () => $('import-file').click());
  $('import-file').addEventListener('change', async () => {
    const talks = await importFiles([...$('import-file').files]);
    $('import-file').value = '';
    for (const one of talks) await keep(one);
    const last = talks.at(-1);
    if (!last) return;
    history.pushState(null, '', HASH + last.id);
    await go();
    toast(talks.length === 1 ? `Imported “${last.title}”.` : `Imported ${talks.length} chats.`);
  });
  addEventListener('popstate', go);
  addEventListener('pagehide', () => {
    closeToast();
    for (const one of held.values()) keep(one);
  });
  addEventListener('beforeunload', (event) => {
    const isUnsaved = [...held.values()].some((one) => one.dirty.size > 0 && !answering.writing(one));
    if (isUnsaved) event.preventDefault();
  });
}

const store = new Store(heard);
const answering = new Answering({
  keep,
  look,
  ended,
  async asked(one, signal) {
    const model = one === talk ? settings.model : one.head.model;
    const { parameters } = one.head;
    return { model, parameters, ...await settings.abilitiesOf(one, model, signal) };
  },
  contextOf: (name) => settings.contextOf(name),
});
const view = new View(actions, (one) => answering.writing(one));
const settings = new Settings({
  changed(what) {
    if (what === 'invalid') frame.openPanel();
    else if (what === 'habits') toast('New chats will start with these instructions and settings.');
    else if (what === 'get') getter.open();
    else if (what === 'known') heardOfModel();
    else if (talk.isEmpty) rememberNew();
    else keep(talk);
    if (what === 'model') {
      picture.reset();
      heardOfModel();
    }
    follow();
  },
  failed: (error) => access.failed(error, null),
});
const getter = new Getter({
  use: (name) => settings.use(name),
  async came(name) {
    await settings.load();
    // The dialog lies over toasts.
    if (name) $('get-dialog').close();
    if (name && talk.isEmpty) {
      settings.use(name);
      toast(`${name} is ready.`);
    } else if (name) {
      toast(`${name} is ready.`, () => settings.use(name), null, 'Use it');
    }
    return [...settings.models.keys()];
  },
  failed: (error, again) => access.failed(error, again),
  changed: () => follow(),
});
const beginning = new Beginning({
  settings,
  getter,
  say(words) {
    composer.take(words);
    send();
  },
});
const sidebar = new Sidebar({
  actions: {
    rename: renameTalk,
    remove: removeTalk,
    search: (words, isWanted) => store.search(words, isWanted).catch(() => new Map()),
  },
  isWriting: (id) => answering.running.has(id),
});
const composer = new Composer({
  send,
  changed: follow,
  sees: () => settings.sees,
  blind() {
    const offer = getter.seeing;
    if (!offer) return [`${settings.model} takes text only. Choose another model at the top.`, null];
    const size = offer.served_as ? '' : ` (${sizeText(offer.bytes_about)})`;
    return [`${settings.model} takes text only; ${offer.name}${size} reads images.`, getter.button(offer, 'small')];
  },
  answer(event) {
    if (view.focusAnswer()) event.preventDefault();
  },
  back(event) {
    const last = talk.shown().findLast(({ node }) => node.role === 'user');
    if (!last || answering.writing(talk)) return;
    event.preventDefault();
    view.edit(last.node);
  },
});
const picture = new Picture($('picture'), {
  chosen: () => settings.engine,
  isSeen: () => frame.isEngineSeen(),
  heard: heardEngine,
});
const frame = new Frame({ engineSeen: () => picture.follow() });
const access = new Access({
  look: () => picture.follow(),
  pause: () => picture.pause(),
  resume: async () => {
    if (await settings.load()) picture.start();
    follow();
  },
});

async function start() {
  drawIcons();
  wireNotices();
  wire();
  await store.open();
  if (!store.isLasting) {
    complain('This browser keeps nothing for this page: chats are gone when you close the tab. Export what you need.');
  }
  const old = await takeOver(store);
  heads = await store.list().catch(() => []);
  if (old) {
    history.replaceState(null, '', HASH + old);
  }
  show(new Talk(rememberedNew()));
  await go();
  list();
  if (await settings.load()) picture.start();
  follow();
  $('message').focus();
}

start();
