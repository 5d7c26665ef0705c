import { addChunk, describeError, newAnswer } from "./answer.js";
import { Composer } from "./composer.js";
import {
  DEFAULT_SETTINGS,
  newConversation,
  pendingCalls,
  requestBody,
  titleOf,
} from "./conversation.js";
import { apiKey, askedText, confirmed } from "./dialogs.js";
import { announce, byId, element } from "./dom.js";
import { Layout } from "./layout.js";
import { ParametersPanel } from "./parameters.js";
import { Sidebar, startThemes } from "./sidebar.js";
import { exportFile, importFile, memory, openStore } from "./store.js";
import { ApiError, request, streamChat } from "./stream.js";
import { Transcript } from "./transcript.js";

const SAVE_EVERY = 2000;
const KEY_WANTED = "The server wants an API key.";

/** The page: one conversation is open, and at most one answer to it is on its way. */
class App {
  #store;
  #conversation = newConversation(keptSettings());
  #answering = null;
  #layout = new Layout();
  #composer = new Composer({
    send: (text, images) => this.#send(text, images),
    stop: () => this.#stop(),
    complain: (text) => this.#complain(text),
  });
  #transcript = new Transcript({
    edit: (index, text, images) => this.#goOnFrom(index, { role: "user", text, images }),
    regenerate: (index) => this.#goOnFrom(index),
    give: (results) => this.#give(results),
  });
  #parameters = new ParametersPanel({
    onChange: () => this.#keepSettings(),
    onOpen: () => this.#layout.open("parameters"),
  });
  #sidebar = new Sidebar({
    rename: (id) => this.#rename(id),
    export: (id) => this.#export(id),
    delete: (id) => this.#delete(id),
    leave: () => this.#layout.closeOverlay(),
  });

  async start() {
    startThemes(byId("theme"), memory);
    byId("new-conversation").addEventListener("click", () => this.#startNew());
    byId("export-all").addEventListener("click", () => this.#export());
    byId("import").addEventListener("click", () => byId("import-file").click());
    byId("import-file").addEventListener("change", ({ target }) => this.#import(target));
    byId("change-key").addEventListener("click", () => this.#changeKey());
    byId("dismiss").addEventListener("click", () => this.#complain(""));
    byId("skip").addEventListener("click", (event) => {
      event.preventDefault();
      this.#composer.focus();
    });
    addEventListener("hashchange", () => this.#openFromAddress());
    addEventListener("pagehide", () => this.#answering && this.#save());
    document.addEventListener("keydown", (event) => this.#onKey(event));
    this.#store = await openStore();
    if (!this.#store.isLasting) {
      this.#complain("This browser keeps nothing here: conversations end with the page.");
    }
    await this.#openFromAddress();
    this.#composer.focus();
    await this.#loadModels();
  }

  // Answers

  async #send(text, images) {
    if (!this.#parameters.check()) return false;
    const [missing] = pendingCalls(this.#conversation);
    if (missing) {
      this.#complain(`The model waits for the result of ${missing.name}.`);
      this.#transcript.focusResult();
      return false;
    }
    this.#complain("");
    this.#addMessage({ role: "user", text, images });
    this.#answer();
    return true;
  }

  #give(results) {
    if (!this.#parameters.check()) return;
    this.#complain("");
    for (const [callId, text] of results) this.#addMessage({ role: "tool", callId, text });
    this.#composer.focus();
    this.#answer();
  }

  /** Drop the messages from `index` on, say something else in their place, and answer that. */
  async #goOnFrom(index, message) {
    if (!this.#parameters.check()) return;
    await this.#stop();
    this.#conversation.messages.length = index;
    this.#transcript.truncate(index);
    if (message) this.#addMessage(message);
    this.#composer.focus();
    this.#answer();
  }

  #addMessage(message) {
    this.#conversation.messages.push(message);
    this.#transcript.add(message);
    this.#updateAddress();
  }

  /** Stop the answer on its way; resolves when what came of it is kept. */
  #stop() {
    this.#answering?.controller.abort();
    return this.#answering?.done;
  }

  #answer() {
    const controller = new AbortController();
    const done = this.#runAnswer(controller.signal).finally(() => {
      this.#answering = null;
      this.#setAnswering(false);
    });
    this.#answering = { controller, done };
    this.#setAnswering(true);
  }

  #setAnswering(isAnswering) {
    this.#composer.isAnswering = isAnswering;
  }

  async #runAnswer(signal) {
    const conversation = this.#conversation;
    const body = requestBody(conversation);
    const answer = newAnswer(conversation.settings.model);
    conversation.messages.push(answer);
    const view = this.#transcript.add(answer, false);
    this.#transcript.toEnd();
    announce("The model is answering.");
    await this.#save();
    let error = await this.#stream(body, answer, view, signal);
    while (error?.status === 401 && (await apiKey.ask(error.message))) {
      error = await this.#stream(body, answer, view, signal);
    }
    if (error?.name === "AbortError") answer.finish = "stopped";
    else if (error) answer.error = describeError(error);
    view.finish();
    this.#transcript.showResults();
    announce(answer.error ? "" : answer.text || "The model calls a tool.");
    await this.#save();
  }

  /** Let an answer grow to its end; the error it ended with, or null. */
  async #stream(body, answer, view, signal) {
    const started = performance.now();
    let saved = started;
    try {
      for await (const chunk of streamChat(body, { key: apiKey.value, signal })) {
        const now = performance.now();
        addChunk(answer, chunk, now - started);
        view.update();
        if (now - saved > SAVE_EVERY) {
          saved = now;
          this.#save();
        }
      }
      return null;
    } catch (error) {
      if (!(error instanceof ApiError) && error.name !== "AbortError") throw error;
      return error;
    } finally {
      answer.times.total = performance.now() - started;
    }
  }

  // Conversations

  #show(conversation) {
    this.#conversation = conversation;
    this.#parameters.show(conversation.settings);
    this.#transcript.show(conversation.messages);
    this.#complain("");
    this.#updateAddress();
    return this.#refresh();
  }

  /** The list and the title say which conversation is open. */
  async #refresh() {
    const { id, messages } = this.#conversation;
    const title = titleOf(this.#conversation);
    byId("title").textContent = title;
    document.title = messages.length ? `${title} · astrai` : "astrai";
    this.#sidebar.show(await this.#store.list(), id);
  }

  /** The address does too, once something was said. */
  #updateAddress() {
    const { id, messages } = this.#conversation;
    byId("main").classList.toggle("empty", !messages.length);
    if (location.hash.slice(1) === (messages.length ? id : "")) return;
    history.pushState(null, "", messages.length ? `#${id}` : location.pathname + location.search);
  }

  async #openFromAddress() {
    const id = location.hash.slice(1);
    if (id && id === this.#conversation.id) return;
    await this.#stop();
    const found = id && (await this.#store.get(id));
    this.#layout.closeOverlay();
    await this.#show(found || newConversation(keptSettings()));
  }

  async #startNew() {
    await this.#stop();
    this.#layout.closeOverlay();
    await this.#show(newConversation({ ...this.#conversation.settings }));
    this.#composer.focus();
  }

  async #save() {
    this.#conversation.updated = Date.now();
    try {
      await this.#store.put(this.#conversation);
      await this.#refresh();
    } catch (error) {
      const reason =
        error?.name === "QuotaExceededError"
          ? "the browser has no more room. Export or delete conversations."
          : `the browser says: ${error?.message}`;
      this.#complain(`This conversation is not kept: ${reason}`);
    }
  }

  async #rename(id) {
    const conversation = await this.#conversationOf(id);
    const title = await askedText("Rename the conversation", titleOf(conversation), "Rename");
    this.#sidebar.focus(id, "menu");
    if (title === null) return;
    conversation.title = title.slice(0, 80);
    await this.#store.put(conversation);
    await this.#refresh();
    this.#sidebar.focus(id, "menu");
  }

  async #delete(id) {
    const title = titleOf(await this.#conversationOf(id));
    if (!(await confirmed("Delete the conversation?", title, "Delete"))) {
      this.#sidebar.focus(id, "menu");
      return;
    }
    if (id === this.#conversation.id) await this.#stop();
    await this.#store.delete(id);
    if (id === this.#conversation.id) await this.#startNew();
    else await this.#refresh();
    this.#sidebar.focus(id, "menu");
  }

  async #conversationOf(id) {
    return id === this.#conversation.id ? this.#conversation : this.#store.get(id);
  }

  /** One conversation, or all, as a file. */
  async #export(id) {
    const chosen = id ? [await this.#conversationOf(id)] : await this.#store.all();
    const href = URL.createObjectURL(exportFile(chosen));
    element("a", { href, download: "conversations.json" }).click();
    // The download has begun by then.
    setTimeout(() => URL.revokeObjectURL(href), 60000);
  }

  async #import(input) {
    const [file] = input.files;
    input.value = "";
    let count = 0;
    try {
      for (const each of await importFile(file)) {
        await this.#store.put(each);
        count++;
      }
      announce(`${count} conversations were imported.`);
    } catch (error) {
      const imported = count ? `Only ${count} conversations were` : "Nothing was";
      this.#complain(`${imported} imported: ${error.message}.`);
    }
    await this.#refresh();
  }

  // The rest of the page

  async #loadModels() {
    try {
      const response = await request("v1/models", { key: apiKey.value });
      const { data } = await response.json();
      this.#parameters.models = data.map(({ id }) => id);
      byId("model-name").textContent = this.#conversation.settings.model;
    } catch (error) {
      if (error.status === 401 && (await apiKey.ask(KEY_WANTED))) return this.#loadModels();
      this.#complain(`The server does not tell its models: ${error.message}`);
    }
  }

  async #changeKey() {
    if (await apiKey.ask("Requests carry this key. Leave it empty to send none.")) {
      await this.#loadModels();
    }
  }

  #keepSettings() {
    memory.set("settings", JSON.stringify(this.#conversation.settings));
    byId("model-name").textContent = this.#conversation.settings.model;
  }

  /** Show a problem of the page itself, until it is dismissed or something is sent. */
  #complain(text) {
    byId("notice").hidden = !text;
    byId("notice-text").textContent = text;
  }

  #onKey(event) {
    if (event.key !== "Escape" || event.defaultPrevented) return;
    if (document.querySelector("dialog[open], [popover]:popover-open")) return;
    if (!this.#layout.closeOverlay()) this.#stop();
  }
}

function keptSettings() {
  try {
    return { ...DEFAULT_SETTINGS, ...JSON.parse(memory.get("settings") ?? "{}") };
  } catch {
    return { ...DEFAULT_SETTINGS };
  }
}

new App().start();
