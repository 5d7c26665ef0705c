// What every client's tests ask of the server under test, a small Muse Glimmer that knows
// tools, reasoning and colours.

import { readFileSync } from "node:fs";

export const SERVER = process.env.ASTRAI_TEST_URL;

export const BLUE_PNG = readFileSync(process.env.ASTRAI_TEST_IMAGE).toString("base64");

export const WEATHER = {
  name: "get_weather",
  description: "Weather of a city",
  parameters: {
    type: "object",
    properties: { city: { type: "string" }, days: { type: "integer" } },
    required: ["city"],
  },
};
