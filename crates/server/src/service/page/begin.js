// The page before a chat's first message: what the model is for, and examples to begin with.

import { sizeText } from './attach.js';
import { textButton } from './icons.js';
import { element } from './markdown.js';

/** The model inside the program, and the bytes that no real model is below. */
const TOY = 'demo';
const TOY_BYTES_MAX = 1e8;
const STORIES = ['Tell me a story about a fox.', 'Tell me a story about a lost key.', 'Tell me a story about a boat.'];
const QUESTIONS = ['Explain in simple words how a rainbow forms.', 'Write a short, polite email that asks for a day off.',
  'What can I cook with eggs, tomatoes and rice?'];
const TEXTS = ['Once upon a time there was a fox who', 'The three best things about rain are', 'Dear neighbours,'];

const $ = (id) => document.getElementById(id);

/** What is said of a base model. */
export const BASE = 'This is a base model: it continues text and was not trained to chat. Each message is continued by itself. '
  + 'To chat, choose a model with -it in its name.';

/** Draws the page of a chat without messages. `say` is called with an example, `getter` knows models that can be had. */
export class Beginning {
  constructor({ settings, getter, say }) {
    Object.assign(this, { settings, getter, say });
    this.drawn = '';
  }

  get isToy() {
    const { engine, models, model } = this.settings;
    return engine === TOY && (models.get(model)?.bytes ?? Infinity) < TOY_BYTES_MAX;
  }

  draw() {
    const isBase = this.settings.chats === false;
    const better = this.isToy ? this.getter.recommended : null;
    const key = JSON.stringify([this.isToy, isBase, better, this.settings.canGet]);
    if (key === this.drawn) return;
    this.drawn = key;
    $('about-model').hidden = !this.isToy && !isBase;
    $('about-text').textContent = isBase ? BASE : this.isToy ? this.aboutToy(better) : '';
    $('about-action').replaceChildren(...(better ? [this.getter.button(better)] : []));
    const examples = isBase ? TEXTS : this.isToy ? STORIES : QUESTIONS;
    $('examples').replaceChildren(...examples.map((words) => element('li', '', textButton(words, () => this.say(words), 'example'))));
  }

  aboutToy(better) {
    const what = 'demo is a tiny model that only tells short stories.';
    if (!better) return this.settings.canGet ? what : `${what} Start the server with another one for everything else: trine serve gemma4`;
    const fits = better.fits ? ', fits this machine' : '';
    const size = better.served_as ? '' : ` (${sizeText(better.bytes_about)}${fits})`;
    return `${what} ${better.name}${size} answers questions.`;
  }
}
