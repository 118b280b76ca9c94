// The list of conversations: which there are, what they are called, searching and removing them.

import { icon, iconButton, textButton } from './icons.js';
import { element } from './markdown.js';

const DAY = 24 * 3600 * 1000;
/** Conversations listed at first, and added with each press of the button. */
const LISTED = 100;
/** Milliseconds without a key until texts are searched. */
const SEARCH_WAIT = 200;

const $ = (id) => document.getElementById(id);

/** Where a conversation stands in the list by the time when it was changed. */
function groupOf(changed) {
  const midnight = new Date().setHours(0, 0, 0, 0);
  if (changed >= midnight) return 'Today';
  if (changed >= midnight - DAY) return 'Yesterday';
  if (changed >= midnight - 7 * DAY) return 'Last seven days';
  return 'Earlier';
}

export class Sidebar {
  /**
   * `actions` are `rename` and `remove`, each called with a head, and `search`, which promises pieces of texts by the names of
   * conversations; `isWriting` tells whether one is being answered.
   */
  constructor({ actions, isWriting }) {
    Object.assign(this, { actions, isWriting });
    this.heads = [];
    this.current = '';
    this.renamed = null;
    this.listed = LISTED;
    /** What was found of the text of conversations, by their names. */
    this.pieces = new Map();
    this.searching = null;
    $('find').addEventListener('input', () => {
      this.pieces = new Map();
      this.draw();
      clearTimeout(this.searching);
      this.searching = setTimeout(() => this.search(this.wanted), SEARCH_WAIT);
    });
  }

  /** What is searched for. */
  get wanted() {
    return $('find').value.trim().toLowerCase();
  }

  /** Looks through the texts of conversations. */
  async search(words) {
    if (words === '') return;
    const pieces = await this.actions.search(words, () => this.wanted === words);
    if (this.wanted !== words) return;
    this.pieces = pieces;
    this.draw();
  }

  /** Shows the list; `current` is the name of the conversation on the page. */
  show(heads, current) {
    this.heads = heads;
    this.current = current;
    this.draw();
  }

  draw() {
    // What somebody is typing into is not drawn again.
    if (this.renamed) return;
    const { wanted } = this;
    const isFound = (head) => (head.title || '').toLowerCase().includes(wanted) || this.pieces.has(head.id);
    const found = this.heads.filter(isFound);
    $('find').hidden = this.heads.length === 0 && wanted === '';
    const focused = document.activeElement?.closest?.('#talks li')?.dataset.talk;
    const kind = document.activeElement?.className;
    const items = [];
    let group = '';
    for (const head of found.slice(0, this.listed)) {
      const own = groupOf(head.changed);
      if (own !== group) items.push(element('li', 'group', element('h2', '', own)));
      group = own;
      items.push(this.item(head));
    }
    if (found.length > this.listed) {
      items.push(element('li', '', textButton(`Show ${found.length - this.listed} more`, () => {
        this.listed += LISTED;
        this.draw();
      }, 'small')));
    }
    $('talks').replaceChildren(...items);
    $('no-talks').hidden = found.length > 0;
    $('no-talks').textContent = wanted ? 'No matches.' : 'Your chats will appear here.';
    if (!focused) return;
    const item = [...$('talks').children].find((one) => one.dataset.talk === focused);
    [...(item?.querySelectorAll('a, button') ?? [])].find((one) => one.className === kind)?.focus();
  }

  item(head) {
    const title = head.title || 'New chat';
    const name = element('span', 'talk-title', title);
    name.title = title;
    const piece = this.pieces.get(head.id);
    const link = element('a', 'talk', element('span', 'talk-words', name, piece ? element('span', 'piece quiet', piece) : ''));
    link.href = `#chat-${head.id}`;
    if (head.id === this.current) link.setAttribute('aria-current', 'page');
    if (this.isWriting(head.id)) {
      const sign = element('span', 'busy', '●');
      sign.setAttribute('role', 'img');
      sign.setAttribute('aria-label', 'is being answered');
      link.prepend(sign);
    }
    const item = element('li', 'talk-item', link);
    item.dataset.talk = head.id;
    const buttons = [
      iconButton('edit', `Rename “${title}”`, () => this.rename(head, item)),
      iconButton('delete', `Delete “${title}”`, () => this.actions.remove(head)),
    ];
    // The link's own keys do the same: a long list has one stop for each conversation.
    for (const button of buttons) button.tabIndex = -1;
    link.setAttribute('aria-keyshortcuts', 'F2 Delete');
    item.append(...buttons);
    link.addEventListener('keydown', (event) => {
      if (event.key === 'F2') this.rename(head, item);
      if (event.key === 'Delete') this.actions.remove(head);
    });
    return item;
  }

  /** Makes the name a field. Enter and leaving it keep the name, Escape the old one. */
  rename(head, item) {
    const field = element('input', 'rename');
    field.value = head.title;
    field.maxLength = 200;
    field.setAttribute('aria-label', 'Name of the chat');
    this.renamed = head.id;
    const end = (isKept) => {
      if (this.renamed !== head.id) return;
      this.renamed = null;
      const title = field.value.trim();
      if (isKept && title !== '' && title !== head.title) this.actions.rename(head, title);
      this.draw();
      [...$('talks').children].find((one) => one.dataset.talk === head.id)?.querySelector('a').focus();
    };
    field.addEventListener('keydown', (event) => {
      if (event.isComposing) return;
      if (event.key === 'Enter') end(true);
      if (event.key === 'Escape') {
        event.stopPropagation();
        end(false);
      }
    });
    field.addEventListener('blur', () => end(true));
    item.replaceChildren(icon('edit'), field);
    field.focus();
    field.select();
  }
}
