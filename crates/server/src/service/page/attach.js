// Text files that go with a message. They become part of its text, each with its name and between fences, so that a model,
// an export and the command line see the same.

/** Most files of a message, and most bytes of one. */
export const FILES_MAX = 10;
export const FILE_BYTES_MAX = 1 << 20;
const NAME_LENGTH = 120;

/** A message's text with its files before it. */
export function joinFiles(files, text) {
  const parts = files.map(({ name, text: inside }) => {
    const longest = Math.max(0, ...[...inside.matchAll(/`+/g)].map((run) => run[0].length));
    const fence = '`'.repeat(Math.max(3, longest + 1));
    return `File: ${name}\n${fence}\n${inside}\n${fence}\n`;
  });
  return [...parts, text].join('\n').trim();
}

/** The files at the beginning of a message's text, and what is left; `title` is what it can be called by. */
export function splitFiles(content) {
  const files = [];
  let rest = content;
  for (;;) {
    const begin = /^File: ([^\n]{1,200})\n(`{3,})\n/.exec(rest);
    if (!begin || files.length === FILES_MAX) break;
    const end = rest.indexOf(`\n${begin[2]}`, begin[0].length - 1);
    const after = end + 1 + begin[2].length;
    if (end < 0 || (after < rest.length && rest[after] !== '\n')) break;
    files.push({ name: begin[1], text: rest.slice(begin[0].length, end) });
    rest = rest.slice(after).replace(/^\n{1,2}/, '');
  }
  return { files, text: rest, title: rest.trim() === '' && files.length > 0 ? files[0].name : rest };
}

/** A count of bytes for people. */
export function sizeText(bytes) {
  if (bytes < 1000) return `${bytes} bytes`;
  if (bytes < 1e6) return `${(bytes / 1000).toFixed(1)} kB`;
  if (bytes < 1e9) return `${(bytes / 1e6).toFixed(1)} MB`;
  return `${(bytes / 1e9).toFixed(1)} GB`;
}

/** Bytes of a token, about, in most texts. */
export const TOKEN_BYTES = 4;

/** Tokens that a text has, about. */
export function aboutTokens(text) {
  return Math.ceil(bytesOf(text) / TOKEN_BYTES);
}

/** Bytes of a text in UTF-8. */
export function bytesOf(text) {
  return new TextEncoder().encode(text).length;
}

/** What is wrong with a file that is no text; of a PDF, what helps. */
function said(bytes, what) {
  const isPdf = new TextDecoder('latin1').decode(bytes.slice(0, 5)) === '%PDF-';
  return isPdf ? 'PDF files cannot be read here; copy the text out of it, or save it as a text file' : what;
}

/** Reads a file that a person chose. Throws what is wrong with it. */
export async function readFile(file) {
  const name = file.name.replace(/[\u0000-\u001f\u007f]/g, ' ').slice(0, NAME_LENGTH).trim() || 'file';
  const fail = (what) => new Error(`“${name}” was not attached: ${what}.`);
  if (file.size > FILE_BYTES_MAX) {
    throw fail(`it has ${sizeText(file.size)}, at most ${sizeText(FILE_BYTES_MAX)} are taken; attach a part of it`);
  }
  let bytes;
  try {
    bytes = await file.arrayBuffer();
  } catch {
    throw fail('it cannot be read; a folder has to be attached file by file');
  }
  let text;
  try {
    text = new TextDecoder('utf-8', { fatal: true }).decode(bytes);
  } catch {
    throw fail(said(bytes, 'it is neither text in UTF-8 nor an image'));
  }
  if (text.includes('\0')) throw fail(said(bytes, 'it is neither text nor an image'));
  if (text.trim() === '') throw fail('it is empty');
  return { name, text: text.replace(/\r\n/g, '\n').replace(/\n+$/, ''), bytes: file.size };
}
