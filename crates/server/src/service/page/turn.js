// The element of a message: its text, its files, what can be done with it, and how to change it.

import { bytesOf, joinFiles, sizeText, splitFiles } from './attach.js';
import { iconButton, textButton } from './icons.js';
import { imageElement } from './image.js';
import { copyText, element, render } from './markdown.js';
import { short } from './picture.js';
import { remember, remembered } from './remembered.js';

/** A question longer than this is folded. */
const LONG_TEXT = 1500;
const LONG_LINES = 24;
/** The longer side of a picture, in pixels. */
const SIDE = 320;
const SIDE_EDITED = 64;
const FIGURES = 'trine-figures';

/** How long an answer is and how fast it came: shown to who wants to know. */
function figuresText(node) {
  const { tokens, thoughts, speed, first } = node.figures ?? {};
  const parts = [];
  if (tokens !== undefined) parts.push(`${short(tokens)} tokens${thoughts ? `, ${short(thoughts)} of thinking` : ''}`);
  if (speed !== undefined) parts.push(`${short(speed)} tokens/s`);
  if (first !== undefined) parts.push(`first after ${first.toFixed(2)} s`);
  return parts.join(' · ');
}

/** What everybody has to know of an answer. */
function remarksText(node, context) {
  const { tokens, prompt, reason, unseen } = node.figures ?? {};
  const parts = [];
  if (unseen) parts.push(`${unseen === 1 ? 'an image' : `${unseen} images`} left out: the model takes text only`);
  if (reason === 'length') {
    parts.push(context && prompt + tokens >= context ? 'ended: no room for more in this chat' : 'ended at the maximum length');
  }
  if (reason === 'stopped') parts.push('stopped');
  if (reason === 'failed') parts.push('broken off');
  return parts.join(' · ');
}

/** Errors that say nothing of the message: it can simply be asked again. */
const MILD = ['stopped', 'unreachable', 'broken', 'closed'];
/** Why there is no answer where the banner at the top says more. */
const AWAY = 'Not answered: the server could not be reached.';

/** Shows or hides the figures of all answers. */
function showFigures(isShown) {
  document.body.classList.toggle('with-figures', isShown);
  remember(FIGURES, isShown ? 'shown' : 'hidden');
  for (const button of document.querySelectorAll('.act-info')) button.setAttribute('aria-pressed', String(isShown));
}

/** Whether a model can go on with an answer. */
function canResume(node) {
  return ['length', 'stopped', 'failed'].includes(node.figures?.reason) && node.content.trim() !== '';
}

/** Replaces the children of a place, but keeps those that are the same already: a selection in them stays. */
function patch(place, nodes) {
  let index = 0;
  while (index < nodes.length && index < place.childNodes.length) {
    const node = typeof nodes[index] === 'string' ? document.createTextNode(nodes[index]) : nodes[index];
    if (!place.childNodes[index].isEqualNode(node)) break;
    index += 1;
  }
  while (place.childNodes.length > index) place.lastChild.remove();
  place.append(...nodes.slice(index));
}

/** A file as a line that opens. */
function fileElement({ name, text }) {
  const size = element('span', 'quiet', sizeText(bytesOf(text)));
  const label = element('summary', '', element('span', 'file-name', name), ' ', size);
  const inside = element('pre', '', text);
  inside.tabIndex = 0;
  inside.setAttribute('role', 'region');
  inside.setAttribute('aria-label', `Content of ${name}`);
  return element('details', 'file', label, inside);
}

/** A message on the page. `actions` are what its buttons do, each called with the message. */
export class Turn {
  constructor(node, actions) {
    this.node = node;
    this.actions = actions;
    this.isAnswer = node.role === 'assistant';
    this.isEditing = false;
    this.isUnfolded = false;
    this.drawn = '';
    /** The revision of the message whose text is drawn. */
    this.written = '';
    this.said = element('div', 'said');
    this.thoughts = element('pre');
    this.thoughts.tabIndex = 0;
    this.thinking = element('details', 'file thoughts', element('summary', 'quiet', 'Thinking'), this.thoughts);
    this.thinking.hidden = true;
    this.trouble = element('div', 'trouble');
    this.trouble.hidden = true;
    this.acts = element('div', 'acts');
    this.figures = element('span', 'numbers-of');
    this.remarks = element('span');
    const figures = element('span', 'figures', this.figures, this.remarks);
    const who = element('h2', 'who', this.isAnswer ? 'Answer' : 'You');
    const foot = element('div', 'foot', this.acts, figures);
    this.item = element('li', `turn ${this.isAnswer ? 'answer' : 'question'}`, who, this.thinking, this.said, this.trouble, foot);
    this.item.dataset.node = node.id;
    this.item.tabIndex = -1;
    document.body.classList.toggle('with-figures', remembered(FIGURES) === 'shown');
  }

