// What a model is sent of a conversation that its context has no room for: the oldest turns are left out, never the system
// prompt or the last question.

import { countTokens } from './api.js';
import { bytesOf } from './attach.js';
import { IMAGE_TOKENS } from './image.js';

/** Bytes of a token, at the least, in most texts: what fits by this count is not counted exactly. */
const TOKEN_BYTES = 2;
/** Tokens that a template writes around a message, about. */
const TURN_TOKENS = 8;
/** Room for an answer where nobody said how long it may be: a share of the context, and the most tokens. */
const ANSWER_SHARE = 0.25;
const ANSWER_TOKENS = 1024;
/** What is kept when turns have to go: less than fits, so that the following turns find the prompt's beginning in the cache. */
const KEPT_SHARE = 0.5;

/** What a message without text says to a model that takes no pictures. */
const UNSEEN = '(image)';

/** What a message says: its text, after its pictures if it has some and the model may take them. */
function contentOf({ content, images }, sees) {
  if (!images?.length) return content;
  if (sees === false) return content === '' ? UNSEEN : content;
  const parts = images.map(({ url }) => ({ type: 'image_url', image_url: { url } }));
  return content === '' ? parts : [...parts, { type: 'text', text: content }];
}

/** The messages of a request. `sees` tells whether the model takes pictures, undefined if that is not known. */
export function messagesOf(system, turns, sees) {
  const messages = turns.map((turn) => ({ role: turn.role, content: contentOf(turn, sees) }));
  if (system.trim() !== '') messages.unshift({ role: 'system', content: system });
  return messages;
}

/** Tokens that messages have at most, by their bytes. */
function mostTokens(messages) {
  const ofText = (text) => bytesOf(text) / TOKEN_BYTES;
  const ofPart = ({ text }) => (text === undefined ? IMAGE_TOKENS : ofText(text));
  const of = (content) => (typeof content === 'string' ? ofText(content) : content.reduce((sum, part) => sum + ofPart(part), 0));
  return messages.reduce((sum, { content }) => sum + of(content) + TURN_TOKENS, 0);
}

/**
 * Where the turns that are sent begin: an index of `turns`. `start` is where they began before, `isTight` says that the
 * server found them too long. Asks the server to count only if it may be close.
 */
export async function fit({ turns, system, model, sees, context, maxTokens, start, isTight, signal }) {
  if (!context) return start;
  const room = Math.min(maxTokens ?? ANSWER_TOKENS, Math.floor(context * ANSWER_SHARE));
  const from = (index) => messagesOf(system, turns.slice(index), sees);
  if (!isTight && mostTokens(from(start)) + room <= context) return start;
  const count = async (index) => await countTokens(from(index), model, signal) ?? Infinity;
  if (!isTight && await count(start) + room <= context) return start;
  const wanted = Math.min(context - room, Math.floor(context * KEPT_SHARE));
  // Questions begin what is sent; the last one is sent in any case.
  const starts = turns.map((_turn, index) => index).filter((index) => index > start && turns[index].role === 'user');
  if (starts.length === 0) return start;
  let low = 0;
  let high = starts.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (await count(starts[middle]) <= wanted) high = middle;
    else low = middle + 1;
  }
  return starts[low];
}
