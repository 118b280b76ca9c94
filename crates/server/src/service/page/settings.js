// Which model is asked, with which system prompt and parameters. Fields show the model's own values.

import { describe, listModels, modelDefaults } from './api.js';
import { sizeText } from './attach.js';
import { PARAMETERS, STOPS_MAX, readParameters } from './conversation.js';
import { element } from './markdown.js';
import { remember, remembered } from './remembered.js';

const MODEL = 'trine-model';
const HABITS = 'trine-new-chats';
const THINKS = 'trine-thinks';
const THEME = 'trine-theme';
/** The value of the entry that gets a model; no model's name has a blank. */
const GET = 'get a model';
/** Letters of the instructions that their button shows. */
const SYSTEM_SHOWN = 300;
/** What stands in a field of which the model has no value of its own. */
const WORDS = { max_tokens: 'no limit', thinking_token_budget: 'no limit', seed: 'random' };

const $ = (id) => document.getElementById(id);

/** The end of a repository's name, which says nothing to people. */
const OF_REPOSITORY = /-GGUF(?=:|$)/i;

/** A short label for each of several names: without the owner, where that is enough to tell them apart. */
function labelsOf(names) {
  const brief = (name) => name.slice(name.lastIndexOf('/') + 1).replace(OF_REPOSITORY, '');
  const count = new Map();
  for (const name of names) count.set(brief(name), (count.get(brief(name)) ?? 0) + 1);
  return new Map(names.map((name) => [name, count.get(brief(name)) > 1 ? name : brief(name)]));
}

export class Settings {
  /** `changed` is called with the name of what the person set, `failed` with errors of the server. */
  constructor({ changed, failed }) {
    Object.assign(this, { changed, failed });
    this.models = new Map();
    this.defaults = new Map();
    /** Whether the server lets the page get models. */
    this.canGet = false;
    /** System prompts that names bring along, and what their models can. */
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
    $('parameters').addEventListener('focusout', (event) => this.showValidity(event.target));
    for (const field of $('parameters').querySelectorAll('input, textarea')) {
      const hint = field.nextElementSibling;
      hint.id = `${field.id}-hint`;
      hint.dataset.words = hint.textContent;
      field.setAttribute('aria-describedby', hint.id);
    }
    this.showTheme(remembered(THEME) ?? '');
    $('theme').addEventListener('change', () => {
      remember(THEME, $('theme').value);
      this.showTheme($('theme').value);
    });
    $('reset').addEventListener('click', () => this.reset());
    $('habits').addEventListener('click', () => {
      const { system, parameters } = this.talk.head;
      remember(HABITS, JSON.stringify({ system, parameters }));
      changed('habits');
    });
  }

  /** The colours that the person wants; the system's if that is empty. */
  showTheme(name) {
    $('theme').value = name;
    document.documentElement.dataset.theme = $('theme').value;
  }

  /** The name of the model that is asked. */
  get model() {
    return $('model').value;
  }

