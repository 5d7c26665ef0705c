import { byId } from "./dom.js";
import { memory } from "./store.js";

/** Ask before something is lost; true for the button that does it. */
export function confirmed(question, detail, action) {
  byId("ask-field").hidden = true;
  byId("ask-yes").classList.add("danger");
  return asked(question, detail, action);
}

/** Ask for a line of text; null where nothing is to change. */
export async function askedText(question, value, action) {
  const field = byId("ask-field");
  field.hidden = false;
  byId("ask-yes").classList.remove("danger");
  field.querySelector("input").value = value;
  return (await asked(question, "", action)) ? field.querySelector("input").value.trim() : null;
}

async function asked(question, detail, action) {
  byId("ask-title").textContent = question;
  byId("ask-detail").textContent = detail;
  byId("ask-yes").textContent = action;
  return (await answerOf(byId("ask-dialog"))) === "yes";
}

/** Show a dialog until it is closed; the value of the button that did it, empty for Escape. */
function answerOf(dialog) {
  dialog.returnValue = "";
  dialog.querySelector(".cancel").onclick = () => dialog.close();
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue), { once: true });
  });
}

/** The key that requests carry, where the server wants one. */
export const apiKey = {
  value: memory.get("key", "sessionStorage") ?? memory.get("key") ?? "",

  /** Ask for the key; false where none was given. `reason`: why it is wanted. */
  async ask(reason) {
    byId("key-reason").textContent = reason;
    byId("key-input").value = this.value;
    byId("key-keep").checked = memory.get("key") !== null;
    if ((await answerOf(byId("key-dialog"))) !== "yes") return false;
    this.value = byId("key-input").value.trim();
    const keeps = byId("key-keep").checked;
    memory.set("key", keeps ? "" : this.value, "sessionStorage");
    memory.set("key", keeps ? this.value : "");
    return true;
  },
};
