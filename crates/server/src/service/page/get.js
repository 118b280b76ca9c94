// Getting a model: the catalogue with what fits this machine, and the one download that this page watches.

import { RequestError, catalog, pull } from './api.js';
import { sizeText } from './attach.js';
import { textButton } from './icons.js';
import { element } from './markdown.js';
import { toast } from './notice.js';
import { short } from './picture.js';

/** Milliseconds over which the speed of a download is measured. */
const SPEED_PERIOD = 8000;
/** Milliseconds that the server takes to see that a download was given up. */
const CANCEL_WAIT = 400;

const $ = (id) => document.getElementById(id);

/** A time for people, in whole minutes or seconds. */
function timeText(seconds) {
  return seconds >= 90 ? `${Math.round(seconds / 60)} min left` : `${Math.max(1, Math.round(seconds))} s left`;
}

/** What a person wants to know of a model before downloading it. */
export function factsOf(offer) {
  const facts = [sizeText(offer.bytes_about)];
  if (offer.fits === true) facts.push('fits this machine');
  if (offer.fits === false) facts.push('needs more memory than is free');
  const rate = offer.fits === false ? null : offer.tokens_per_second_about;
  if (rate !== null) facts.push(`about ${short(rate)} tokens/s`);
  if (offer.sees) facts.push('reads images');
  return facts.join(' · ');
}

/** A download that runs or has failed. */
class Download {
  constructor(name, bytes) {
    Object.assign(this, { name, bytes, error: null, waits: '', done: 0, file: '', controller: new AbortController() });
    /** Bytes of files that are complete, and of the present one: so far, and in all. */
    this.before = 0;
    this.total = 0;
    this.samples = [];
  }

  /** Takes a line of the server's. */
  take({ status = '', digest = '', completed = 0, total = 0 }) {
    if (digest === '') {
      this.waits = status;
      return;
    }
    if (digest !== this.file) {
      this.before += this.total;
      // What was here already is no speed.
      this.samples = [];
    }
    Object.assign(this, { file: digest, total, done: this.before + completed });
    this.waits = status.startsWith('pulling ') ? '' : status;
    const now = performance.now();
    this.samples.push([now, this.done]);
    while (this.samples.length > 2 && this.samples[0][0] < now - SPEED_PERIOD) this.samples.shift();
  }

  /** All bytes, about. */
  get all() {
    return Math.max(this.bytes ?? 0, this.before + this.total);
  }

  get percent() {
    return this.all > 0 ? Math.floor((100 * this.done) / this.all) : 0;
  }

  text() {
    if (this.all === 0) return this.waits || 'starting';
    const parts = [`${sizeText(this.done)} of about ${sizeText(this.all)}`];
    const [[start, first], [end, last]] = [this.samples[0] ?? [0, 0], this.samples.at(-1) ?? [0, 0]];
    const speed = end - start > 500 ? ((last - first) * 1000) / (end - start) : 0;
    if (speed > 0) parts.push(`${sizeText(speed)}/s`, timeText((this.all - this.done) / speed));
    if (this.waits) parts.push(this.waits);
    return parts.join(' · ');
  }
}

export class Getter {
  /**
   * `use` is called with the name of a model that is here and that the person wants, `came` promises to ask which models
   * there are and gives their names, `failed` is called with errors that are not a download's own and what to do again,
   * `changed` whenever the catalogue or the download changes.
   */
  constructor({ use, came, failed, changed }) {
    Object.assign(this, { use, came, failed, changed });
    /** The catalogue as it was asked for last; null as long as it is not known, or if nothing may be pulled. */
    this.offers = null;
    this.hasAll = false;
    /** The download that runs, and those that failed, by name. */
    this.running = null;
    this.broken = new Map();
    $('get-close').addEventListener('click', () => $('get-dialog').close());
    $('get-all').addEventListener('click', () => {
      this.hasAll = !this.hasAll;
      $('get-all').setAttribute('aria-expanded', String(this.hasAll));
      $('get-all').textContent = this.hasAll ? 'Show the usual files' : 'Show all files';
      this.draw();
    });
    $('get-form').addEventListener('submit', (event) => {
      event.preventDefault();
      this.start($('get-name').value.trim());
    });
    $('get-dialog').addEventListener('close', () => $('message').focus());
    $('download').addEventListener('click', () => this.open());
    addEventListener('beforeunload', (event) => { if (this.running) event.preventDefault(); });
  }

  /** Asks for the catalogue; `measure` may take a second or two. */
  async look(measure) {
    try {
      const found = await catalog(measure);
      this.offers = found.models;
      this.device = found.device;
      this.free = found.free_bytes;
    } catch (error) {
      if (error instanceof RequestError && error.code === 'library_closed') this.offers = null;
      else this.failed(error, () => this.look(measure));
    }
    this.changed();
  }

  /** The model to take on this machine. */
  get recommended() {
    return this.offers?.find((offer) => offer.recommended);
  }

  /** A model that reads images: one that is here, else the largest usual one that fits, up to the recommended. */
  get seeing() {
    const seeing = this.offers?.filter((offer) => offer.sees) ?? [];
    const most = this.recommended?.bytes_about ?? Infinity;
    return seeing.find((offer) => offer.served_as)
      ?? seeing.findLast((offer) => offer.usual && offer.fits !== false && offer.bytes_about <= most)
      ?? seeing.find((offer) => offer.usual);
  }

