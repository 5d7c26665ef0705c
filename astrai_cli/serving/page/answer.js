/** An answer of the model, before anything of it has come. Times are milliseconds. */
export function newAnswer(model) {
  return {
    role: "assistant",
    model,
    text: "",
    reasoning: "",
    calls: [],
    finish: "",
    usage: null,
    times: { first: null, reasoning: null, total: null },
    error: null,
  };
}

/** Adds a chunk of a stream to an answer that was asked for `elapsed` milliseconds ago. */
export function addChunk(answer, chunk, elapsed) {
  if (chunk.usage) answer.usage = usageOf(chunk.usage);
  const [choice] = chunk.choices ?? [];
  if (!choice) return;
  const { content, reasoning_content: reasoning, tool_calls: calls } = choice.delta ?? {};
  if (content || reasoning || calls?.length) answer.times.first ??= elapsed;
  answer.reasoning += reasoning ?? "";
  answer.text += content ?? "";
  for (const call of calls ?? []) addCall(answer.calls, call);
  if (answer.reasoning && !answer.times.reasoning && (content || calls || choice.finish_reason)) {
    answer.times.reasoning = elapsed - answer.times.first;
  }
  if (choice.finish_reason) answer.finish = choice.finish_reason;
}

function addCall(calls, delta) {
  const index = delta.index ?? calls.length;
  calls[index] ??= { id: "", name: "", arguments: "" };
  calls[index].id ||= delta.id ?? "";
  calls[index].name += delta.function?.name ?? "";
  calls[index].arguments += delta.function?.arguments ?? "";
}

function usageOf(usage) {
  return {
    prompt: usage.prompt_tokens,
    completion: usage.completion_tokens,
    cached: usage.prompt_tokens_details?.cached_tokens ?? 0,
  };
}

/** Whether the model still thinks, as far as can be seen. */
export const isThinking = (answer) => Boolean(answer.reasoning) && answer.times.reasoning === null;

/** Sizes and speed of an answer in words, for the line below it; empty where unknown. */
export function describeSpeed({ usage, times }) {
  if (!usage) return "";
  const parts = [`${count(usage.completion, "token")}`];
  // The first token's time is that of the prompt.
  const seconds = (times.total - times.first) / 1000;
  if (times.first !== null && usage.completion > 1 && seconds > 0) {
    parts.push(`${rounded((usage.completion - 1) / seconds)} tokens/s`);
  }
  if (times.first !== null) parts.push(`first after ${describeTime(times.first)}`);
  const cached = usage.cached ? `, ${usage.cached} of them cached` : "";
  parts.push(`prompt ${count(usage.prompt, "token")}${cached}`);
  return parts.join(" · ");
}

export const describeTime = (milliseconds) => `${rounded(milliseconds / 1000)} s`;

/** What an answer that failed says of the error: an ApiError, in words. */
export function describeError({ message, status, code, retryAfter }) {
  const kind = status < 500 ? "The server refused" : "The server failed";
  const title = status ? `${kind}: ${status} ${code}`.trim() : "The answer failed";
  return { title, message, hint: hintOf(message, status, retryAfter) };
}

function hintOf(message, status, retryAfter) {
  if (retryAfter) return `The server asks to wait ${retryAfter} s.`;
  if (status === 413) return "Send less: a smaller image, or a shorter conversation.";
  if (/\bimages?\b/.test(message)) {
    return (
      "A conversation may have one image, if the model sees any. " +
      "Edit a message to leave its image out, or begin a new conversation."
    );
  }
  return "";
}

const count = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;
const rounded = (number) => number.toFixed(number < 1 ? 2 : number < 100 ? 1 : 0);
