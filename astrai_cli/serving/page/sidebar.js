import { byId, element, icon, iconButton } from "./dom.js";

/** The list of conversations, and what can be done with each. */
export class Sidebar {
  #list = byId("conversations");
  #menu = byId("conversation-menu");
  #shown = "";
  #actions;
  #chosen = null;

  /** actions: rename, export and delete, each of an id; leave, when one is chosen. */
  constructor(actions) {
    this.#actions = actions;
    this.#list.addEventListener("click", ({ target }) => target.closest("a") && actions.leave());
    for (const button of this.#menu.querySelectorAll("button")) {
      button.addEventListener("click", () => {
        this.#menu.hidePopover();
        this.#actions[button.dataset.action](this.#chosen);
      });
    }
  }

  /** Show these conversations, {id, title} each; `current` is the id of the open one. */
  show(conversations, current) {
    const state = JSON.stringify([conversations, current]);
    if (state === this.#shown) return;
    this.#shown = state;
    const focused = this.#list.contains(document.activeElement) && document.activeElement.dataset;
    this.#list.replaceChildren(...conversations.map((each) => this.#row(each, current)));
    byId("no-conversations").hidden = conversations.length > 0;
    if (focused) this.focus(focused.id, focused.part);
  }

  /** Focus a conversation's link or menu; the button of a new one where it is gone. */
  focus(id, part = "link") {
    const found = [...this.#list.querySelectorAll(`[data-part="${part}"]`)];
    (found.find(({ dataset }) => dataset.id === id) ?? byId("new-conversation")).focus();
  }

  #row({ id, title }, current) {
    const data = { "data-id": id, title };
    const link = element("a", { ...data, href: `#${id}`, "data-part": "link" }, title);
    if (id === current) link.setAttribute("aria-current", "page");
    const more = iconButton("more", `More about “${title}”`, () => {
      this.#openMenu(id, more);
    });
    more.dataset.id = id;
    more.dataset.part = "menu";
    more.setAttribute("aria-haspopup", "true");
    return element("li", {}, link, more);
  }

  #openMenu(id, button) {
    this.#chosen = id;
    this.#menu.showPopover({ source: button });
    const { bottom, left } = button.getBoundingClientRect();
    const { offsetWidth, offsetHeight } = this.#menu;
    this.#menu.style.left = `${Math.min(left, innerWidth - offsetWidth - 8)}px`;
    this.#menu.style.top = `${Math.min(bottom + 4, innerHeight - offsetHeight - 8)}px`;
    this.#menu.querySelector("button").focus();
  }
}

const THEMES = ["system", "light", "dark"];

/** The button that goes through the themes; `kept` reads and writes the choice. */
export function startThemes(button, kept) {
  const apply = (theme) => {
    document.documentElement.dataset.theme = theme;
    button.replaceChildren(icon(`theme-${theme}`));
    button.setAttribute("aria-label", `Theme: ${theme}`);
    button.title = `Theme: ${theme}`;
  };
  button.addEventListener("click", () => {
    const now = THEMES.indexOf(document.documentElement.dataset.theme);
    const next = THEMES[(now + 1) % THEMES.length];
    kept.set("theme", next);
    apply(next);
  });
  apply(THEMES.includes(kept.get("theme")) ? kept.get("theme") : "system");
}