  /** A button that leads to a model: uses it, or downloads it. */
  button(offer, className = 'small main') {
    if (offer.served_as) return textButton(`Use ${offer.name}`, () => this.use(offer.served_as), className);
    return textButton(`Get ${offer.name}`, () => {
      this.open();
      this.start(offer.name);
    }, className);
  }

  async open() {
    if (!$('get-dialog').open) $('get-dialog').showModal();
    if (!this.device) $('get-machine').textContent = 'Measuring this machine …';
    this.draw();
    await this.look(true);
    this.draw();
  }

  draw() {
    const known = this.device ? `Forecasts for ${this.device}` : 'Sizes are rounded';
    const memory = this.free ? `, with ${sizeText(this.free)} of memory free` : '';
    if (this.offers) $('get-machine').textContent = `${known}${memory}.`;
    const isShown = (offer) => this.hasAll || offer.usual || offer.state !== 'absent' || this.stateOf(offer.name);
    const offers = (this.offers ?? []).filter(isShown);
    const names = offers.map((offer) => offer.name);
    const others = [this.running, ...this.broken.values()].filter((one) => one && !names.includes(one.name));
    const focused = document.activeElement?.closest?.('#offers li')?.dataset.name;
    $('offers').replaceChildren(...others.map((one) => this.row({ name: one.name, state: 'absent' })), ...offers.map((offer) => this.row(offer)));
    if (focused) [...$('offers').children].find((row) => row.dataset.name === focused)?.querySelector('button')?.focus();
    this.drawProgress();
  }

  stateOf(name) {
    return this.running?.name === name ? this.running : this.broken.get(name);
  }

  row(offer) {
    const name = element('strong', '', offer.name);
    const facts = element('p', 'quiet', offer.bytes_about ? factsOf(offer) : '');
    const row = element('li', 'offer', element('p', '', name, offer.recommended ? element('span', 'badge', 'recommended') : ''), facts);
    row.dataset.name = offer.name;
    if (offer.model) row.title = offer.model;
    const state = this.stateOf(offer.name);
    if (state?.error) row.append(element('p', 'wrong', state.error));
    if (state && !state.error) {
      this.bar = element('progress');
      this.bar.max = 100;
      this.bar.setAttribute('aria-label', `Download of ${offer.name}`);
      this.words = element('p', 'quiet');
      row.append(this.bar, this.words, this.named(textButton('Cancel', () => this.cancel(), 'small'), offer));
    } else if (offer.served_as) {
      row.append(this.named(textButton('Use', () => {
        $('get-dialog').close();
        this.use(offer.served_as);
      }, 'small'), offer));
    } else {
      const isPart = offer.state === 'partial';
      const part = isPart && offer.percent !== null ? ` (${offer.percent} % is here)` : '';
      const words = isPart ? `Continue${part}` : state ? 'Try again' : offer.fits === false ? 'Download anyway' : 'Download';
      const button = this.named(textButton(words, () => this.start(offer.name), `small${offer.recommended ? ' main' : ''}`), offer);
      button.disabled = this.running !== null;
      row.append(button);
    }
    return row;
  }

  /** Says to screen readers which model a button is about. */
  named(button, offer) {
    button.append(element('span', 'unseen', ` ${offer.name}`));
    return button;
  }

  drawProgress() {
    const { running } = this;
    $('download').hidden = running === null;
    if (!running) return;
    const label = `${running.name} ${running.percent} %`;
    if ($('download').textContent !== label) $('download').textContent = label;
    if (!this.bar?.isConnected) return;
    this.bar.value = running.percent;
    this.words.textContent = running.text();
  }

  /** Downloads a model, or goes on with it. */
  async start(name) {
    if (this.running || name === '') return;
    const offer = this.offers?.find((one) => one.names.includes(name) || one.model === name);
    const download = new Download(offer?.name ?? name, offer?.bytes_about);
    this.broken.delete(download.name);
    this.running = download;
    this.draw();
    const before = await this.came();
    let isWhole = false;
    try {
      for await (const line of pull(download.name, download.controller.signal)) {
        if (line.error !== undefined) throw new RequestError(String(line.error), 0, 'failed', null);
        isWhole ||= line.status === 'success';
        download.take(line);
        this.drawProgress();
      }
      if (!isWhole) throw new RequestError('The connection ended. What is here stays.', 0, 'broken', null);
    } catch (error) {
      this.running = null;
      const isCancelled = download.controller.signal.aborted;
      if (!isCancelled) {
        download.error = error.message;
        if (error.status === 401) this.failed(error, () => this.start(name));
        else this.broken.set(download.name, download);
      } else {
        await new Promise((go) => { setTimeout(go, CANCEL_WAIT); });
      }
      await this.look(false);
      this.draw();
      return;
    }
    this.running = null;
    const after = await this.came();
    await this.look(false);
    this.draw();
    const served = this.offers?.find((one) => one.name === download.name)?.served_as ?? after.find((one) => !before.includes(one));
    if (!served) toast(`${download.name} was downloaded.`);
    else this.came(served);
  }

  /** Ends the download; what is here stays, and is continued later. */
  cancel() {
    this.running?.controller.abort();
  }
}
