import { byId } from "./dom.js";
import { memory } from "./store.js";

const NARROW = matchMedia("(max-width: 64rem)");

/**
 * The panels beside the conversation. Where there is room, they stay as they were left; on a
 * narrow screen one at a time lies over the conversation, until it is closed.
 */
export class Layout {
  #panels = new Map();

  constructor() {
    this.#addPanel("sidebar", true);
    this.#addPanel("parameters", false);
    byId("backdrop").addEventListener("click", () => this.closeOverlay());
    NARROW.addEventListener("change", () => this.#restore());
    this.#restore();
  }

  open(name) {
    this.#set(name, true);
  }

  /** Close a panel that lies over the conversation; whether there was one. */
  closeOverlay() {
    const found = [...this.#panels].find(([, { panel }]) => NARROW.matches && !panel.hidden);
    if (!found) return false;
    this.#set(found[0], false);
    found[1].button.focus();
    return true;
  }

  #addPanel(name, isOpenAtFirst) {
    const button = byId(`toggle-${name}`);
    const panel = byId(name);
    this.#panels.set(name, { button, panel, isOpenAtFirst });
    button.addEventListener("click", () => {
      this.#set(name, panel.hidden);
      if (!NARROW.matches) memory.set(`panel-${name}`, panel.hidden ? "closed" : "open");
      else if (!panel.hidden) panel.querySelector("button, input, select, textarea").focus();
    });
    byId(`close-${name}`).addEventListener("click", () => {
      this.#set(name, false);
      if (!NARROW.matches) memory.set(`panel-${name}`, "closed");
      button.focus();
    });
  }

  #restore() {
    for (const [name, { isOpenAtFirst }] of this.#panels) {
      const kept = memory.get(`panel-${name}`) ?? (isOpenAtFirst ? "open" : "closed");
      this.#set(name, !NARROW.matches && kept === "open");
    }
  }

  #set(name, isOpen) {
    for (const [other, { panel, button }] of this.#panels) {
      if (other === name) panel.hidden = !isOpen;
      else if (isOpen && NARROW.matches) panel.hidden = true;
      button.setAttribute("aria-expanded", String(!panel.hidden));
    }
    const isCovered = NARROW.matches && [...this.#panels.values()].some(({ panel }) => !panel.hidden);
    byId("main").inert = isCovered;
    byId("backdrop").hidden = !isCovered;
  }
}
