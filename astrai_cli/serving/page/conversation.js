import { newAnswer } from "./answer.js";

const MAX_MESSAGES = 16384;
const MAX_TITLE = 80;
const IMAGE = /^data:image\/(?:png|jpeg);base64,[A-Za-z0-9+/]+={0,2}$/;

/** What the parameters panel holds, as its fields have it: text, and empty for the default. */
export const DEFAULT_SETTINGS = {
  model: "",
  system: "",
  tools: "",
  temperature: "",
  top_p: "",
  top_k: "",
  min_p: "",
  max_tokens: "",
  seed: "",
  stop: "",
  reasoning_effort: "",
};
const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"];

export function newConversation(settings) {
  const now = Date.now();
  return { id: newId(), title: "", created: now, updated: now, settings, messages: [] };
}

export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** What to call a conversation that nobody gave a title: its first words. */
export function titleOf({ title, messages }) {
  const first = title || messages.find(({ role }) => role === "user")?.text || "";
  const [line] = first.trim().split("\n");
  if (line) return line.length > MAX_TITLE ? `${line.slice(0, MAX_TITLE - 1)}…` : line;
  return messages.length ? "An image" : "New conversation";
}

/** The calls of the last answer that have no result yet. */
export function pendingCalls({ messages }) {
  const index = messages.findLastIndex(({ role }) => role === "assistant");
  if (index < 0) return [];
  const later = messages.slice(index + 1);
  if (later.some(({ role }) => role === "user")) return [];
  const answered = new Set(later.map(({ callId }) => callId));
  return messages[index].calls.filter(({ id }) => !answered.has(id));
}

/** The body of the request that a conversation asks with. */
export function requestBody({ settings, messages }) {
  const body = { messages: messages.flatMap(toApi) };
  if (settings.system.trim()) body.messages.unshift({ role: "system", content: settings.system });
  if (settings.model) body.model = settings.model;
  for (const name of NUMBERS) {
    if (settings[name] !== "") body[name] = Number(settings[name]);
  }
  const stops = settings.stop.split("\n").filter(Boolean);
  if (stops.length) body.stop = stops;
  if (settings.reasoning_effort) body.reasoning_effort = settings.reasoning_effort;
  if (settings.tools.trim()) body.tools = JSON.parse(settings.tools);
  return body;
}

/** A message as the API has it; an answer that nothing came of is none. */
function toApi(message) {
  switch (message.role) {
    case "user":
      return [{ role: "user", content: userContent(message) }];
    case "tool":
      return [{ role: "tool", tool_call_id: message.callId, content: message.text }];
    default: {
      const { text, reasoning, calls } = message;
      if (!text && !reasoning && !calls.length) return [];
      const answer = { role: "assistant", content: text || null };
      if (reasoning) answer.reasoning_content = reasoning;
      if (calls.length) answer.tool_calls = calls.map(callToApi);
      return [answer];
    }
  }
}

function userContent({ text, images }) {
  if (!images.length) return text;
  const parts = images.map((url) => ({ type: "image_url", image_url: { url } }));
  return text ? [...parts, { type: "text", text }] : parts;
}

const callToApi = ({ id, name, arguments: text }) => ({
  id,
  type: "function",
  function: { name, arguments: text },
});

/** A conversation from a file, made anew of what is known; raises TypeError where it is none. */
export function checkedConversation(value) {
  const { title, created, updated, settings, messages } = value;
  if (!Array.isArray(messages) || messages.length > MAX_MESSAGES) {
    throw new TypeError("a conversation has no list of messages");
  }
  const names = Object.keys(DEFAULT_SETTINGS);
  return {
    id: newId(),
    title: textOf(title).slice(0, MAX_TITLE),
    created: numberOf(created) ?? Date.now(),
    updated: numberOf(updated) ?? Date.now(),
    settings: Object.fromEntries(names.map((name) => [name, textOf(settings?.[name])])),
    messages: messages.map((each) => checkedMessage(each ?? {})),
  };
}

function checkedMessage(message) {
  switch (message.role) {
    case "user":
      return { role: "user", text: textOf(message.text), images: listOf(message.images).map(imageOf) };
    case "tool":
      return { role: "tool", callId: textOf(message.callId), text: textOf(message.text) };
    case "assistant":
      return checkedAnswer(message);
    default:
      throw new TypeError("a message has no known role");
  }
}

function checkedAnswer({ model, usage, times, error, ...message }) {
  const calls = listOf(message.calls).map((call) => ({
    id: textOf(call?.id),
    name: textOf(call?.name),
    arguments: textOf(call?.arguments),
  }));
  return {
    ...newAnswer(textOf(model)),
    text: textOf(message.text),
    reasoning: textOf(message.reasoning),
    calls,
    finish: textOf(message.finish),
    usage: usage
      ? {
          prompt: numberOf(usage.prompt) ?? 0,
          completion: numberOf(usage.completion) ?? 0,
          cached: numberOf(usage.cached) ?? 0,
        }
      : null,
    times: {
      first: numberOf(times?.first),
      reasoning: numberOf(times?.reasoning),
      total: numberOf(times?.total),
    },
    error: error
      ? { title: textOf(error.title), message: textOf(error.message), hint: textOf(error.hint) }
      : null,
  };
}

const listOf = (value) => {
  if (value === undefined) return [];
  if (!Array.isArray(value) || value.length > MAX_MESSAGES) throw new TypeError("not a list");
  return value;
};

const textOf = (value) => {
  if (value === undefined) return "";
  if (typeof value !== "string") throw new TypeError("a text is not one");
  return value;
};

const numberOf = (value) => (Number.isFinite(value) ? value : null);

const imageOf = (value) => {
  if (!IMAGE.test(textOf(value))) throw new TypeError("an image is not an inline PNG or JPEG");
  return value;
};
