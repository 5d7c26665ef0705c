import { describeSpeed, describeTime, isThinking } from "./answer.js";
import { copyButton, element, icon, iconButton, oncePerFrame } from "./dom.js";
import { MarkdownRenderer } from "./markdown.js";

const ENDS = {
  length: "The answer was cut off at the most tokens it may have.",
  stopped: "Stopped.",
};

/** One answer in the transcript; it follows the answer while that grows. */
export class AnswerView {
  #answer;
  #actions;
  #isDone;
  #thought = null;
  #body = new GrowingText("answer-text");
  #calls = element("div", { className: "calls" });
  #end = element("div");
  #schedule = oncePerFrame(() => this.#isDone || this.#render());

  /** actions: regenerate(), give(results), of this answer. */
  constructor(answer, actions, isDone) {
    this.#answer = answer;
    this.#actions = actions;
    this.#isDone = isDone;
    this.element = element(
      "li",
      { className: "message answer" },
      element("h2", { className: "visually-hidden" }, "Answer"),
      this.#body.element,
      this.#calls,
      this.#end,
    );
    this.#render();
  }

  /** The answer has grown. */
  update() {
    this.#schedule();
  }

  /** The answer is over. */
  finish() {
    this.#isDone = true;
    this.#render();
  }

  /** Show the calls with their results, a map by their ids; the others can be given theirs. */
  showCalls(results) {
    const cards = this.#answer.calls.map((call) => callCard(call, results.get(call.id)));
    this.#calls.replaceChildren(...cards.map(({ card }) => card));
    const fields = cards.map(({ field }) => field).filter(Boolean);
    if (!fields.length) return;
    const give = () => this.#actions.give(fields.map(({ name, value }) => [name, value]));
    const label = fields.length > 1 ? "Send the results" : "Send the result";
    const properties = { type: "button", className: "button primary", onclick: give };
    const send = element("button", properties, label);
    for (const field of fields) {
      field.addEventListener("keydown", (event) => {
        if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) give();
      });
    }
    this.#calls.append(send);
  }

  /** Move to where a result is missing. */
  focusResult() {
    this.#calls.querySelector("textarea")?.focus();
  }

  #render() {
    if (this.#answer.reasoning) this.#renderThought();
    this.#body.show(this.#answer.text, this.#isDone);
    const isEmpty = !this.#answer.text && !this.#answer.reasoning;
    this.element.classList.toggle("waiting", isEmpty && !this.#isDone);
    if (this.#isDone) this.#renderEnd();
  }

  #renderThought() {
    if (!this.#thought) {
      this.#thought = new ThoughtView(!this.#isDone);
      this.#body.element.before(this.#thought.element);
    }
    this.#thought.show(this.#answer, this.#isDone);
  }

  #renderEnd() {
    const { text, finish, error } = this.#answer;
    const parts = [];
    if (error) parts.push(failure(error, this.#actions.regenerate));
    else if (ENDS[finish]) parts.push(element("p", { className: "note" }, ENDS[finish]));
    const buttons = text ? [copyButton("Copy the answer", () => this.#answer.text)] : [];
    if (!error) {
      const again = iconButton("again", "Answer again", this.#actions.regenerate);
      again.classList.add("last-only");
      buttons.push(again);
    }
    const speed = element("span", { className: "speed" }, describeSpeed(this.#answer));
    parts.push(element("div", { className: "message-foot" }, ...buttons, speed));
    this.#end.replaceChildren(...parts);
  }
}

/** Markdown that grows at its end. */
class GrowingText {
  #written = 0;

  constructor(className) {
    this.element = element("div", { className: `markdown ${className}` });
    this.renderer = new MarkdownRenderer(this.element);
  }

  show(text, isDone) {
    this.renderer.write(text.slice(this.#written));
    this.#written = text.length;
    if (isDone) this.renderer.end();
    else this.renderer.flush();
  }
}

/** What the model said to itself: open while it does, then folded, unless somebody chose. */
class ThoughtView {
  #summary = element("span");
  #text = new GrowingText("thought-text");
  #wasChosen = false;

  constructor(isOpen) {
    const summary = element("summary", {}, icon("chevron"), this.#summary);
    summary.addEventListener("click", () => {
      this.#wasChosen = true;
    });
    const properties = { className: "thought", open: isOpen };
    this.element = element("details", properties, summary, this.#text.element);
  }

  show(answer, isDone) {
    const isRunning = isThinking(answer) && !isDone;
    this.#text.show(answer.reasoning, !isRunning);
    this.element.classList.toggle("running", isRunning);
    const { reasoning } = answer.times;
    const took = reasoning === null ? "Thoughts" : `Thought for ${describeTime(reasoning)}`;
    this.#summary.textContent = isRunning ? "Thinking…" : took;
    if (!isRunning && !this.#wasChosen) this.element.open = false;
  }
}

/** A call with its arguments, and its result or a field for it, named by the call's id. */
function callCard(call, result) {
  const head = element(
    "div",
    { className: "call-head" },
    icon("tool"),
    element("span", { className: "visually-hidden" }, "Tool call:"),
    element("code", {}, call.name),
  );
  const given = scrolling(prettyJson(call.arguments), `Arguments of ${call.name}`);
  const card = element("section", { className: "call" }, head, given);
  const label = `Result of ${call.name}`;
  if (result !== undefined) {
    const heading = element("div", { className: "call-label", "aria-hidden": "true" }, "Result");
    card.append(heading, scrolling(result, label));
    return { card, field: null };
  }
  const field = element("textarea", { name: call.id, rows: 2, placeholder: "What the tool says" });
  card.append(element("label", { className: "call-label" }, label, field));
  return { card, field };
}

function scrolling(text, label) {
  const box = { className: "call-text", tabIndex: 0, role: "region", "aria-label": label };
  return element("pre", box, text);
}

function prettyJson(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function failure({ title, message, hint }, regenerate) {
  const retry = { type: "button", className: "button last-only", onclick: regenerate };
  return element(
    "div",
    { className: "failure", role: "alert" },
    element("strong", {}, title),
    element("p", {}, message),
    ...(hint ? [element("p", { className: "hint" }, hint)] : []),
    element("button", retry, "Try again"),
  );
}
