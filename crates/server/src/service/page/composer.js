// Where a message is written: its text, its files, and a draft that outlives the tab.

import { FILES_MAX, TOKEN_BYTES, aboutTokens, joinFiles, readFile, sizeText } from './attach.js';
import { iconButton } from './icons.js';
import { IMAGE_TOKENS, imageElement, isImage, readImage } from './image.js';
import { element } from './markdown.js';
import { closeNote, note } from './notice.js';
import { grow } from './turn.js';

/** Longer drafts are kept by the page only. */
const DRAFT_MAX = 200000;
/** The longer side of a picture beside the message, in pixels. */
const SIDE = 64;

const $ = (id) => document.getElementById(id);

function draftKey(name) {
  return `trine-draft-${name}`;
}

/** A draft that was kept: the tab's own comes before what another tab wrote. */
function keptDraft(name) {
  for (const storage of ['sessionStorage', 'localStorage']) {
    try {
      const text = window[storage].getItem(draftKey(name));
      if (text) return text;
    } catch { /* switched off */ }
  }
  return '';
}

export class Composer {
  /**
   * `send` is called when the person wants to send, `changed` with each change, `back` for the arrow key that goes to the last
   * message, `answer` for the one to the last answer. `sees` tells whether the model takes images, undefined if that is not
   * known; `blind` gives what is wrong with an image that it does not take, and a button that helps or null.
   */
  constructor({ send, changed, back, answer, sees, blind }) {
    Object.assign(this, { changed, sees, blind });
    this.name = '';
    this.drafts = new Map();
    this.files = [];
    this.area = $('message');
    $('composer').addEventListener('submit', (event) => {
      event.preventDefault();
      send();
    });
    this.area.addEventListener('keydown', (event) => {
      if (event.isComposing) return;
      if (event.key === 'Enter' && !event.shiftKey) {
        event.preventDefault();
        send();
      }
      if (event.key === 'ArrowUp' && event.altKey) answer(event);
      else if (event.key === 'ArrowUp' && this.area.value === '') back(event);
    });
    this.area.addEventListener('input', () => this.follow());
    $('attach').addEventListener('click', () => $('attach-file').click());
    $('attach-file').addEventListener('change', async () => {
      await this.attach([...$('attach-file').files]);
      $('attach-file').value = '';
    });
    this.area.addEventListener('paste', (event) => {
      const files = [...event.clipboardData.files];
      // Cells of a table come as text and as a picture of it.
      const isText = event.clipboardData.types.includes('text/plain') && files.every(isImage);
      if (files.length === 0 || isText) return;
      event.preventDefault();
      this.attach(files);
    });
    this.wireDrop();
  }

  wireDrop() {
    const hasFiles = (event) => event.dataTransfer?.types.includes('Files');
    let depth = 0;
    const show = (by) => {
      depth = Math.max(0, depth + by);
      $('drop').hidden = depth === 0;
    };
    addEventListener('dragenter', (event) => { if (hasFiles(event)) show(1); });
    addEventListener('dragleave', (event) => { if (hasFiles(event)) show(-1); });
    // Without this the browser would open the file in place of the page.
    addEventListener('dragover', (event) => { if (hasFiles(event)) event.preventDefault(); });
    addEventListener('drop', (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      show(-depth);
      this.attach([...event.dataTransfer.files]);
      this.area.focus();
    });
  }

  /** Takes files to go with the message. */
  async attach(files) {
    const wrong = [];
    let help = null;
    closeNote();
    for (const file of files) {
      if (this.files.length >= FILES_MAX) {
        wrong.push(`A message takes at most ${FILES_MAX} files.`);
        break;
      }
      try {
        if (isImage(file) && this.sees() === false) {
          const [message, button] = this.blind();
          help ??= button;
          throw new Error(`“${file.name}” was not attached: ${message}`);
        }
        this.files.push(await (isImage(file) ? readImage(file) : readFile(file)));
      } catch (error) {
        wrong.push(error.message);
      }
    }
    this.drawFiles();
    if (wrong.length > 0) note(wrong.join('\n'), help);
    this.changed();
  }

  drawFiles() {
    $('files').replaceChildren(...this.files.map((file) => {
      const size = element('span', 'quiet', sizeText(file.bytes));
      const chip = element('li', 'chip', element('span', 'file-name', file.name), ' ', size);
      if (file.url) chip.prepend(imageElement(file, SIDE));
      chip.append(iconButton('close', `Leave out ${file.name}`, () => {
        this.files.splice(this.files.indexOf(file), 1);
        this.drawFiles();
        this.changed();
        this.area.focus();
      }));
      return chip;
    }));
  }

  /** Takes a text for the message. */
  take(text) {
    this.area.value = text;
    this.follow();
  }

  /** The message as it would be sent. */
  content() {
    return joinFiles(this.files.filter((file) => !file.url), this.area.value);
  }

  /** The pictures that go with it. */
  images() {
    return this.files.filter((file) => file.url).map(({ name, url }) => ({ name, url }));
  }

  get isEmpty() {
    return this.files.length === 0 && this.area.value.trim() === '';
  }

  /** Tokens that the message has, about. */
  tokens() {
    const of = (file) => (file.url ? IMAGE_TOKENS : Math.ceil(file.bytes / TOKEN_BYTES));
    return this.files.reduce((sum, file) => sum + of(file), aboutTokens(this.area.value));
  }

  clear() {
    closeNote();
    this.area.value = '';
    this.files = [];
    this.drawFiles();
    this.follow();
  }

  follow() {
    grow(this.area);
    const text = this.area.value;
    for (const name of ['sessionStorage', 'localStorage']) {
      try {
        if (text === '' || text.length > DRAFT_MAX) window[name].removeItem(draftKey(this.name));
        else window[name].setItem(draftKey(this.name), text);
      } catch { /* full or switched off: the field still has the text */ }
    }
    this.changed();
  }

  /** Goes to the draft of another conversation; the present one is there on the way back. */
  open(name) {
    closeNote();
    this.drafts.set(this.name, { files: this.files, text: this.area.value });
    const { files, text } = this.drafts.get(name) ?? { files: [], text: keptDraft(name) };
    this.name = name;
    this.files = files;
    this.area.value = text;
    this.drawFiles();
    grow(this.area);
    this.changed();
  }

  /** The draft goes on under another name: a conversation that had none began. */
  rename(name) {
    this.drafts.delete(this.name);
    this.name = name;
  }
}
