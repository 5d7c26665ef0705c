// The official OpenAI client.

import assert from "node:assert/strict";
import test from "node:test";
import OpenAI from "openai";
import { BLUE_PNG, SERVER, WEATHER } from "./server.js";

const client = new OpenAI({ baseURL: `${SERVER}/v1`, apiKey: "none", maxRetries: 0 });
const DEFAULTS = { model: "astrai", temperature: 0, max_completion_tokens: 96 };
const HELLO = [{ role: "user", content: "Say hello." }];
const TOOLS = [{ type: "function", function: WEATHER }];

const ask = (messages, options = {}) =>
  client.chat.completions.create({ ...DEFAULTS, messages, ...options });

test("a streamed answer is the whole one", async () => {
  const whole = await ask(HELLO);
  const stream = await ask(HELLO, { stream: true, stream_options: { include_usage: true } });
  let content = "";
  let usage = null;
  for await (const chunk of stream) {
    content += chunk.choices[0]?.delta.content ?? "";
    usage = chunk.usage ?? usage;
  }
  assert.equal(content, whole.choices[0].message.content);
  assert.equal(usage.completion_tokens, whole.usage.completion_tokens);
  assert.equal(whole.choices[0].finish_reason, "stop");
  assert.match(whole._request_id, /^req_/);
});

test("a tool is called, and its result used", async () => {
  const chat = [{ role: "user", content: "Weather in Paris, please." }];
  const options = { tools: TOOLS, reasoning_effort: "low" };
  const { message, finish_reason: reason } = (await ask(chat, options)).choices[0];
  assert.equal(reason, "tool_calls");
  const [call] = message.tool_calls;
  assert.equal(call.function.name, "get_weather");
  assert.equal(typeof JSON.parse(call.function.arguments).city, "string");
  chat.push(message, { role: "tool", tool_call_id: call.id, content: "sunny, 8 degrees" });
  assert.match((await ask(chat, options)).choices[0].message.content, /sunny/);
});

test("the stream helper adds tool calls up", async () => {
  const runner = client.chat.completions.stream({
    ...DEFAULTS,
    messages: [{ role: "user", content: "Weather in Paris, please." }],
    tools: TOOLS,
    reasoning_effort: "low",
  });
  const { choices } = await runner.finalChatCompletion();
  assert.equal(choices[0].message.tool_calls[0].function.name, "get_weather");
});

test("an image is seen", async () => {
  const url = `data:image/png;base64,${BLUE_PNG}`;
  const content = [
    { type: "text", text: "What colour is this image? " },
    { type: "image_url", image_url: { url } },
  ];
  const answer = await ask([{ role: "user", content }], { reasoning_effort: "low" });
  assert.match(answer.choices[0].message.content, /blue/);
});

test("errors have their class, code and parameter", async () => {
  await assert.rejects(ask(HELLO, { temperature: 3 }), (error) => {
    assert.ok(error instanceof OpenAI.BadRequestError);
    assert.deepEqual([error.status, error.code, error.param], [400, "invalid_value", "temperature"]);
    return true;
  });
  await assert.rejects(ask(HELLO, { model: "another" }), OpenAI.NotFoundError);
  await assert.rejects(ask([]), OpenAI.BadRequestError);
  await assert.rejects(ask("hello"), OpenAI.UnprocessableEntityError);
});

test("a client that runs out of patience, and one that leaves", async () => {
  const endless = { ignore_eos: true, max_completion_tokens: 900 };
  const hurried = client.withOptions({ timeout: 50 });
  await assert.rejects(
    hurried.chat.completions.create({ ...DEFAULTS, messages: HELLO, ...endless }),
    OpenAI.APIConnectionTimeoutError,
  );
  const stream = await ask(HELLO, { ...endless, stream: true });
  for await (const chunk of stream) {
    assert.equal(chunk.object, "chat.completion.chunk");
    break;
  }
  assert.ok((await ask(HELLO)).choices[0].message.content);
});

test("models, old completions and responses", async () => {
  const { data } = await client.models.list();
  assert.equal((await client.models.retrieve(data[0].id)).object, "model");
  const text = await client.completions.create({ model: "astrai", prompt: "Hello", max_tokens: 4 });
  assert.equal(text.object, "text_completion");
  assert.equal(text.usage.completion_tokens, 4);
  const asked = { model: "astrai", input: "Say hello.", temperature: 0, store: false };
  const response = await client.responses.create(asked);
  assert.equal(response.status, "completed");
  const streamed = await client.responses.stream(asked).finalResponse();
  assert.equal(streamed.output_text, response.output_text);
});
