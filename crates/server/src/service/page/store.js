// Where conversations are kept: the browser's IndexedDB, one record for each message, so that an answer being written costs a
// small write and two tabs never overwrite each other's messages. A browser that has none keeps them until the tab closes.

import { Talk } from './conversation.js';

const DATABASE = 'trine';
const VERSION = 1;
const CHANNEL = 'trine-conversations';
/** Milliseconds until a browser that does not open its storage counts as one without. */
const OPEN_WAIT = 20000;

/** Letters that are shown before and after what was searched for. */
const FOUND_BEFORE = 16;
const FOUND_AFTER = 60;

function settled(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

/** Keys of all messages of a conversation: the pairs that begin with its name. */
function nodesOf(id) {
  return IDBKeyRange.bound([id], [id, []]);
}

/** Conversations in IndexedDB. */
class Shelf {
  constructor(database) {
    this.database = database;
  }

  static async open() {
    const request = indexedDB.open(DATABASE, VERSION);
    request.onupgradeneeded = () => {
      request.result.createObjectStore('heads', { keyPath: 'id' });
      request.result.createObjectStore('nodes');
    };
    const late = new Promise((_resolve, reject) => {
      setTimeout(() => reject(new Error('the browser does not open its storage')), OPEN_WAIT);
    });
    const shelf = new Shelf(await Promise.race([settled(request), late]));
    // A page of a later version may want to change the form.
    shelf.database.onversionchange = () => shelf.database.close();
    return shelf;
  }

  /** Runs `work` in a transaction and waits until it is complete. */
  async transact(mode, work) {
    let transaction;
    try {
      transaction = this.database.transaction(['heads', 'nodes'], mode);
    } catch (error) {
      if (error.name !== 'InvalidStateError') throw error;
      // The browser closes connections when it is told to forget a site.
      this.database = (await Shelf.open()).database;
      transaction = this.database.transaction(['heads', 'nodes'], mode);
    }
    const done = new Promise((resolve, reject) => {
      transaction.oncomplete = () => resolve();
      transaction.onabort = () => reject(transaction.error ?? new Error('the browser gave up writing'));
    });
    const result = work(transaction.objectStore('heads'), transaction.objectStore('nodes'));
    const [found] = await Promise.all([result, done]);
    return found;
  }

  heads() {
    return this.transact('readonly', (heads) => settled(heads.getAll()));
  }

  read(id) {
    return this.transact('readonly', async (heads, nodes) => {
      const [head, list] = await Promise.all([settled(heads.get(id)), settled(nodes.getAll(nodesOf(id)))]);
      return head ? { head, nodes: list } : null;
    });
  }

  /** Writes what `merge` makes of the stored head: a head and messages. */
  write(id, merge) {
    return this.transact('readwrite', (heads, nodes) => new Promise((resolve, reject) => {
      const request = heads.get(id);
      request.onerror = () => reject(request.error);
      request.onsuccess = () => {
        try {
          const made = merge(request.result ?? null);
          heads.put(made.head);
          for (const node of made.nodes) nodes.put(node, [id, node.id]);
          resolve();
        } catch (error) {
          reject(error);
        }
      };
    }));
  }

  /** Goes through all messages, one in memory at a time, until `look` gives false. */
  each(look) {
    return this.transact('readonly', (_heads, nodes) => new Promise((resolve, reject) => {
      const request = nodes.openCursor();
      request.onerror = () => reject(request.error);
      request.onsuccess = () => {
        const cursor = request.result;
        if (cursor && look(cursor.key[0], cursor.value)) cursor.continue();
        else resolve();
      };
    }));
  }

  remove(id) {
    return this.transact('readwrite', (heads, nodes) => {
      heads.delete(id);
      nodes.delete(nodesOf(id));
    });
  }
}

/** Conversations in memory. */
class Memory {
  constructor() {
    this.kept = new Map();
  }

  async heads() {
    return [...this.kept.values()].map(({ head }) => structuredClone(head));
  }

  async read(id) {
    const found = this.kept.get(id);
    return found ? structuredClone({ head: found.head, nodes: [...found.nodes.values()] }) : null;
  }

  async write(id, merge) {
    const before = this.kept.get(id);
    const made = merge(before ? structuredClone(before.head) : null);
    const nodes = before?.nodes ?? new Map();
    for (const node of made.nodes) nodes.set(node.id, structuredClone(node));
    this.kept.set(id, { head: structuredClone(made.head), nodes });
  }

  async each(look) {
    for (const [id, { nodes }] of this.kept) {
      for (const node of nodes.values()) if (!look(id, node)) return;
    }
  }

  async remove(id) {
    this.kept.delete(id);
  }
}

/** Keeps conversations, and tells and hears of changes in other tabs. */
export class Store {
  /** `heard` is called with the name of a conversation that another tab changed. */
  constructor(heard) {
    this.heard = heard;
    this.shelf = null;
    this.isLasting = true;
    /** The write in progress of each conversation. */
    this.writes = new Map();
    this.channel = null;
  }

  async open() {
    try {
      this.shelf = await Shelf.open();
    } catch {
      this.shelf = new Memory();
      this.isLasting = false;
    }
    try {
      this.channel = new BroadcastChannel(CHANNEL);
      this.channel.onmessage = ({ data }) => this.heard(String(data));
    } catch { /* each tab is alone then, and merges when it writes */ }
  }

  tell(id) {
    this.channel?.postMessage(id);
  }

  /** The heads of all conversations, the one changed last first. */
  async list() {
    const heads = await this.shelf.heads();
    return heads.sort((one, other) => other.changed - one.changed);
  }

  /** A conversation; null if there is none of this name. */
  async load(id) {
    const found = await this.shelf.read(id);
    if (!found) return null;
    const talk = new Talk(found.head, found.nodes);
    talk.isStored = true;
    return talk;
  }

  /** Brings an open conversation up to date. Gives 'gone', 'news' or 'same'. */
  async renew(talk) {
    const found = await this.shelf.read(talk.id);
    if (!found) return talk.isStored ? 'gone' : 'same';
    return talk.adopt(found.head, found.nodes) ? 'news' : 'same';
  }

  /** Writes what was changed. Calls during a write are one further write. Rejects if the browser has no room. */
  save(talk) {
    const write = this.writes.get(talk.id);
    if (write) {
      write.again ??= write.done.catch(() => {}).then(() => this.save(talk));
      return write.again;
    }
    const entry = { again: null, done: null };
    this.writes.set(talk.id, entry);
    entry.done = this.write(talk).finally(() => this.writes.delete(talk.id));
    return entry.done;
  }

  async write(talk) {
    let written = [];
    const headBefore = talk.base;
    try {
      await this.shelf.write(talk.id, (stored) => {
        // Another tab removed it, or it is new: all of it is written.
        written = stored ? [...talk.dirty] : [...talk.nodes.keys()];
        talk.head = structuredClone(talk.mergedHead(stored));
        talk.remember();
        talk.dirty.clear();
        return { head: talk.head, nodes: written.map((id) => talk.nodes.get(id)) };
      });
    } catch (error) {
      for (const id of written) talk.dirty.add(id);
      talk.base = headBefore;
      throw error;
    }
    talk.isStored = true;
    this.tell(talk.id);
  }

  /**
   * Finds the conversations of which a message has some words: a piece of text around them, by the conversation's name. Ends
   * early when `isWanted` gives false.
   */
  async search(words, isWanted) {
    const found = new Map();
    const wanted = words.toLowerCase();
    await this.shelf.each((id, { content, isRemoved }) => {
      const at = isRemoved || found.has(id) ? -1 : content.toLowerCase().indexOf(wanted);
      if (at >= 0) {
        const start = Math.max(0, at - FOUND_BEFORE);
        const piece = content.slice(start, at + wanted.length + FOUND_AFTER).replace(/\s+/g, ' ');
        found.set(id, `${start > 0 ? '…' : ''}${piece}`);
      }
      return isWanted();
    });
    return found;
  }

  /** Removes a conversation from the browser. */
  async remove(id) {
    await this.shelf.remove(id);
    this.tell(id);
  }

  /** Writes a conversation that was removed again. */
  putBack(talk) {
    for (const id of talk.nodes.keys()) talk.dirty.add(id);
    return this.save(talk);
  }
}
