// The file format of conversations, which the command line's /save and /load have too, and the older ones that are read.

import { Talk, readParameters, shortened, titleFrom } from './conversation.js';
import { splitFiles } from './attach.js';

const VERSION = 2;
/** Largest file read, in bytes. */
export const IMPORT_BYTES_MAX = 64 << 20;
const MESSAGES_MAX = 1 << 14;
const VERSIONS_MAX = 1000;

/**
 * A conversation as an object of the format. Other versions of a message go with it as `earlier`, questions before it that
 * were not answered as `unanswered`: in the format questions and answers alternate. Of pictures it has the names only.
 */
export function written(talk) {
  const messages = [];
  let unanswered = [];
  const entries = talk.shown().filter(({ node }) => node.content !== '' || node.images);
  entries.forEach(({ node, versions }, index) => {
    if (node.role === 'user' && entries[index + 1]?.node.role === 'user') {
      unanswered.push(node.content);
      return;
    }
    const message = { role: node.role, content: node.content, thoughts: node.thoughts };
    if (node.images) message.pictures = node.images.map(({ name }) => ({ name }));
    const earlier = versions.filter((one) => one !== node && one.role === node.role && one.content !== '');
    if (earlier.length > 0) message.earlier = earlier.map((one) => one.content);
    if (unanswered.length > 0) message.unanswered = unanswered;
    unanswered = [];
    messages.push(message);
  });
  const { title, model, system, parameters } = talk.head;
  return {
    trine_conversation: VERSION,
    title: title || undefined,
    model,
    system: system.trim() === '' ? null : system,
    parameters: Object.keys(parameters).length > 0 ? parameters : undefined,
    messages,
  };
}

/** The conversations of a file: one object of any version, or a list of them. Throws what is wrong. */
export function read(text) {
  let given;
  try {
    given = JSON.parse(text);
  } catch {
    throw new Error('it is not JSON');
  }
  const list = Array.isArray(given) ? given : [given];
  if (list.length === 0) throw new Error('it holds no chat');
  return list.map(readOne);
}

function readOne(given) {
  if (given?.format === 1) return made(given, given.turns);
  const version = given?.trine_conversation;
  if (!Number.isInteger(version)) throw new Error('it is not a chat that trine exported');
  if (version > VERSION) throw new Error(`it has format version ${version}, this page reads up to ${VERSION}; use a newer trine`);
  return made(given, given.messages);
}

/** A conversation of known fields of known types. */
function made(given, messages) {
  if (!Array.isArray(messages) || messages.length > MESSAGES_MAX) throw new Error('it has no list of messages');
  const talk = new Talk();
  for (const name of ['title', 'model', 'system']) {
    if (typeof given[name] === 'string') talk.head[name] = given[name];
  }
  talk.head.title = shortened(talk.head.title.trim().replace(/\s+/g, ' '));
  talk.head.parameters = readParameters(given.parameters);
  let parent = null;
  messages.forEach((message, index) => {
    if (message?.role === 'system' && index === 0 && typeof message.content === 'string') {
      talk.head.system ||= message.content;
      return;
    }
    if (!['user', 'assistant'].includes(message?.role) || typeof message.content !== 'string') {
      throw new Error(`message ${index + 1} is neither the user's nor the assistant's text`);
    }
    if (message.role === 'assistant' && talk.nodes.get(parent)?.role !== 'user') {
      throw new Error(`message ${index + 1} is an answer without a question before it`);
    }
    for (const text of texts(message.unanswered)) parent = talk.add('user', text, parent).id;
    for (const text of texts(message.earlier)) talk.add(message.role, text, parent).at = index;
    const node = talk.add(message.role, message.content, parent);
    node.at = index + 0.5;
    if (message.role === 'assistant' && typeof message.thoughts === 'string') node.thoughts = message.thoughts;
    readFigures(node, message.figures);
    parent = node.id;
  });
  const first = messages.find((message) => message.role === 'user');
  if (first) talk.head.title ||= titleFrom(splitFiles(first.content).title);
  return talk;
}

/** The texts of a list, if it is one. */
function texts(list) {
  return Array.isArray(list) ? list.slice(0, VERSIONS_MAX).filter((text) => typeof text === 'string') : [];
}

/** What the page's first format said about an answer. */
function readFigures(node, given) {
  if (typeof given !== 'object' || given === null) return;
  node.figures = {};
  for (const name of ['prompt', 'tokens', 'first', 'speed', 'unseen']) {
    if (Number.isFinite(given[name])) node.figures[name] = given[name];
  }
  if (typeof given.reason === 'string') node.figures.reason = given.reason;
}