  /** Brings the element in line with its message; `entry` has its versions, `state` what else counts. */
  draw(entry, state) {
    const key = JSON.stringify([this.node.rev, entry.versions.map((one) => one.id), state]);
    if (key === this.drawn || this.isEditing) return;
    this.drawn = key;
    this.entry = entry;
    this.state = state;
    this.drawState();
    if (this.written !== this.node.rev) this.drawText();
    this.written = this.node.rev;
    this.drawTrouble();
    this.drawActs();
  }

  drawState() {
    const { node } = this;
    this.item.classList.toggle('writing', this.state.isWriting);
    if (this.state.isWriting) this.item.setAttribute('aria-busy', 'true');
    else this.item.removeAttribute('aria-busy');
    const said = this.state.isLeftOut ? 'not answered: the model does not get this' : remarksText(node, this.state.context);
    this.figures.textContent = this.state.waits || this.state.isLeftOut ? '' : figuresText(node);
    this.remarks.textContent = this.state.waits || said;
  }

  drawText() {
    const { node } = this;
    if (this.isAnswer) {
      const { thoughts = '' } = node;
      this.thinking.hidden = thoughts === '';
      if (this.thoughts.textContent !== thoughts) this.thoughts.textContent = thoughts;
      patch(this.said, render(node.content));
      return;
    }
    const { files, text } = splitFiles(node.content);
    const parts = (node.images ?? []).map((image) => imageElement(image, SIDE));
    parts.push(...files.map(fileElement));
    if (text !== '') parts.push(element('p', 'words', text));
    const isLong = text.length > LONG_TEXT || text.split('\n').length > LONG_LINES;
    this.said.replaceChildren(...parts);
    this.said.classList.toggle('folded', isLong && !this.isUnfolded);
    if (isLong) {
      const label = this.isUnfolded ? 'Show less' : 'Show all';
      this.said.append(textButton(label, () => {
        this.isUnfolded = !this.isUnfolded;
        this.drawText();
        this.said.lastChild.focus();
      }, 'small'));
    }
  }

  /** What went wrong with the message, and what can be done. */
  drawTrouble() {
    const { node, state } = this;
    const error = node.error;
    this.trouble.hidden = !error || state.isWriting;
    this.trouble.replaceChildren();
    if (this.trouble.hidden) return;
    this.trouble.classList.toggle('mild', MILD.includes(error.code));
    this.trouble.append(element('p', '', error.code === 'unreachable' ? AWAY : error.message));
    if (error.id && !MILD.includes(error.code)) {
      const id = element('p', 'quiet', `Request ${error.id}`);
      this.trouble.append(element('details', '', element('summary', 'quiet', 'Details'), id));
    }
    const buttons = element('div', 'row');
    if (this.isAnswer && canResume(node)) buttons.append(textButton('Continue', () => this.actions.resume(node), 'small main'));
    buttons.append(textButton('Try again', () => this.actions.again(node), 'small'));
    if (!this.isAnswer) buttons.append(textButton('Edit', () => this.edit(), 'small'));
    for (const button of buttons.children) button.disabled = state.isBusy;
    this.trouble.append(buttons);
  }

