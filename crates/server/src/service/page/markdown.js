// Markdown to DOM nodes. The text is a stranger's: it becomes text nodes and elements of a fixed set, never markup, and
// nothing in it is loaded. Each step looks at a bounded stretch or goes forward, so that no text takes long.

const DEPTH = 8;
const LINK_TEXT = 500;
const LINK_ADDRESS = 2000;
const SCHEMES = ['http:', 'https:', 'mailto:'];

/** An element with a class and children. */
export function element(name, className, ...children) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

/** Nodes for a text. */
export function render(text) {
  return blocks(text.split(/\r?\n/), 0);
}

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^\s`]*)/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*)$/;
const RULE = /^ {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])(?:\s+|$)/;
const TABLE = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;

function begins(line, next) {
  return FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) || ITEM.test(line)
    || isTable(line, next);
}

function isTable(line, next) {
  return line.includes('|') && next !== undefined && next.includes('-') && next.length < 1000 && TABLE.test(next);
}

function blocks(lines, depth) {
  const nodes = [];
  let at = 0;
  while (at < lines.length) {
    const line = lines[at];
    if (line.trim() === '') {
      at += 1;
      continue;
    }
    const reader = depth >= DEPTH ? paragraph : readerOf(line, lines[at + 1]);
    const [node, next] = reader(lines, at, depth);
    nodes.push(node);
    at = next;
  }
  return nodes;
}

function readerOf(line, next) {
  if (FENCE.test(line)) return fence;
  if (HEADING.test(line)) return heading;
  if (RULE.test(line)) return rule;
  if (QUOTE.test(line)) return quote;
  if (ITEM.test(line)) return list;
  if (isTable(line, next)) return table;
  return paragraph;
}

function fence(lines, at) {
  const [, mark, language] = FENCE.exec(lines[at]);
  let end = at + 1;
  const isEnd = (line) => {
    const trimmed = line.trim();
    return trimmed.length >= mark.length && trimmed === mark[0].repeat(trimmed.length);
  };
  while (end < lines.length && !isEnd(lines[end])) end += 1;
  return [codeBlock(lines.slice(at + 1, end).join('\n'), language), end + 1];
}

function codeBlock(text, language) {
  const button = element('button', 'small', 'Copy');
  button.type = 'button';
  button.setAttribute('aria-label', language ? `Copy the ${language} code` : 'Copy the code');
  button.addEventListener('click', () => copyText(text, button));
  const pre = element('pre', '', element('code', '', text));
  // Without a place in the tab order what is wider than the window could not be scrolled by keys.
  pre.tabIndex = 0;
  pre.setAttribute('role', 'region');
  pre.setAttribute('aria-label', 'Code');
  return element('div', 'code', element('div', 'row', element('span', 'quiet', language || 'code'), button), pre);
}

/** Puts a text into the clipboard, and says on the button that it did. */
export async function copyText(text, button) {
  let isDone = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Browsers have no clipboard for pages that came unencrypted from another machine.
    const area = element('textarea', 'unseen');
    area.value = text;
    document.body.append(area);
    area.select();
    isDone = document.execCommand('copy');
    area.remove();
    button.focus();
  }
  const note = element('span', 'copied', isDone ? 'Copied' : 'Not copied');
  note.setAttribute('role', 'status');
  button.querySelector('.copied')?.remove();
  button.append(note);
  setTimeout(() => note.remove(), 2000);
}

function heading(lines, at) {
  const [, marks, text] = HEADING.exec(lines[at]);
  // The page's own headings are above: an answer's begin at the third level.
  const level = Math.min(marks.length + 2, 6);
  return [element(`h${level}`, '', ...inline(text.trimEnd().replace(/\s#+$/, ''), 0)), at + 1];
}

function rule(_lines, at) {
  return [document.createElement('hr'), at + 1];
}

function quote(lines, at, depth) {
  let end = at;
  while (end < lines.length && QUOTE.test(lines[end])) end += 1;
  const inner = lines.slice(at, end).map((line) => line.replace(QUOTE, ''));
  return [element('blockquote', '', ...blocks(inner, depth + 1)), end];
}

function list(lines, at, depth) {
  const [, , first] = ITEM.exec(lines[at]);
  const isOrdered = /\d/.test(first);
  const made = document.createElement(isOrdered ? 'ol' : 'ul');
  if (isOrdered) made.start = parseInt(first, 10);
  const kind = first.at(-1);
  let next = at;
  while (next < lines.length) {
    const match = ITEM.exec(lines[next]);
    if (!match || match[2].at(-1) !== kind || RULE.test(lines[next])) break;
    const inner = [lines[next].slice(match[0].length)];
    next += 1;
    while (next < lines.length) {
      const line = lines[next];
      const isInside = /^(\t| {2,})/.test(line);
      const isBlank = line.trim() === '';
      if (isBlank && !/^(\t| {2,})\S/.test(lines[next + 1] ?? '')) break;
      if (!isBlank && !isInside && begins(line, lines[next + 1])) break;
      inner.push(line.replace(/^(\t| {1,4})/, ''));
      next += 1;
    }
    const children = inner.length === 1 ? inline(inner[0], 0) : blocks(inner, depth + 1);
    made.append(element('li', '', ...children));
    while (next < lines.length && lines[next].trim() === '' && ITEM.test(lines[next + 1] ?? '')) next += 1;
  }
  return [made, next];
}

function cells(line) {
  return line.trim().replace(/^\|/, '').replace(/\|$/, '').split('|').map((cell) => cell.trim());
}

function table(lines, at) {
  const row = (line, name) => {
    const made = document.createElement('tr');
    for (const cell of cells(line)) made.append(element(name, '', ...inline(cell, 0)));
    return made;
  };
  const body = document.createElement('tbody');
  let next = at + 2;
  while (next < lines.length && lines[next].includes('|')) {
    body.append(row(lines[next], 'td'));
    next += 1;
  }
  const made = element('table', '', element('thead', '', row(lines[at], 'th')), body);
  return [element('div', 'table', made), next];
}

function paragraph(lines, at, depth) {
  let end = at + 1;
  while (end < lines.length && lines[end].trim() !== '' && (depth >= DEPTH || !begins(lines[end], lines[end + 1]))) end += 1;
  const made = document.createElement('p');
  for (let index = at; index < end; index += 1) {
    if (index > at) made.append(/( {2}|\\)$/.test(lines[index - 1]) ? document.createElement('br') : '\n');
    made.append(...inline(lines[index].replace(/( {2,}|\\)$/, ''), 0));
  }
  return [made, end];
}

const MARKS = [['**', 'strong'], ['__', 'strong'], ['~~', 'del'], ['*', 'em'], ['_', 'em']];

/** Nodes for a line's text. */
function inline(text, depth) {
  const nodes = [];
  // A mark whose other half was not found after one place is not after a later one.
  const alone = new Set();
  let plain = '';
  let at = 0;
  const take = (found) => {
    if (plain) nodes.push(plain);
    plain = '';
    nodes.push(found.node);
    at = found.end;
  };
  while (at < text.length) {
    const sign = text[at];
    if (sign === '\\' && /[\\`*_{}[\]()#+\-.!~|<>]/.test(text[at + 1] ?? '')) {
      plain += text[at + 1];
      at += 2;
      continue;
    }
    const found = depth < DEPTH && '`*_~['.includes(sign) ? special(text, at, depth, alone) : null;
    if (found) {
      take(found);
    } else {
      // The whole run of a sign that marks nothing is plain: a part of it would be looked at as another mark.
      const start = at;
      while (at < text.length && text[at] === sign) at += 1;
      plain += text.slice(start, at);
    }
  }
  if (plain) nodes.push(plain);
  return nodes;
}

