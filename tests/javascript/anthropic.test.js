// The official Anthropic client.

import assert from "node:assert/strict";
import test from "node:test";
import Anthropic from "@anthropic-ai/sdk";
import { BLUE_PNG, SERVER, WEATHER } from "./server.js";

const client = new Anthropic({ baseURL: SERVER, apiKey: "none", maxRetries: 0 });
const DEFAULTS = { model: "astrai", temperature: 0, max_tokens: 96 };
const HELLO = [{ role: "user", content: "Say hello." }];
const { parameters, ...named } = WEATHER;
const TOOLS = [{ ...named, input_schema: parameters }];

const ask = (messages, options = {}) =>
  client.messages.create({ ...DEFAULTS, messages, ...options });
const textOf = (message) => message.content.find((block) => block.type === "text")?.text;

test("a streamed message is the whole one", async () => {
  const whole = await ask(HELLO);
  const streamed = await client.messages
    .stream({ ...DEFAULTS, messages: HELLO })
    .finalMessage();
  assert.deepEqual(streamed.content, whole.content);
  assert.equal(streamed.stop_reason, "end_turn");
  assert.equal(streamed.usage.output_tokens, whole.usage.output_tokens);
  assert.ok(textOf(whole));
});

test("tokens are counted as they are used", async () => {
  const { usage } = await ask(HELLO, { tools: TOOLS, system: "Be brief." });
  const counted = await client.messages.countTokens({
    model: "astrai",
    messages: HELLO,
    tools: TOOLS,
    system: "Be brief.",
  });
  assert.equal(counted.input_tokens, usage.input_tokens + usage.cache_read_input_tokens);
});

test("a tool is used, and its result too", async () => {
  const chat = [{ role: "user", content: "Weather in Paris, please." }];
  const options = { tools: TOOLS, output_config: { effort: "low" } };
  const message = await ask(chat, options);
  assert.equal(message.stop_reason, "tool_use");
  const use = message.content.find((block) => block.type === "tool_use");
  assert.equal(use.name, "get_weather");
  assert.equal(typeof use.input.city, "string");
  const result = { type: "tool_result", tool_use_id: use.id, content: "sunny, 8 degrees" };
  chat.push({ role: "assistant", content: message.content }, { role: "user", content: [result] });
  assert.match(textOf(await ask(chat, options)), /sunny/);
});

test("an image is seen", async () => {
  const source = { type: "base64", media_type: "image/png", data: BLUE_PNG };
  const content = [
    { type: "text", text: "What colour is this image? " },
    { type: "image", source },
  ];
  const message = await ask([{ role: "user", content }], { output_config: { effort: "low" } });
  assert.match(textOf(message), /blue/);
});

test("errors have their class and type", async () => {
  await assert.rejects(ask(HELLO, { temperature: 3 }), (error) => {
    assert.ok(error instanceof Anthropic.BadRequestError);
    assert.equal(error.type, "invalid_request_error");
    return true;
  });
  await assert.rejects(ask(HELLO, { model: "another" }), Anthropic.NotFoundError);
});

test("a client that leaves", async () => {
  const stream = client.messages.stream({ ...DEFAULTS, messages: HELLO });
  for await (const event of stream) {
    assert.equal(event.type, "message_start");
    break;
  }
  assert.ok(textOf(await ask(HELLO)));
});
