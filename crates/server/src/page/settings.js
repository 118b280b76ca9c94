// Which model is asked, with which system prompt and parameters. Fields show the model's own values.

import { describe, listModels, modelDefaults } from './api.js';
import { PARAMETERS } from './conversation.js';
import { element } from './markdown.js';

const MODEL = 'trine-model';
const HABITS = 'trine-new-chats';
const THINKS = 'trine-thinks';
const SYSTEM_SHORT = 80;
/** What stands in a field of which the model has no value of its own. */
const WORDS = { max_tokens: 'until full', seed: 'random' };
const NO_PROMPT = 'What the model should know and how it should answer, in this conversation';

const $ = (id) => document.getElementById(id);

/** A value of the browser's storage, or null: a person may have switched it off. */
export function remembered(name) {
  try {
    return localStorage.getItem(name);
  } catch {
    return null;
  }
}

export function remember(name, value) {
  try {
    localStorage.setItem(name, value);
  } catch { /* then it is forgotten */ }
}

export class Settings {
  /** `changed` is called with the name of what the person set, `failed` with errors of the server. */
  constructor({ changed, failed }) {
    Object.assign(this, { changed, failed });
    this.models = new Map();
    this.defaults = new Map();
    /** System prompts that names bring along, and whether they can think and take pictures. */
    this.known = new Map();
    /** The engines at the last look. */
    this.engines = '';
    this.talk = null;
    $('model').addEventListener('change', () => this.chooseModel());
    $('system').addEventListener('input', () => {
      this.talk.set('system', $('system').value);
      this.showSystem();
      changed('system');
    });
    $('think').addEventListener('click', () => {
      this.talk.set('thinks', !this.thinks);
      remember(THINKS, String(this.talk.head.thinks));
      this.showThinking();
      changed('thinks');
    });
    $('parameters').addEventListener('input', (event) => this.takeParameter(event.target));
    $('reset').addEventListener('click', () => this.reset());
    $('habits').addEventListener('click', () => {
      const { system, parameters } = this.talk.head;
      remember(HABITS, JSON.stringify({ system, parameters }));
      changed('habits');
    });
  }

  /** The name of the model that is asked. */
  get model() {
    return $('model').value;
  }

  /** Whether the conversation's model is not on this server any more. */
  get isMissing() {
    return this.models.size > 0 && !this.models.has(this.model);
  }

  /** The name of the engine that runs the model. */
  get engine() {
    return this.models.get(this.model)?.engine ?? this.model;
  }

  /** Whether the model is to think before it answers; undefined if it cannot. */
  get thinks() {
    return this.known.get(this.model)?.thinks ? this.talk.head.thinks === true : undefined;
  }

  /** `thinks` and `sees` of any conversation and model. Waits for the server to say what the model can. */
  async abilitiesOf(talk, model, signal) {
    const wanted = talk.head.thinks === true;
    if (!model) return {};
    try {
      const { thinks, sees } = this.known.get(model) ?? await describe(model, signal);
      return { thinks: thinks ? wanted : undefined, sees };
    } catch {
      // The request for the answer fails too, and says why.
      return {};
    }
  }

  /** Whether the model takes pictures; undefined if that is not known yet. */
  get sees() {
    return this.known.get(this.model)?.sees;
  }

  contextOf(name) {
    return this.models.get(name)?.context ?? null;
  }

  /** What a new conversation begins with. */
  habits() {
    const head = { model: remembered(MODEL) ?? '', thinks: remembered(THINKS) === 'true' };
    try {
      const { system, parameters } = JSON.parse(remembered(HABITS) ?? '{}');
      if (typeof system === 'string') head.system = system;
      head.parameters = Object.fromEntries(PARAMETERS.filter((name) => Number.isFinite(parameters?.[name]))
        .map((name) => [name, parameters[name]]));
    } catch { /* as if there were none */ }
    return head;
  }

  /** Shows a conversation's settings. A field that the person is in stays as it is. */
  show(talk) {
    this.talk = talk;
    if (document.activeElement !== $('system')) $('system').value = talk.head.system;
    for (const name of PARAMETERS) {
      if (document.activeElement !== $(name)) $(name).value = talk.head.parameters[name] ?? '';
    }
    this.showModels();
    this.showSystem();
    this.showThinking();
    this.showDefaults();
  }

  /** Shows the switch for thinking where it changes anything, and what can be attached. */
  showThinking() {
    $('think').hidden = this.thinks === undefined;
    $('think').setAttribute('aria-pressed', String(this.thinks === true));
    const kinds = this.sees ? 'pictures and text files' : 'text files';
    $('attach').title = `Attach ${kinds}`;
    $('attach').setAttribute('aria-label', $('attach').title);
    $('drop').firstElementChild.textContent = `Drop ${kinds} to attach them`;
  }