  /** The name of a model in the list: a chat may have the longer one that it had before. */
  resolve(name) {
    if (this.models.has(name)) return name;
    return [...this.models.values()].find((model) => model.engine === name)?.name ?? name;
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

  /** `thinks`, `sees` and `chats` of any conversation and model. Waits for the server to say what the model can. */
  async abilitiesOf(talk, model, signal) {
    const wanted = talk.head.thinks === true;
    if (!model) return {};
    try {
      const { thinks, sees, chats } = this.known.get(this.resolve(model)) ?? await describe(model, signal);
      return { thinks: thinks ? wanted : undefined, sees, chats };
    } catch {
      // The request for the answer fails too, and says why.
      return {};
    }
  }

  /** Whether the model takes pictures; undefined if that is not known yet. */
  get sees() {
    return this.known.get(this.model)?.sees;
  }

  /** Whether the model was trained to chat; undefined if that is not known yet. */
  get chats() {
    return this.known.get(this.model)?.chats;
  }

  contextOf(name) {
    return this.models.get(this.resolve(name))?.context ?? null;
  }

  /** What a new conversation begins with. */
  habits() {
    const head = { model: remembered(MODEL) ?? '', thinks: remembered(THINKS) === 'true' };
    try {
      const { system, parameters } = JSON.parse(remembered(HABITS) ?? '{}');
      if (typeof system === 'string') head.system = system;
      head.parameters = readParameters(parameters);
    } catch { /* as if there were none */ }
    return head;
  }

  /** Shows a conversation's settings. A field that the person is in stays as it is. */
  show(talk) {
    this.talk = talk;
    if (document.activeElement !== $('system')) $('system').value = talk.head.system;
    for (const name of PARAMETERS) {
      if (document.activeElement === $(name)) continue;
      $(name).value = talk.head.parameters[name] ?? '';
      this.showValidity($(name));
    }
    if (document.activeElement !== $('stops')) $('stops').value = (talk.head.parameters.stop ?? []).join('\n');
    this.showModels();
    this.showSystem();
    this.showThinking();
    this.showDefaults();
  }

  /** Shows the switch for thinking where it changes anything, and what can be attached. */
  showThinking() {
    $('think').hidden = this.thinks === undefined;
    $('think').setAttribute('aria-pressed', String(this.thinks === true));
    $('thinking-field').hidden = this.thinks === undefined;
    const kinds = this.sees ? 'images and text files' : 'text files';
    $('attach').title = `Attach ${kinds}`;
    $('drop').firstElementChild.textContent = `Drop ${kinds} to attach them`;
  }

  showSystem() {
    const own = this.known.get(this.model)?.system ?? '';
    $('system').placeholder = own || 'none';
    const text = this.talk.head.system.trim() || own;
    $('instructions').hidden = text === '';
    $('instructions').title = text.slice(0, SYSTEM_SHOWN);
    $('add-instructions').hidden = text !== '';
  }

  showModels() {
    const names = [...this.models.keys()];
    if (names.length === 0) return;
    const wanted = this.resolve(this.talk?.head.model ?? '');
    // A conversation keeps its model: another one would answer otherwise, and nobody would know why.
    const isMissing = !this.models.has(wanted) && wanted !== '' && !this.talk.isEmpty;
    const labels = labelsOf(names);
    const sizeOf = ({ bytes }) => (bytes ? ` · ${sizeText(bytes)}` : '');
    const options = names.map((name) => [name, `${labels.get(name)}${sizeOf(this.models.get(name))}`]);
    if (isMissing) options.unshift([wanted, `${wanted} (not here)`]);
    if (this.canGet) options.push([GET, 'Get a model …']);
    const select = $('model');
    const known = [...select.options].map((option) => [option.value, option.textContent]);
    if (JSON.stringify(known) !== JSON.stringify(options)) {
      select.replaceChildren(...options.map(([name, words]) => {
        const option = element('option', '', words);
        option.value = name;
        option.title = this.models.get(name)?.engine ?? '';
        return option;
      }));
    }
    select.value = isMissing || this.models.has(wanted) ? wanted : names[0];
    select.title = this.models.get(select.value)?.engine ?? '';
  }

  /** Chooses a model of the list. */
  use(name) {
    if (!this.models.has(name)) return;
    $('model').value = name;
    this.chooseModel();
  }

  chooseModel() {
    if (this.model === GET) {
      this.showModels();
      this.changed('get');
      return;
    }
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
    if (field === $('stops')) {
      const stops = field.value.split('\n').filter((line) => line !== '').slice(0, STOPS_MAX);
      delete parameters.stop;
      if (stops.length > 0) parameters.stop = stops;
    } else if (field.value !== '' && field.checkValidity()) parameters[field.id] = Number(field.value);
    else delete parameters[field.id];
    this.talk.set('parameters', parameters);
    if (field.validity.valid) this.showValidity(field);
    this.showReset();
    this.changed('parameters');
  }

  /** Says below a field what is wrong with its value. */
  showValidity(field) {
    const hint = $(`${field.id}-hint`);
    if (!hint) return;
    const isValid = field.validity.valid;
    hint.textContent = isValid ? hint.dataset.words : field.validationMessage;
    hint.classList.toggle('wrong', !isValid);
    if (isValid) field.removeAttribute('aria-invalid');
    else field.setAttribute('aria-invalid', 'true');
  }

  reset() {
    $('stops').value = '';
    for (const name of PARAMETERS) {
      $(name).value = '';
      this.showValidity($(name));
    }
    this.talk.set('parameters', {});
    this.showReset();
    this.changed('parameters');
    $(PARAMETERS[0]).focus();
  }

  showReset() {
    $('reset').disabled = $('stops').value === '' && PARAMETERS.every((name) => $(name).value === '' && $(name).validity.valid);
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
    this.changed('known');
  }

  /** Puts the model's own values into the empty fields; asks for them once it is loaded. */
  async showDefaults() {
    this.showPrompt();
    const name = this.model;
    const show = (values) => {
      for (const one of PARAMETERS) $(one).placeholder = String(values?.[one] ?? WORDS[one] ?? '');
      $('defaults').textContent = values
        ? 'Leave blank to use the model’s default, shown in grey.'
        : 'Leave blank to use the model’s default. It is shown in grey once the model is loaded.';
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
      this.showValidity($(name));
      const folded = $(name).closest('details');
      if (folded) folded.open = true;
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
  heard({ models, can_pull: canGet }) {
    if (canGet !== this.canGet) {
      this.canGet = canGet;
      this.showModels();
      this.changed('known');
    }
    const engines = JSON.stringify(models.map(({ name, is_loaded: isLoaded }) => [name, isLoaded]));
    const isOther = engines !== this.engines;
    this.engines = engines;
    return isOther;
  }
}
