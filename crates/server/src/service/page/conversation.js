// A conversation: messages in a tree, of which one branch is shown. An edited question and a regenerated answer are new
// branches, so that no earlier text is lost, and two tabs that write at once only make two branches.

/** The numbers that a conversation may set for its answers. Texts that end an answer are `stop`. */
export const PARAMETERS = ['temperature', 'max_tokens', 'thinking_token_budget', 'top_p', 'top_k', 'min_p', 'repetition_penalty',
  'presence_penalty', 'frequency_penalty', 'seed'];
/** Most texts that end an answer. */
export const STOPS_MAX = 64;

/** Fields of a conversation beside its messages; each is merged on its own when two tabs change them. */
const FIELDS = ['title', 'model', 'system', 'parameters', 'thinks', 'start', 'changed'];
const TITLE_LENGTH = 60;
/** Milliseconds after which another tab that gave no sign of life counts as gone. */
const WRITER_GONE = 20000;

/** A fresh name of a conversation or a message. Browsers have `randomUUID` for encrypted pages only. */
export function newId() {
  return [...crypto.getRandomValues(new Uint8Array(10))].map((byte) => byte.toString(16).padStart(2, '0')).join('');
}

/** Names this tab as long as it is open; a reload keeps the name. */
export const TAB = (() => {
  try {
    const known = sessionStorage.getItem('trine-tab') ?? newId();
    sessionStorage.setItem('trine-tab', known);
    return known;
  } catch {
    return newId();
  }
})();

function same(one, other) {
  return JSON.stringify(one) === JSON.stringify(other);
}

/** The parameters among what somebody gave, without what is of another type. */
export function readParameters(given) {
  const known = PARAMETERS.filter((name) => Number.isFinite(given?.[name])).map((name) => [name, given[name]]);
  const parameters = Object.fromEntries(known);
  const stops = Array.isArray(given?.stop) ? given.stop.filter((text) => typeof text === 'string' && text !== '') : [];
  if (stops.length > 0) parameters.stop = stops.slice(0, STOPS_MAX);
  return parameters;
}