  showSystem() {
    const own = this.known.get(this.model)?.system ?? '';
    const typed = this.talk.head.system.trim();
    const text = (typed || own).trim().replace(/\s+/g, ' ');
    const short = text.length > SYSTEM_SHORT ? `${text.slice(0, SYSTEM_SHORT)}…` : text;
    $('system').placeholder = own || NO_PROMPT;
    $('system-short').textContent = typed || !own ? short || 'none' : `the model’s own: ${short}`;
  }

  showModels() {
    const names = [...this.models.keys()];
    if (names.length === 0) return;
    const wanted = this.talk?.head.model ?? '';
    // A conversation keeps its model: another one would answer otherwise, and nobody would know why.
    const isMissing = !this.models.has(wanted) && wanted !== '' && !this.talk.isEmpty;
    const options = names.map((name) => [name, name]);
    if (isMissing) options.unshift([wanted, `${wanted} (not here)`]);
    const select = $('model');
    const known = [...select.options].map((option) => [option.value, option.textContent]);
    if (JSON.stringify(known) !== JSON.stringify(options)) {
      select.replaceChildren(...options.map(([name, words]) => {
        const option = element('option', '', words);
        option.value = name;
        return option;
      }));
    }
    select.value = isMissing || this.models.has(wanted) ? wanted : names[0];
  }

  chooseModel() {
    remember(MODEL, this.model);
    this.talk.set('model', this.model);
    this.showModels();
    this.showSystem();
    this.showThinking();
    this.showDefaults();
    this.changed('model');
  }

  takeParameter(field) {
    const parameters = { ...this.talk.head.parameters };
    if (field.value !== '' && field.checkValidity()) parameters[field.id] = Number(field.value);
    else delete parameters[field.id];
    this.talk.set('parameters', parameters);
    this.showReset();
    this.changed('parameters');
  }

  reset() {
    for (const name of PARAMETERS) $(name).value = '';
    this.talk.set('parameters', {});
    this.showReset();
    this.changed('parameters');
    $(PARAMETERS[0]).focus();
  }

  showReset() {
    $('reset').disabled = PARAMETERS.every((name) => $(name).value === '' && $(name).validity.valid);
  }

  /** Shows the system prompt that the model's name brings along, and what it can do. */
  async showPrompt() {
    const name = this.model;
    if (!this.models.has(name) || this.known.has(name)) return;
    try {
      this.known.set(name, await describe(name));
    } catch {
      // The next look at the models asks again.
      return;
    }
    if (this.model !== name) return;
    this.showSystem();
    this.showThinking();
  }

  /** Puts the model's own values into the empty fields; asks for them once it is loaded. */
  async showDefaults() {
    this.showPrompt();
    const name = this.model;
    const show = (values) => {
      for (const one of PARAMETERS) $(one).placeholder = String(values?.[one] ?? WORDS[one] ?? '');
      $('defaults').textContent = values
        ? 'Empty fields take the model’s own values, which they show.'
        : 'Empty fields take the model’s own values. They are shown once the model is loaded.';
    };
    this.showReset();
    show(this.defaults.get(name));
    if (this.defaults.has(name) || !this.models.get(name)?.isLoaded) return;
    try {
      this.defaults.set(name, await modelDefaults(name));
    } catch {
      // The next look at the models asks again.
      return;
    }
    if (this.model === name) show(this.defaults.get(name));
  }

  /** The parameters that the fields name; null if one of them is out of range, which is shown. */
  parameters() {
    for (const name of PARAMETERS) {
      if ($(name).checkValidity()) continue;
      this.changed('invalid');
      $(name).reportValidity();
      return null;
    }
    return this.talk.head.parameters;
  }

  /** Asks which models there are. Whether the server answered. */
  async load() {
    let models;
    try {
      models = await listModels();
    } catch (error) {
      this.failed(error);
      return false;
    }
    this.models = new Map(models.map((model) => [model.name, model]));
    // A name may stand for something else now.
    this.defaults.clear();
    this.known.clear();
    this.showModels();
    if (this.talk) this.showSystem();
    this.showDefaults();
    return true;
  }

  /** Takes over what a look at the engines found. Whether the models have to be asked for again. */
  heard(models) {
    const engines = JSON.stringify(models.map(({ name, is_loaded: isLoaded }) => [name, isLoaded]));
    const isOther = engines !== this.engines;
    this.engines = engines;
    return isOther;
  }
}
