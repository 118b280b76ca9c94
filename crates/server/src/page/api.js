// Requests to the server: the key, errors, and the stream of an answer.

const KEY = 'trine-key';

/** What went wrong with a request, in words for people. */
export class RequestError extends Error {
  constructor(message, status, id) {
    super(message);
    this.status = status;
    this.id = id;
  }
}

/** Keeps the key until the tab is closed. */
export function setKey(key) {
  sessionStorage.setItem(KEY, key);
}

/** Asks the server. Throws a RequestError unless the status is a success. Paths are relative to the page's own. */
export async function ask(path, options = {}) {
  const headers = { ...options.headers };
  const key = sessionStorage.getItem(KEY);
  if (key) headers.Authorization = `Bearer ${key}`;
  let response;
  try {
    response = await fetch(path, { cache: 'no-store', ...options, headers });
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new RequestError('The server cannot be reached.', 0, null);
  }
  if (response.ok) return response;
  const id = response.headers.get('x-request-id');
  let message = `The server answered with status ${response.status}.`;
  try {
    const body = await response.json();
    if (typeof body.error?.message === 'string') message = body.error.message;
  } catch { /* the status has to do */ }
  throw new RequestError(message, response.status, id);
}

/** The JSON of an answer. */
export async function askJson(path, options) {
  return (await ask(path, options)).json();
}

/** The data of server-sent events, in order. Events end with an empty line; lines that begin with a colon are comments. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  let data = [];
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split('\n');
      rest = lines.pop();
      for (const ended of lines) {
        const line = ended.endsWith('\r') ? ended.slice(0, -1) : ended;
        if (line === '' && data.length > 0) {
          yield data.join('\n');
          data = [];
        } else if (line.startsWith('data:')) {
          data.push(line.slice(line.startsWith('data: ') ? 6 : 5));
        }
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/**
 * Streams the answer to a chat. Yields {text, usage, reason}, each absent where a chunk has none. Aborting the signal
 * closes the connection, and by that ends the work in the engine.
 */
export async function* streamChat(body, signal) {
  const response = await ask('v1/chat/completions', {
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
  for await (const data of events(response.body)) {
    if (data === '[DONE]') return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new RequestError(String(chunk.error.message ?? 'The answer failed.'), 0, id);
    const choice = chunk.choices?.[0];
    yield { text: choice?.delta?.content, usage: chunk.usage, reason: choice?.finish_reason };
  }
  throw new RequestError('The answer broke off: the connection ended before the answer did.', 0, id);
}
