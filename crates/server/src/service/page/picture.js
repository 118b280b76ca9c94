// A live picture of an engine: numbers, and lines over the last two minutes.

import { askJson } from './api.js';
import { element } from './markdown.js';

const SVG = 'http://www.w3.org/2000/svg';
const SAMPLES = 120;
/** Milliseconds between two looks at the engine: while the picture is seen, while it is folded, and while the server is away. */
const PERIOD = 1000;
const PERIOD_FOLDED = 5000;
const PERIOD_AWAY = 2000;

const NUMBERS = [
  ['speed', 'Tokens per second'],
  ['width', 'Batch width'],
  ['running', 'Running requests'],
  ['waiting', 'Waiting requests'],
  ['blocks-running', 'KV blocks in use'],
  ['blocks-kept', 'KV blocks kept'],
  ['blocks-free', 'KV blocks free'],
  ['busy', 'Busy'],
  ['engine-device', 'Device'],
];

const LINES = [
  ['Tokens per second', (sample) => sample.speed],
  ['Batch width, rows of a step', (sample) => sample.width],
  ['Requests, running and waiting', (sample) => sample.requests],
  ['KV blocks in use', (sample) => sample.blocks],
];

function svg(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

/** A number with few digits. */
export function short(value) {
  if (value === null || value === undefined) return '–';
  return value >= 100 || Number.isInteger(value) ? Math.round(value).toLocaleString('en') : value.toFixed(1);
}

/**
 * Draws into a place; `chosen` gives the name of the model to show, `isSeen` tells whether the place is unfolded, `heard`
 * gets every status or error.
 */
export class Picture {
  constructor(place, { chosen, isSeen, heard }) {
    Object.assign(this, { chosen, isSeen, heard });
    this.samples = [];
    this.timer = null;
    this.request = null;
    this.isPaused = true;
    this.build(place);
    document.addEventListener('visibilitychange', () => this.follow());
  }

  build(place) {
    const numbers = element('dl', 'numbers');
    this.numbers = {};
    for (const [id, label] of NUMBERS) {
      const value = element('dd', '', '–');
      value.id = id;
      this.numbers[id] = value;
      numbers.append(element('dt', '', label), value);
    }
    const drawing = (label, more) => svg('svg', { preserveAspectRatio: 'none', role: 'img', 'aria-label': label, ...more });
    this.bar = drawing('KV blocks', { class: 'blocks', viewBox: '0 0 100 10' });
    this.parts = ['running', 'kept', 'free'].map((name) => svg('rect', { class: name, y: 0, height: 10 }));
    this.bar.append(...this.parts);
    const caption = element('figcaption', '', 'KV blocks: in use, kept, free');
    place.append(numbers, element('figure', 'line', caption, this.bar));
    this.lines = LINES.map(([label, read]) => {
      const path = svg('path', { d: '' });
      const picture = drawing(label, { viewBox: `0 0 ${SAMPLES - 1} 40` });
      picture.append(path);
      const text = element('figcaption', '', label);
      place.append(element('figure', 'line', text, picture));
      return { label, read, path, picture, text };
    });
  }

  /** Polls while the tab is seen. */
  start() {
    this.isPaused = false;
    this.follow();
  }

  /** Asks nothing until the next start. */
  pause() {
    this.isPaused = true;
    this.follow();
  }

  /** Forgets the samples of another model. */
  reset() {
    this.samples = [];
  }

  /** Looks at once, or no more, as the tab and the picture are seen. */
  follow() {
    clearTimeout(this.timer);
    this.request?.abort();
    this.request = null;
    if (!this.isPaused && document.visibilityState === 'visible') this.poll();
  }

  async poll() {
    const request = new AbortController();
    this.request = request;
    let period = this.isSeen() ? PERIOD : PERIOD_FOLDED;
    try {
      const status = await askJson('v1/trine/status', { signal: request.signal });
      const model = status.models.find((one) => one.root === this.chosen()) ?? status.models[0];
      if (this.isSeen()) this.draw(model);
      this.heard(status, null);
    } catch (error) {
      if (request.signal.aborted) return;
      period = PERIOD_AWAY;
      this.heard(null, error);
    }
    if (this.request === request) this.timer = setTimeout(() => this.poll(), period);
  }

  draw(model) {
    const status = model?.status;
    const free = status ? Math.max(0, status.blocks - status.blocks_running - status.blocks_kept) : null;
    const share = model?.busy_share;
    const isWorking = status && status.running > 0;
    const values = {
      speed: short(model?.tokens_per_second),
      width: short(isWorking ? status.width : status && 0),
      running: status ? `${status.running} of ${status.sequences}` : '–',
      waiting: short(status?.waiting),
      'blocks-running': short(status?.blocks_running),
      'blocks-kept': short(status?.blocks_kept),
      'blocks-free': short(free),
      busy: typeof share === 'number' ? `${Math.round(share * 100)} %` : '–',
      'engine-device': model?.is_loaded ? model.device || 'unknown' : 'not loaded',
    };
    for (const [id, value] of Object.entries(values)) {
      if (this.numbers[id].textContent !== value) this.numbers[id].textContent = value;
    }
    if (!status) return;
    this.samples.push({
      speed: model.tokens_per_second ?? 0,
      width: isWorking ? status.width : 0,
      requests: status.running + status.waiting,
      blocks: status.blocks_running,
    });
    if (this.samples.length > SAMPLES) this.samples.shift();
    let left = 0;
    [status.blocks_running, status.blocks_kept, free].forEach((count, index) => {
      const width = (100 * count) / Math.max(1, status.blocks);
      this.parts[index].setAttribute('x', left);
      this.parts[index].setAttribute('width', width);
      left += width;
    });
    this.bar.setAttribute('aria-label', `${status.blocks_running} in use, ${status.blocks_kept} kept, ${free} free`);
    for (const line of this.lines) this.trace(line);
  }

  trace({ label, read, path, picture, text }) {
    const values = this.samples.map(read);
    const highest = Math.max(...values);
    const step = (value, index) => {
      const x = SAMPLES - values.length + index;
      return `${x},${(38 - (36 * value) / Math.max(highest, 1e-9)).toFixed(1)}`;
    };
    path.setAttribute('d', `M${values.map(step).join('L')}`);
    text.textContent = `${label}, highest ${short(highest)}`;
    picture.setAttribute('aria-label', `${label} over two minutes: ${short(values.at(-1))}, highest ${short(highest)}`);
  }
}
