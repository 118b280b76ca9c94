// Requests to the server: the key, errors, and the stream of an answer.

const KEY = 'trine-key';

/** What went wrong with a request, in words for people. */
export class RequestError extends Error {
  /** `status` is 0 if there was no answer; `code` is the server's name for the error, or 'unreachable' or 'broken'. */
  constructor(message, status, code, id) {
    super(message);
    this.status = status;
    this.code = code;
    this.id = id;
    this.key = givenKey();
  }

  /** Whether another key was given since: the error says nothing about that one. */
  get isOfOldKey() {
    return this.key !== givenKey();
  }
}

/** The key where the browser keeps nothing for the page. */
let loneKey = null;

/** Keeps the key until the tab is closed. */
export function setKey(key) {
  loneKey = key;
  try {
    sessionStorage.setItem(KEY, key);
  } catch { /* then a reload asks for it again */ }
}

function givenKey() {
  try {
    return sessionStorage.getItem(KEY) ?? loneKey;
  } catch {
    return loneKey;
  }
}

/** Whether a key was given in this tab. */
export function hasKey() {
  return givenKey() !== null;
}

function unreachable() {
  const message = `The server at ${location.host} cannot be reached. Is it still running?`;
  return new RequestError(message, 0, 'unreachable', null);
}

/** Asks the server. Throws a RequestError unless the status is a success. Paths are relative to the page's own. */
export async function ask(path, options = {}) {
  const headers = { ...options.headers };
  const key = givenKey();
  if (key) headers.Authorization = `Bearer ${key}`;
  let response;
  try {
    response = await fetch(path, { cache: 'no-store', ...options, headers });
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw unreachable();
  }
  if (response.ok) return response;
  const id = response.headers.get('x-request-id');
  let message = `The server answered with status ${response.status}.`;
  let code = '';
  try {
    const body = await response.json();
    // Ollama's paths give the text alone.
    const told = body.error?.message ?? body.error;
    if (typeof told === 'string') message = sentence(told);
    if (typeof body.error?.code === 'string') code = body.error.code;
  } catch { /* the status has to do */ }
  const error = new RequestError(message + remedy(response.status, code), response.status, code, id);
  error.key = key;
  throw error;
}

/** A message of the server as a sentence. Addresses, names and fields at its beginning stay what they are. */
function sentence(text) {
  const whole = /[.!?…]$/.test(text) ? text : `${text}.`;
  return /^\p{Ll}+(?=[\s,;]|: )/u.test(whole) ? whole.charAt(0).toUpperCase() + whole.slice(1) : whole;
}

/** What a person can do, where the server's message does not say it. */
function remedy(status, code) {
  if (code === 'model_not_found') return ' Choose another model at the top.';
  if (status === 413) return ' Shorten the message or attach less.';
  if (status === 503) return ' Try again in a moment.';
  if (status >= 500) return ' Try again; if it stays so, the server’s log says more.';
  return '';
}

/** The JSON of an answer. */
export async function askJson(path, options) {
  const response = await ask(path, options);
  try {
    return await response.json();
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw unreachable();
  }
}

/** The JSON of an answer to a JSON body. */
export function askWith(path, body, signal) {
  const headers = { 'Content-Type': 'application/json' };
  return askJson(path, { method: 'POST', headers, body: JSON.stringify(body), signal });
}