function special(text, at, depth, alone) {
  if (text[at] === '`') return codeSpan(text, at, alone);
  if (text[at] === '[') return link(text, at, depth);
  for (const [mark, name] of MARKS) {
    if (text.startsWith(mark, at)) {
      const found = emphasis(text, at, mark, name, depth, alone);
      if (found) return found;
    }
  }
  return null;
}

function codeSpan(text, at, alone) {
  let end = at;
  while (text[end] === '`') end += 1;
  const mark = text.slice(at, end);
  if (alone.has(mark)) return null;
  let close = text.indexOf(mark, end);
  while (close >= 0 && text[close + mark.length] === '`') {
    while (text[close] === '`') close += 1;
    close = text.indexOf(mark, close);
  }
  if (close < 0) {
    alone.add(mark);
    return null;
  }
  const inner = text.slice(end, close);
  return { node: element('code', '', /^ .*\S.* $/.test(inner) ? inner.slice(1, -1) : inner), end: close + mark.length };
}

function emphasis(text, at, mark, name, depth, alone) {
  const start = at + mark.length;
  const isInWord = mark[0] === '_' && /\w/.test(text[at - 1] ?? '');
  if (alone.has(mark) || isInWord || !/\S/.test(text[start] ?? '')) return null;
  const ends = (close) => /\S/.test(text[close - 1]) && text[close - 1] !== '\\'
    && (mark.length === 2 || (text[close + 1] !== mark && text[close - 1] !== mark))
    && (mark[0] !== '_' || !/\w/.test(text[close + mark.length] ?? ''));
  let close = text.indexOf(mark, start + 1);
  while (close >= 0 && !ends(close)) close = text.indexOf(mark, close + 1);
  if (close < 0) {
    alone.add(mark);
    return null;
  }
  return { node: element(name, '', ...inline(text.slice(start, close), depth + 1)), end: close + mark.length };
}

function link(text, at, depth) {
  const middle = text.slice(at, at + LINK_TEXT).indexOf('](');
  if (middle < 0) return null;
  const start = at + middle + 2;
  const length = text.slice(start, start + LINK_ADDRESS).indexOf(')');
  if (length < 0) return null;
  let address;
  try {
    address = new URL(text.slice(start, start + length).split(/\s/)[0]);
  } catch {
    return null;
  }
  if (!SCHEMES.includes(address.protocol)) return null;
  const label = text.slice(at + 1, at + middle) || address.href;
  const node = element('a', '', ...inline(label, depth + 1));
  node.href = address.href;
  node.rel = 'noopener noreferrer nofollow';
  node.target = '_blank';
  node.title = address.href;
  return { node, end: start + length + 1 };
}
