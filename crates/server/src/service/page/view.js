// The conversation on the page. Elements are kept by message, so that a change draws only what it changes, and long
// conversations are drawn from their end.

import { Talk } from './conversation.js';
import { element } from './markdown.js';
import { Turn } from './turn.js';

/** Messages drawn at once when a conversation is opened, and in each step after that. */
const FIRST = 30;
const STEP = 20;
/** Distance from the end, in pixels, within which the view follows a growing answer. */
const NEAR = 80;

const $ = (id) => document.getElementById(id);

export class View {
  /** `actions` are what the buttons of messages do; `running` gives the message that is being written of a conversation. */
  constructor(actions, running) {
    this.actions = actions;
    this.running = running;
    this.talk = null;
    this.turns = new Map();
    /** The first message that is drawn, by its place on the branch. */
    this.first = 0;
    this.growing = null;
    this.context = null;
    this.waits = '';
    this.box = $('conversation');
    this.list = $('turns');
    this.box.addEventListener('scroll', () => this.followScroll(), { passive: true });
    $('to-end').addEventListener('click', () => this.toEnd());
    // What is above the composer moves when the composer grows.
    new ResizeObserver(() => { if (this.isAtEnd) this.toEnd(); }).observe(this.box);
    this.isAtEnd = true;
  }

  /** Shows another conversation, its end first. */
  show(talk) {
    clearTimeout(this.growing);
    this.talk = talk;
    this.turns.clear();
    this.list.replaceChildren();
    this.first = Math.max(0, talk.shown().length - FIRST);
    this.waits = '';
    this.refresh();
    this.toEnd();
    this.growBack();
  }

  /** Draws earlier messages when there is time; what is seen stays where it is. */
  growBack() {
    this.growing = setTimeout(() => {
      if (this.first === 0) return;
      const fromEnd = this.box.scrollHeight - this.box.scrollTop;
      this.first = Math.max(0, this.first - STEP);
      this.refresh();
      this.box.scrollTop = this.box.scrollHeight - fromEnd;
      this.growBack();
    }, 0);
  }

  /** Brings the page in line with the conversation. */
  refresh() {
    const entries = this.talk.shown();
    this.first = Math.min(this.first, Math.max(0, entries.length - 1));
    const writing = this.running(this.talk);
    const isElsewhere = entries.some(({ node }) => Talk.isWrittenElsewhere(node));
    const start = entries.findIndex(({ node }) => node.id === this.talk.head.start?.id);
    const drawn = new Set();
    let place = this.list.firstElementChild;
    entries.forEach((entry, index) => {
      if (index < this.first) return;
      const { node } = entry;
      let turn = this.turns.get(node.id);
      if (turn?.node !== node) {
        turn?.item.remove();
        turn = new Turn(node, this.actions);
        this.turns.set(node.id, turn);
        place = place?.isConnected ? place : null;
      }
      drawn.add(turn.item);
      const isWriting = node === writing || Talk.isWrittenElsewhere(node);
      turn.draw(entry, {
        isWriting,
        isBusy: writing !== null || isElsewhere,
        canResume: index === entries.length - 1,
        isLeftOut: node.role === 'user' && entries[index + 1]?.node.role === 'user',
        waits: node === writing ? this.waits : isWriting ? 'another tab writes this' : '',
        context: node.figures ? this.context : null,
      });
      turn.item.classList.toggle('unsent', index < start);
      if (index === start && start > 0) place = this.mark(place, drawn);
      if (turn.item === place) place = place.nextElementSibling;
      else this.list.insertBefore(turn.item, place);
    });
    for (const item of [...this.list.children]) if (!drawn.has(item)) this.drop(item);
    $('empty').hidden = entries.length > 0;
    this.followScroll();
  }

  /** Puts the mark before the first message that the model still gets. */
  mark(place, drawn) {
    this.border ??= element('li', 'left-out', 'The model can no longer see the messages above this line.');
    if (this.border !== place) this.list.insertBefore(this.border, place);
    drawn.add(this.border);
    return this.border.nextElementSibling;
  }

  drop(item) {
    this.turns.delete(item.dataset.node);
    item.remove();
  }

  /** Draws a message that is being written. */
  update(waits = '') {
    this.waits = waits;
    const wasAtEnd = this.isAtEnd;
    this.refresh();
    if (wasAtEnd) this.toEnd();
  }

  /** Puts the focus on the last answer. Whether there is one. */
  focusAnswer() {
    const last = [...this.list.querySelectorAll('.answer')].at(-1);
    last?.focus();
    last?.scrollIntoView({ block: 'nearest' });
    return Boolean(last);
  }

  /** Opens a message for changing. */
  edit(node) {
    this.turns.get(node.id)?.edit();
  }

  toEnd() {
    this.box.scrollTop = this.box.scrollHeight;
    this.followScroll();
  }

  followScroll() {
    const { scrollHeight, scrollTop, clientHeight } = this.box;
    this.isAtEnd = scrollHeight - scrollTop - clientHeight < NEAR;
    $('to-end').hidden = this.isAtEnd;
  }
}
