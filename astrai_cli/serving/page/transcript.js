import { AnswerView } from "./answer_view.js";
import { fitToText, isSendKey } from "./composer.js";
import { byId, copyButton, element, iconButton } from "./dom.js";

const NEAR_END = 48;

/** The messages of the open conversation, one view for each; results stand in their calls. */
export class Transcript {
  #list = byId("messages");
  #scroller = byId("scroller");
  #jump = byId("jump");
  #messages = [];
  #views = [];
  #isFollowing = true;
  #top = 0;
  #actions;

  /** actions: edit(index, text, images), regenerate(index), give(results). */
  constructor(actions) {
    this.#actions = actions;
    this.#scroller.addEventListener("scroll", () => this.#onScroll());
    this.#jump.addEventListener("click", () => this.toEnd());
    // What grows at the end is followed by who is there; what somebody unfolds is not.
    this.#list.addEventListener("click", () => {
      this.#isFollowing = false;
    });
    new ResizeObserver(() => (this.#isFollowing ? this.toEnd() : this.#onScroll())).observe(this.#list);
  }

  show(messages) {
    this.#messages = [];
    this.#views = [];
    this.#list.replaceChildren();
    for (const message of messages) this.add(message);
    this.toEnd();
  }

  /** Add a message; isDone: it is an answer that does not grow any more. Its view. */
  add(message, isDone = true) {
    this.#messages.push(message);
    const view = this.#viewOf(message, this.#messages.length - 1, isDone);
    this.#views.push(view);
    if (view) this.#list.append(view.element);
    if (message.role !== "user") this.showResults();
    return view;
  }

  /** Remove what follows the first `count` messages. */
  truncate(count) {
    for (const view of this.#views.splice(count)) view?.element.remove();
    this.#messages.length = count;
    this.showResults();
  }

  /** Show the calls of the last answer, with the results there are. */
  showResults() {
    const index = this.#messages.findLastIndex(({ role }) => role === "assistant");
    if (index < 0) return;
    const later = this.#messages.slice(index + 1);
    this.#views[index].showCalls(new Map(later.map(({ callId, text }) => [callId, text])));
  }

  /** Move to where the last answer misses a result. */
  focusResult() {
    this.#views.findLast((view) => view instanceof AnswerView)?.focusResult();
  }

  toEnd() {
    this.#scroller.scrollTop = this.#scroller.scrollHeight;
    this.#isFollowing = true;
  }

  /** Who scrolls up does not follow any more. What has grown meanwhile is no scrolling. */
  #onScroll() {
    const { scrollHeight, scrollTop, clientHeight } = this.#scroller;
    if (scrollHeight - scrollTop - clientHeight < NEAR_END) this.#isFollowing = true;
    else if (scrollTop < this.#top) this.#isFollowing = false;
    this.#top = scrollTop;
    this.#jump.hidden = this.#isFollowing;
  }

  #viewOf(message, index, isDone) {
    switch (message.role) {
      case "user":
        return new UserView(message, (text, images) => this.#actions.edit(index, text, images));
      case "assistant":
        return new AnswerView(
          message,
          { regenerate: () => this.#actions.regenerate(index), give: this.#actions.give },
          isDone,
        );
      default:
        return null;
    }
  }
}

/** What the user said, and a field to say something else instead. */
class UserView {
  #message;
  #onEdit;

  constructor(message, onEdit) {
    this.#message = message;
    this.#onEdit = onEdit;
    this.element = element("li", { className: "message user" });
    this.#show();
  }

  #show() {
    const { text, images } = this.#message;
    const shown = images.map((src, index) => element("img", { src, alt: `Image ${index + 1}` }));
    const edit = iconButton("edit", "Edit the message", () => this.#edit());
    const bubble = element("div", { className: "bubble" }, ...shown);
    if (text) bubble.append(element("p", {}, text));
    this.element.replaceChildren(
      element("h2", { className: "visually-hidden" }, "You"),
      bubble,
      element(
        "div",
        { className: "message-foot" },
        copyButton("Copy the message", () => text),
        edit,
      ),
    );
    return edit;
  }

  #edit() {
    const field = element("textarea", { value: this.#message.text, "aria-label": "Message" });
    const images = this.#message.images.map((src, index) => keptImage(src, index));
    const form = element(
      "form",
      { className: "editor" },
      ...images,
      field,
      element("p", { className: "hint" }, "What follows this message will be replaced."),
      element(
        "div",
        { className: "buttons" },
        element("button", { type: "button", className: "button", onclick: () => this.#leave() }, "Cancel"),
        element("button", { className: "button primary" }, "Send"),
      ),
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const kept = images.filter((each) => each.querySelector("input").checked);
      const urls = kept.map((each) => each.querySelector("img").src);
      const text = field.value.trim();
      if (text || urls.length) this.#onEdit(text, urls);
    });
    form.addEventListener("keydown", (event) => {
      if (isSendKey(event) && event.target === field) {
        event.preventDefault();
        form.requestSubmit();
      } else if (event.key === "Escape") {
        event.stopPropagation();
        this.#leave();
      }
    });
    field.addEventListener("input", () => fitToText(field));
    this.element.replaceChildren(form);
    fitToText(field);
    field.focus();
  }

  #leave() {
    this.#show().focus();
  }
}

function keptImage(src, index) {
  const box = element("input", { type: "checkbox", checked: true });
  const name = `Image ${index + 1}`;
  return element("label", { className: "kept-image" }, box, element("img", { src, alt: "" }), `Keep ${name}`);
}
