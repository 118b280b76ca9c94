// Whether the server lets the page in: the question for a key, and what is said while the server cannot be reached.

import { RequestError, hasKey, setKey } from './api.js';
import { complain, uncomplain } from './notice.js';

const $ = (id) => document.getElementById(id);

export class Access {
  /** `pause` ends the looks at the engine, `resume` begins again, `look` looks at once. */
  constructor({ pause, resume, look }) {
    Object.assign(this, { pause, resume, look });
    /** What to do again once there is a key. */
    this.again = null;
    $('key-form').addEventListener('submit', (event) => this.take(event));
    $('key-cancel').addEventListener('click', () => $('key-dialog').close());
    $('key-dialog').addEventListener('close', () => {
      if (!$('message').closest('[inert]')) $('message').focus();
    });
    $('key-dialog').addEventListener('cancel', () => { this.again = null; });
  }

  /** Looks at a failed request: asks for a key if that is what was missing, and then does `again`. */
  failed(error, again) {
    if (!(error instanceof RequestError)) {
      if (!again) complain(`The page has met a bug: ${error.message}`);
      return;
    }
    if (error.status === 401 && error.isOfOldKey) again?.();
    else if (error.status === 401) this.askForKey(again);
    else if (error.status === 429) this.locked(error);
    else if (error.code === 'unreachable') this.lost(error);
    else if (error.code === 'broken') this.look();
    // An error of an answer stands with the message.
    else if (!again) complain(error.message, { id: error.id });
  }

  askForKey(again) {
    this.pause();
    if (again) this.again = again;
    const isWrong = hasKey();
    const words = 'The server did not accept this key. Is it complete, and in the server’s file of keys?';
    $('key-wrong').textContent = isWrong ? words : '';
    $('key-wrong').hidden = !isWrong;
    if (!$('key-dialog').open) $('key-dialog').showModal();
    $('key').focus();
  }

  /** Too many wrong keys: the server lets nobody in from here for a while. */
  locked(error) {
    this.pause();
    complain(error.message, { kind: 'locked', action: ['Try again', () => {
      uncomplain('locked');
      this.resume();
    }] });
  }

  /** The server could not be reached. */
  lost(error) {
    if (error.status === 401 || error.status === 429) {
      this.failed(error, null);
      return;
    }
    if (error.status !== 0) return;
    const message = `The server at ${location.host} cannot be reached. Is it still running? This page goes on when it is back.`;
    complain(message, { kind: 'lost' });
    this.isLost = true;
  }

  /** The server answers. */
  found() {
    if (this.isLost) uncomplain('lost');
    this.isLost = false;
  }

  take(event) {
    event.preventDefault();
    const key = $('key').value.trim();
    // Header values are visible ASCII characters, and so are keys.
    if (!/^[!-~]+$/.test(key)) {
      $('key-wrong').textContent = 'A key has only letters, digits and signs of ASCII, without spaces.';
      $('key-wrong').hidden = false;
      return;
    }
    setKey(key);
    $('key').value = '';
    $('key-dialog').close();
    const { again } = this;
    this.again = null;
    this.enter(again);
  }

  async enter(again) {
    await this.resume();
    if (again && !$('key-dialog').open) again();
    else this.again = again;
  }
}
