// Conversations to files and back, and out of what the page before this one kept.

import { IMPORT_BYTES_MAX, read, written } from './file.js';
import { complain } from './notice.js';

/** Where the page kept its one conversation before there were several. */
const OLD = 'trine-conversation';
/** The same in every tab, so that two which open at once take it over once. */
const OLD_ID = 'taken-over';

function download(value, name) {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(new Blob([`${JSON.stringify(value, null, 2)}\n`], { type: 'application/json' }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

/** A file name out of a title. */
function fileName(title) {
  const plain = title.replace(/[^\p{L}\p{N} ._-]/gu, '').trim().replace(/\s+/g, '-').slice(0, 60).replace(/^\.+/, '');
  return `${plain || 'chat'}.json`;
}

export function exportTalk(talk) {
  download(written(talk), fileName(talk.title));
}

/** Exports all conversations as a list. */
export async function exportAll(store, heads) {
  try {
    const talks = await Promise.all(heads.map((head) => store.load(head.id)));
    download(talks.filter(Boolean).map(written), 'chats.json');
  } catch (error) {
    complain(`The chats cannot be read: ${error.message}.`);
  }
}

/** Reads conversations of files. What is wrong with a file is told, and the others are read. */
export async function importFiles(files) {
  const talks = [];
  const wrong = [];
  for (const file of files) {
    try {
      if (file.size > IMPORT_BYTES_MAX) throw new Error(`it is larger than ${IMPORT_BYTES_MAX >> 20} MiB`);
      talks.push(...read(await file.text()));
    } catch (error) {
      wrong.push(`“${file.name}” cannot be imported: ${error.message}.`);
    }
  }
  if (wrong.length > 0) complain(wrong.join('\n'));
  return talks;
}

/** Takes over the conversation of the page's first version. Gives its name, or null if there is none. */
export async function takeOver(store) {
  let text = null;
  try {
    text = localStorage.getItem(OLD);
  } catch { /* no storage, nothing in it */ }
  if (text === null) return null;
  try {
    const [talk] = read(text);
    talk.head.id = OLD_ID;
    if (!talk.isEmpty) await store.save(talk);
    if (store.isLasting) localStorage.removeItem(OLD);
    return talk.isEmpty ? null : OLD_ID;
  } catch (error) {
    complain(`What this browser kept of an earlier chat cannot be taken over: ${error.message}.`);
    return null;
  }
}