/** A line without the marks of Markdown. */
function unmarked(line) {
  const begun = line.slice(0, 4 * TITLE_LENGTH).replace(/^(?:[#>]+ |[-+*] )+/, '');
  return begun.replace(/\*\*|~~|`+/g, '').replace(/(^|\s)\*(\S[^*]*)\*/g, '$1$2').trim() || line;
}

/** The first words of a text, for a title. */
export function titleFrom(text) {
  const first = text.split('\n').find((line) => line.trim() !== '')?.trim().replace(/\s+/g, ' ') ?? '';
  return shortened(unmarked(first));
}

/** A title that is not too long. */
export function shortened(line) {
  if (line.length <= TITLE_LENGTH) return line;
  const cut = line.slice(0, TITLE_LENGTH);
  const space = cut.lastIndexOf(' ');
  return `${space > TITLE_LENGTH / 2 ? cut.slice(0, space) : cut}…`;
}

/** A conversation that can be changed. The store writes what was touched since it wrote last. */
export class Talk {
  /** `head` is everything but the messages, `nodes` are these. */
  constructor(head = {}, nodes = []) {
    const now = Date.now();
    this.head = {
      id: newId(), title: '', model: '', system: '', parameters: {}, chosen: {}, start: null, created: now, changed: now,
      ...head,
    };
    this.nodes = new Map(nodes.map((node) => [node.id, node]));
    /** Messages that the store does not have yet. */
    this.dirty = new Set();
    this.isStored = false;
    this.remember();
  }

  get id() {
    return this.head.id;
  }

  /** Whether there is anything to keep. */
  get isEmpty() {
    return this.nodes.size === 0;
  }

  /** Takes the present head for what the store has. */
  remember() {
    this.base = structuredClone(this.head);
  }

  /** Sets a field beside the messages. */
  set(name, value) {
    this.head[name] = value;
    this.head.changed = Date.now();
  }

  /** Notes that a message was changed. */
  touch(node) {
    node.rev = newId();
    this.dirty.add(node.id);
    this.head.changed = Date.now();
  }

  /** Adds a message after another one, null for the first, and shows it. `images` are its pictures: {name, url}. */
  add(role, content, parent, images = []) {
    const node = { id: newId(), parent, role, content, at: Date.now() };
    if (images.length > 0) node.images = images;
    this.nodes.set(node.id, node);
    this.touch(node);
    this.choose(node);
    return node;
  }

  /** Shows the branch of a message. */
  choose(node) {
    this.head.chosen[this.parentOf(node) ?? ''] = node.id;
    this.head.changed = Date.now();
  }

  /** The message before: the nearest one that was not removed. */
  parentOf(node) {
    let parent = this.nodes.get(node.parent);
    while (parent?.isRemoved) parent = this.nodes.get(parent.parent);
    return parent?.id ?? null;
  }

  /** The messages that follow each one, by its id; '' for the first ones. */
  branches() {
    const found = new Map();
    for (const node of this.nodes.values()) {
      if (node.isRemoved) continue;
      const parent = this.parentOf(node) ?? '';
      if (!found.has(parent)) found.set(parent, []);
      found.get(parent).push(node);
    }
    for (const versions of found.values()) versions.sort((one, other) => one.at - other.at || (one.id < other.id ? -1 : 1));
    return found;
  }

  /** The branch that is shown: each message with all its versions. */
  shown() {
    const branches = this.branches();
    const entries = [];
    for (let versions = branches.get(''); versions; versions = branches.get(entries.at(-1).node.id)) {
      const parent = entries.at(-1)?.node.id ?? '';
      const node = versions.find((one) => one.id === this.head.chosen[parent]) ?? versions.at(-1);
      entries.push({ node, versions });
    }
    return entries;
  }

  /** The messages shown, up to and including one. */
  pathTo(node) {
    const path = this.shown().map((entry) => entry.node);
    const end = path.indexOf(node);
    return end < 0 ? path : path.slice(0, end + 1);
  }

  /** The last message shown. */
  last() {
    return this.shown().at(-1)?.node ?? null;
  }

  /**
   * Removes a message; with a question go its answers. What follows stays, after what was before. Gives the messages
   * that `restore` brings back.
   */
  remove(node) {
    const branches = this.branches();
    const parent = this.parentOf(node) ?? '';
    const removed = [node];
    let next = branches.get(node.id) ?? [];
    if (node.role === 'user') {
      const answers = next.filter((one) => one.role === 'assistant');
      removed.push(...answers);
      next = [...next.filter((one) => one.role !== 'assistant'), ...answers.flatMap((one) => branches.get(one.id) ?? [])];
    }
    const before = { ...this.head.chosen };
    const others = branches.get(parent).filter((one) => one !== node);
    const shown = this.shown().map((entry) => entry.node);
    const follower = next.find((one) => shown.includes(one));
    const moved = [];
    const other = node.role === 'assistant' ? others.findLast((one) => one.role === 'assistant') : null;
    if (other && next.length > 0) {
      // Another version of the answer takes its place before what follows.
      for (const one of next) {
        moved.push([one, one.parent]);
        one.parent = other.id;
        this.touch(one);
      }
      this.head.chosen[other.id] ??= follower?.id;
    }
    for (const one of removed) {
      one.isRemoved = true;
      this.touch(one);
    }
    const instead = other ?? follower ?? others.at(-1);
    if (instead) this.head.chosen[parent] = instead.id;
    return { removed, moved, before };
  }

  /** Undoes a removal. */
  restore({ removed, moved, before }) {
    for (const node of removed) {
      delete node.isRemoved;
      this.touch(node);
    }
    for (const [node, parent] of moved) {
      node.parent = parent;
      this.touch(node);
    }
    this.head.chosen = { ...this.head.chosen, ...before };
  }

  /** Forgets the texts and pictures of removed messages for good. Whether there were any. */
  purge() {
    return this.tidy((node) => node.isRemoved && (node.content !== '' || node.thoughts || node.images), (node) => {
      node.content = '';
      delete node.images;
      delete node.thoughts;
      delete node.error;
    });
  }

  /** Ends answers whose tab was closed or reloaded while it wrote them. Whether there were any. */
  mend() {
    return this.tidy((node) => node.writing && !node.isRemoved && !Talk.isWrittenElsewhere(node), (node) => {
      delete node.writing;
      node.figures = { ...node.figures, reason: 'failed' };
      node.error = { message: 'The page was closed before the answer was whole.', code: 'closed', id: null };
    });
  }

  /** Changes messages without making the conversation a newer one. Whether there were any. */
  tidy(isMeant, change) {
    const { changed } = this.head;
    const meant = [...this.nodes.values()].filter(isMeant);
    for (const node of meant) {
      change(node);
      this.touch(node);
    }
    this.head.changed = changed;
    return meant.length > 0;
  }

  /** The name for lists. */
  get title() {
    return this.head.title || 'New chat';
  }

  /** Whether another tab is writing a message just now. */
  static isWrittenElsewhere(node) {
    const writer = node?.writing;
    return Boolean(writer) && writer.tab !== TAB && Date.now() - writer.at < WRITER_GONE;
  }

  /** The head to write over the store's, which another tab may have changed: fields that were set here, else those there. */
  mergedHead(stored) {
    if (!stored) return this.head;
    const merged = { ...stored, id: this.head.id };
    for (const name of FIELDS) {
      if (!same(this.head[name], this.base[name])) merged[name] = this.head[name];
    }
    merged.changed = Math.max(stored.changed, this.head.changed);
    merged.chosen = { ...stored.chosen };
    for (const [parent, child] of Object.entries(this.head.chosen)) {
      if (this.base.chosen[parent] !== child) merged.chosen[parent] = child;
    }
    return merged;
  }

  /** Takes over what the store has, but for what was changed here since. Whether that changed anything. */
  adopt(head, nodes) {
    let isNews = false;
    const merged = this.mergedHead(head);
    if (!same(merged, this.head)) isNews = true;
    this.head = structuredClone(merged);
    this.base = structuredClone(head);
    for (const node of nodes) {
      const own = this.nodes.get(node.id);
      if (this.dirty.has(node.id) || own?.rev === node.rev) continue;
      isNews = true;
      if (!own) {
        this.nodes.set(node.id, node);
        continue;
      }
      // Who shows the message holds the object.
      for (const name of Object.keys(own)) delete own[name];
      Object.assign(own, node);
    }
    return isNews;
  }
}

/**
 * The turns of a path that a model is sent: questions with their answers, and the last question. Chat templates want
 * questions and answers in turn, so what was not answered is left out.
 */
export function sendable(path) {
  const turns = [];
  path.forEach((node, index) => {
    const next = path[index + 1];
    if (node.role === 'user') {
      if (!next || (next.role === 'assistant' && next.content.trim() !== '')) turns.push(node);
    } else if (index > 0 && turns.at(-1) === path[index - 1] && node.content.trim() !== '') {
      turns.push(node);
    }
  });
  return turns;
}
