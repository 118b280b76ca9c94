// What the page tells beside the chat: a banner for what is wrong, a note at the message for what was not taken, a line for what
// was done and can be undone, and words for screen readers.

import { textButton } from './icons.js';

const TOAST_PERIOD = 15000;
const ANNOUNCED_MAX = 2000;

const $ = (id) => document.getElementById(id);

let bannerKind = '';
let toastTimer = null;
/** What becomes final when the line at the bottom goes. */
let toastEnd = null;

/** Shows what is wrong; `kind` names it for `uncomplain`, `action` is a pair of a label and what it does. */
export function complain(message, { kind = '', id = null, action = null } = {}) {
  bannerKind = kind;
  const text = id ? `${message}\n(request ${id})` : message;
  if ($('banner-text').textContent !== text) $('banner-text').textContent = text;
  $('banner-action').replaceChildren(...(action ? [textButton(action[0], action[1])] : []));
  $('banner').hidden = false;
}

/** Takes the banner away, if it is of this kind. */
export function uncomplain(kind) {
  if (kind !== undefined && kind !== bannerKind) return;
  const hadFocus = $('banner').contains(document.activeElement);
  $('banner').hidden = true;
  $('banner-text').textContent = '';
  if (hadFocus) $('message').focus();
}

/** Tells at the message what was not taken; `action` is a button that helps. */
export function note(message, action = null) {
  $('note-text').textContent = message;
  $('note-action').replaceChildren(...(action ? [action] : []));
  $('note').hidden = false;
}

export function closeNote() {
  const hadFocus = $('note').contains(document.activeElement);
  $('note').hidden = true;
  $('note-text').textContent = '';
  $('note-action').replaceChildren();
  if (hadFocus) $('message').focus();
}

/**
 * Says what was done. `undo` takes it back, or does what `label` says; `end` is called when that is no longer offered.
 */
export function toast(message, undo = null, end = null, label = 'Undo') {
  closeToast();
  toastEnd = end;
  $('toast-text').textContent = message;
  $('toast-action').replaceChildren();
  if (undo) {
    $('toast-action').append(textButton(label, () => {
      toastEnd = null;
      closeToast();
      undo();
      $('message').focus();
    }));
  }
  $('toast').hidden = false;
  toastTimer = setTimeout(() => lapse(), TOAST_PERIOD);
}

/** Closes the line, unless somebody is about to use it. */
function lapse() {
  if ($('toast').matches(':hover, :focus-within')) toastTimer = setTimeout(() => lapse(), TOAST_PERIOD);
  else closeToast();
}

export function closeToast() {
  clearTimeout(toastTimer);
  $('toast').hidden = true;
  $('toast-text').textContent = '';
  const end = toastEnd;
  toastEnd = null;
  end?.();
}

/** Says something to screen readers; at once if it is `urgent`. */
export function announce(text, urgent = false) {
  $(urgent ? 'alerter' : 'announcer').textContent = text.slice(0, ANNOUNCED_MAX);
}

export function wireNotices() {
  $('banner-close').addEventListener('click', () => {
    uncomplain();
    $('message').focus();
  });
  $('note-close').addEventListener('click', closeNote);
  $('toast-close').addEventListener('click', () => {
    closeToast();
    $('message').focus();
  });
}
