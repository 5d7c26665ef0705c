import { byId, element } from "./dom.js";
import { DEFAULT_SETTINGS } from "./conversation.js";

const EXAMPLE_TOOLS = [
  {
    type: "function",
    function: {
      name: "get_weather",
      description: "Weather of a city",
      parameters: {
        type: "object",
        properties: { city: { type: "string" }, days: { type: "integer" } },
        required: ["city"],
      },
    },
  },
];

/** The panel of a conversation's settings. Every field of its form is one of them. */
export class ParametersPanel {
  #form = byId("parameters-form");
  #settings = { ...DEFAULT_SETTINGS };
  #onChange;
  #onOpen;

  /** onChange: a setting was changed. onOpen: a field is wrong, and the panel is to be seen. */
  constructor({ onChange, onOpen }) {
    this.#onChange = onChange;
    this.#onOpen = onOpen;
    this.#form.addEventListener("submit", (event) => event.preventDefault());
    this.#form.addEventListener("input", ({ target }) => this.#take(target));
    byId("reset-parameters").addEventListener("click", () => this.#reset());
    byId("example-tools").addEventListener("click", () => {
      const { tools } = this.#form.elements;
      tools.value = JSON.stringify(EXAMPLE_TOOLS, null, 2);
      this.#take(tools);
      tools.focus();
    });
  }

  /** Edit these settings from now on. */
  show(settings) {
    this.#settings = settings;
    for (const name of Object.keys(DEFAULT_SETTINGS)) {
      const field = this.#form.elements[name];
      field.value = settings[name];
      // What the field does not take, from a file, is gone from the settings too.
      if (name !== "model") settings[name] = field.value;
      field.removeAttribute("aria-invalid");
    }
    this.#checkTools();
    this.#showModel();
  }

  /** Offer the models of the server; one that it does not have gives way to its first. */
  set models(ids) {
    const select = this.#form.elements.model;
    select.replaceChildren(...ids.map((id) => element("option", { value: id }, id)));
    this.#showModel();
  }

  /** Whether every field can be sent; shows the first that cannot. */
  check() {
    if (this.#form.checkValidity()) return true;
    this.#onOpen();
    this.#form.reportValidity();
    return false;
  }

  #take(field) {
    if (field.name === "tools") this.#checkTools();
    field.setAttribute("aria-invalid", String(!field.validity.valid));
    this.#settings[field.name] = field.value;
    this.#onChange();
  }

  #showModel() {
    const select = this.#form.elements.model;
    if (!select.options.length) return;
    select.value = this.#settings.model;
    if (select.selectedIndex < 0) select.selectedIndex = 0;
    this.#settings.model = select.value;
    this.#onChange();
  }

  #checkTools() {
    const { tools } = this.#form.elements;
    const problem = problemOfTools(tools.value);
    tools.setCustomValidity(problem);
    byId("tools-problem").textContent = problem;
  }

  #reset() {
    for (const field of byId("sampling").elements) {
      if (!(field.name in DEFAULT_SETTINGS)) continue;
      field.value = DEFAULT_SETTINGS[field.name];
      this.#take(field);
    }
  }
}

function problemOfTools(text) {
  if (!text.trim()) return "";
  try {
    return Array.isArray(JSON.parse(text)) ? "" : "The tools must be a JSON list.";
  } catch (error) {
    return `This is not JSON: ${error.message}`;
  }
}
