// The AI SDK with its provider for OpenAI-compatible servers.

import assert from "node:assert/strict";
import test from "node:test";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";
import { BLUE_PNG, SERVER, WEATHER } from "./server.js";

const provider = createOpenAICompatible({ name: "astrai", baseURL: `${SERVER}/v1`, includeUsage: true });
const DEFAULTS = { model: provider("astrai"), temperature: 0, maxOutputTokens: 96, maxRetries: 0 };
const LOW = { providerOptions: { astrai: { reasoningEffort: "low" } } };

test("a streamed answer is the whole one", async () => {
  const whole = await generateText({ ...DEFAULTS, prompt: "Say hello." });
  const stream = streamText({ ...DEFAULTS, prompt: "Say hello." });
  assert.equal(await stream.text, whole.text);
  assert.equal(await stream.reasoningText, whole.reasoningText);
  assert.equal(await stream.finishReason, "stop");
  assert.equal((await stream.usage).outputTokens, whole.usage.outputTokens);
  assert.ok(whole.text);
});

test("a tool is run and the loop goes on", async () => {
  const asked = [];
  const { text } = await generateText({
    ...DEFAULTS,
    ...LOW,
    prompt: "Weather in Paris, please.",
    stopWhen: stepCountIs(3),
    tools: {
      get_weather: tool({
        description: WEATHER.description,
        inputSchema: jsonSchema(WEATHER.parameters),
        execute: async ({ city }) => {
          asked.push(city);
          return "sunny, 8 degrees";
        },
      }),
    },
  });
  assert.equal(asked.length, 1);
  assert.match(text, /sunny/);
});

test("an image is seen", async () => {
  const content = [
    { type: "text", text: "What colour is this image? " },
    { type: "image", image: BLUE_PNG, mediaType: "image/png" },
  ];
  const { text } = await generateText({ ...DEFAULTS, ...LOW, messages: [{ role: "user", content }] });
  assert.match(text, /blue/);
});

test("an error tells its status and its words", async () => {
  await assert.rejects(generateText({ ...DEFAULTS, temperature: 3, prompt: "hi" }), (error) => {
    assert.ok(APICallError.isInstance(error));
    assert.equal(error.statusCode, 400);
    assert.match(error.message, /temperature/);
    return true;
  });
});