/** The lines of a body as they come. */
async function* linesOf(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split('\n');
      rest = lines.pop();
      for (const line of lines) yield line.endsWith('\r') ? line.slice(0, -1) : line;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** The data of server-sent events, in order. Events end with an empty line; lines that begin with a colon are comments. */
async function* events(body) {
  let data = [];
  for await (const line of linesOf(body)) {
    if (line === '' && data.length > 0) {
      yield data.join('\n');
      data = [];
    } else if (line.startsWith('data:')) {
      data.push(line.slice(line.startsWith('data: ') ? 6 : 5));
    }
  }
}

/**
 * Fetches a model. Yields the lines of Ollama's API: {status, digest, completed, total} or {error}. Aborting the signal ends the
 * download, and the next one goes on with it.
 */
export async function* pull(model, signal) {
  const headers = { 'Content-Type': 'application/json' };
  const response = await ask('api/pull', { method: 'POST', headers, body: JSON.stringify({ model }), signal });
  try {
    for await (const line of linesOf(response.body)) if (line !== '') yield JSON.parse(line);
  } catch (error) {
    if (signal.aborted || error instanceof RequestError) throw error;
    throw unreachable();
  }
}

/** The models that can be pulled, with what fits this machine; how fast they are only if somebody had it measured. */
export function catalog(measure) {
  return askJson(`v1/trine/catalog?measure=${measure}`);
}

/**
 * Streams the answer to a chat, or the continuation of a text if the body has a prompt. Yields {text, thought, usage, reason}, each absent where a chunk has none. Aborting the signal
 * closes the connection, and by that ends the work in the engine.
 */
export async function* streamChat(body, signal) {
  const response = await ask(body.prompt === undefined ? 'v1/chat/completions' : 'v1/completions', {
    method: 'POST',
    headers: { 'Content-Type': 'application/json' },
    body: JSON.stringify({
      ...body,
      stream: true,
      stream_options: { include_usage: true, continuous_usage_stats: true },
    }),
    signal,
  });
  const id = response.headers.get('x-request-id');
  const broken = () => {
    const message = 'The connection ended before the answer did. Is the server still running?';
    return new RequestError(message, 0, 'broken', id);
  };
  const stream = events(response.body);
  for (;;) {
    let next;
    try {
      next = await stream.next();
    } catch (error) {
      if (signal.aborted) throw error;
      throw broken();
    }
    if (next.done) throw broken();
    if (next.value === '[DONE]') return;
    const chunk = JSON.parse(next.value);
    if (chunk.error) {
      const { message, code } = chunk.error;
      throw new RequestError(sentence(String(message ?? 'The answer failed')), 0, String(code ?? ''), id);
    }
    const choice = chunk.choices?.[0];
    const { content, reasoning_content: thought } = choice?.delta ?? {};
    yield { text: content ?? choice?.text, thought, usage: chunk.usage, reason: choice?.finish_reason };
  }
}

/** The models' names with what is known of each: the engine that runs it, its size, its context, and whether it is loaded. */
export async function listModels() {
  const models = (await askJson('v1/models')).data;
  return models.map((model) => ({
    name: model.id,
    engine: model.root ?? model.id,
    bytes: model.meta?.size ?? null,
    context: model.max_model_len ?? null,
    isLoaded: model.status?.value === 'loaded',
  }));
}

/**
 * The system prompt that a name brings along, empty for most, whether its model can think and takes images, and whether it was
 * trained to chat: base models have no template for it.
 */
export async function describe(name, signal) {
  const { system, template, capabilities } = await askWith('api/show', { model: name }, signal);
  const can = (what) => capabilities?.includes(what) === true;
  return { system: typeof system === 'string' ? system : '', thinks: can('thinking'), sees: can('vision'), chats: template !== '' };
}

/** What a loaded model samples with if nothing is said: numbers by name. */
export async function modelDefaults(name) {
  const props = await askJson(`props?model=${encodeURIComponent(name)}`);
  const given = props.default_generation_settings?.params ?? {};
  // -1 means no seed or no bound.
  const isNone = (key, value) => ['seed', 'max_tokens'].includes(key) && value < 0;
  const numbers = Object.entries(given).filter(([key, value]) => Number.isFinite(value) && !isNone(key, value));
  // The server's numbers have 32 bits: 0.7 comes as 0.699999988.
  return Object.fromEntries(numbers.map(([key, value]) => [key, Number(value.toPrecision(6))]));
}

/** How many tokens a conversation's prompt has; null if the server cannot say. Loads the model if need be. */
export async function countTokens(messages, model, signal) {
  try {
    const answer = await askWith('tokenize', { messages, model }, signal);
    return Number.isInteger(answer.count) ? answer.count : null;
  } catch (error) {
    // Refused, for its length or its form: the answer's own request tells which.
    if (error instanceof RequestError && error.status >= 400 && error.status < 500 && error.status !== 401) return null;
    throw error;
  }
}
