const MAX_EVENT_CHARS = 1 << 26;

/** An answer that is an error, or that did not come. `status` is 0 where there was no answer. */
export class ApiError extends Error {
  constructor(message, { status = 0, code = "", retryAfter = null } = {}) {
    super(message);
    Object.assign(this, { status, code, retryAfter });
  }
}

/**
 * Reads the data of server-sent events from text that comes in any pieces: HTML standard,
 * section 9.2. Other fields than `data` are skipped, the API gives them no meaning.
 */
export class EventParser {
  #line = "";
  #data = [];
  #length = 0;
  #afterReturn = false;

  /** The data of the events that `text` completes. */
  push(text) {
    if (!text) return [];
    const piece = this.#afterReturn && text[0] === "\n" ? text.slice(1) : text;
    this.#afterReturn = text.endsWith("\r");
    const lines = piece.split(/\r\n|\r|\n/);
    lines[0] = this.#line + lines[0];
    this.#line = lines.pop();
    const events = lines.map((line) => this.#take(line)).filter((event) => event !== null);
    if (this.#length + this.#line.length > MAX_EVENT_CHARS) {
      throw new ApiError("The server sent an event without end.");
    }
    return events;
  }

  /** The data of the event that a line ends, or null. */
  #take(line) {
    if (line === "") {
      const event = this.#data.length ? this.#data.join("\n") : null;
      this.#data = [];
      this.#length = 0;
      return event;
    }
    const found = /^data(?:: ?|$)/.exec(line);
    if (found) {
      this.#data.push(line.slice(found[0].length));
      this.#length += line.length;
    }
    return null;
  }
}

/** A response with a status of success. Raises ApiError for all others. */
export async function request(path, { key, headers, ...options } = {}) {
  const authorization = key ? { authorization: `Bearer ${key}` } : {};
  let response;
  try {
    response = await fetch(path, { ...options, headers: { ...headers, ...authorization } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server cannot be reached.");
  }
  if (!response.ok) throw await errorOf(response);
  return response;
}

async function errorOf(response) {
  const { status } = response;
  const retryAfter = response.headers.get("retry-after");
  const body = await response.text();
  try {
    return apiError(JSON.parse(body).error, { status, retryAfter });
  } catch {
    return new ApiError(body.slice(0, 300) || response.statusText, { status, retryAfter });
  }
}

/** The chunks of a streamed chat completion. Raises ApiError, also for an error on the way. */
export async function* streamChat(body, { key, signal }) {
  const response = await request("v1/chat/completions", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    key,
    signal,
  });
  const type = response.headers.get("content-type") ?? "";
  if (!response.body || !type.startsWith("text/event-stream")) {
    throw new ApiError("The server sent something other than a stream of events.");
  }
  for await (const data of readEvents(response.body)) {
    if (data === "[DONE]") return;
    yield chunkOf(data);
  }
  throw new ApiError("The connection ended before the answer did.");
}

async function* readEvents(body) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  const parser = new EventParser();
  try {
    for (;;) {
      const { done, value } = await reader.read().catch(brokenConnection);
      yield* parser.push(decoder.decode(value, { stream: !done }));
      if (done) return;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function brokenConnection(error) {
  if (error.name === "AbortError") throw error;
  throw new ApiError("The connection to the server broke.");
}

function chunkOf(data) {
  let chunk;
  try {
    chunk = JSON.parse(data);
  } catch {
    throw new ApiError("The server sent an event that is not JSON.");
  }
  if (chunk === null) throw new ApiError("The server sent an event that is empty.");
  if (chunk.error) throw apiError(chunk.error);
  return chunk;
}

/** What an answer has as its `error`: an object of the API, or a mere text of somebody between. */
function apiError(error, options) {
  const { message = error, code } = error;
  const text = typeof message === "string" ? message : JSON.stringify(message);
  return new ApiError(text, { ...options, code: String(code ?? "") });
}