  drawActs() {
    const { node, actions, state } = this;
    const { versions } = this.entry;
    const acts = [];
    if (versions.length > 1) acts.push(this.versionsElement(versions));
    if (!this.isAnswer) acts.push(iconButton('edit', 'Edit this message', () => this.edit()));
    if (this.isAnswer && state.canResume && canResume(node)) {
      acts.push(iconButton('continue', 'Continue this answer', () => actions.resume(node)));
    }
    if (this.isAnswer) acts.push(iconButton('redo', 'Regenerate: ask for another answer', () => actions.again(node)));
    if (this.isAnswer && figuresText(node)) {
      const info = iconButton('info', 'Show length and speed', () => showFigures(!document.body.classList.contains('with-figures')));
      info.setAttribute('aria-pressed', String(document.body.classList.contains('with-figures')));
      acts.push(info);
    }
    const copyLabel = this.isAnswer ? 'Copy this answer' : 'Copy this message';
    acts.push(iconButton('copy', copyLabel, (button) => copyText(node.content, button)));
    const what = this.isAnswer ? 'Delete this answer' : 'Delete this message and its answer';
    acts.push(iconButton('delete', what, () => actions.remove(node)));
    for (const button of acts) {
      if (button.tagName === 'BUTTON' && !button.matches('.act-copy, .act-info')) button.disabled = state.isBusy;
    }
    const focused = this.acts.contains(document.activeElement) ? document.activeElement.className : null;
    this.acts.replaceChildren(...(state.isWriting ? [] : acts));
    if (focused) [...this.acts.querySelectorAll('button')].find((button) => button.className === focused)?.focus();
  }

  versionsElement(versions) {
    const index = versions.indexOf(this.node);
    const go = (by) => {
      const place = this.item.closest('ol');
      this.actions.choose(versions[index + by]);
      const shown = [...place.children].find((item) => item.dataset.node === versions[index + by].id);
      const kind = by > 0 ? '.act-next' : '.act-previous';
      (shown?.querySelector(`${kind}:enabled`) ?? shown?.querySelector('.versions button:enabled'))?.focus();
    };
    const previous = iconButton('previous', 'Earlier version', () => go(-1));
    const next = iconButton('next', 'Later version', () => go(1));
    previous.disabled = index === 0 || this.state.isBusy;
    next.disabled = index === versions.length - 1 || this.state.isBusy;
    const count = element('span', 'count', `${index + 1}/${versions.length}`);
    const group = element('span', 'versions', previous, count, next);
    group.setAttribute('role', 'group');
    group.setAttribute('aria-label', `Version ${index + 1} of ${versions.length}`);
    return group;
  }

  /** Lets the person change the message. What is sent is a new version; the old one and what followed it are kept. */
  edit() {
    if (this.isEditing || this.isAnswer) return;
    this.isEditing = true;
    const { files, text } = splitFiles(this.node.content);
    const area = element('textarea', 'edited');
    area.value = text;
    area.setAttribute('aria-label', 'Change your message');
    const list = element('div', 'files');
    const images = [...this.node.images ?? []];
    const show = (chip, from, file) => {
      chip.append(iconButton('close', `Leave out ${file.name}`, () => {
        from.splice(from.indexOf(file), 1);
        chip.remove();
        area.focus();
      }));
      list.append(chip);
    };
    for (const image of images) show(element('span', 'chip', imageElement(image, SIDE_EDITED), image.name), images, image);
    for (const file of files) {
      const size = element('span', 'quiet', sizeText(bytesOf(file.text)));
      show(element('span', 'chip', file.name, ' ', size), files, file);
    }
    const end = () => {
      this.isEditing = false;
      this.item.classList.remove('editing');
      this.drawn = '';
      this.written = '';
      this.draw(this.entry, this.state);
      this.acts.querySelector('.act-edit')?.focus();
    };
    const send = () => {
      const content = joinFiles(files, area.value);
      const isSomething = content !== '' || images.length > 0;
      if (isSomething && this.actions.change(this.node, content, images)) this.isEditing = false;
    };
    area.addEventListener('keydown', (event) => {
      if (event.isComposing) return;
      if (event.key === 'Escape') {
        event.stopPropagation();
        end();
      } else if (event.key === 'Enter' && !event.shiftKey) {
        event.preventDefault();
        send();
      }
    });
    area.addEventListener('input', () => grow(area));
    const note = element('span', 'quiet', 'The earlier version is kept.');
    const buttons = element('div', 'row', textButton('Send', send, 'main small'), textButton('Cancel', end, 'small'), note);
    this.item.classList.add('editing');
    this.trouble.hidden = true;
    this.said.classList.remove('folded');
    this.said.replaceChildren(list, area, buttons);
    grow(area);
    area.focus();
  }
}

/** Makes a text field as high as its text, within what its style allows. */
export function grow(area) {
  area.style.height = 'auto';
  area.style.height = `${area.scrollHeight + 2}px`;
}
