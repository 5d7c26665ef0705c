import { checkedConversation, titleOf } from "./conversation.js";

// Servers under other paths of the same origin have conversations and keys of their own.
const SCOPE = `astrai:${location.pathname}`;
const FORMAT = "astrai-conversations";
const MAX_FILE_BYTES = 1 << 28;

/** Small things the browser keeps, where its owner allows it. */
export const memory = {
  get(name, storage = "localStorage") {
    try {
      return window[storage].getItem(`${SCOPE}:${name}`);
    } catch {
      return null;
    }
  },
  /** Keep a text, or forget it where it is empty. */
  set(name, text, storage = "localStorage") {
    try {
      if (text) window[storage].setItem(`${SCOPE}:${name}`, text);
      else window[storage].removeItem(`${SCOPE}:${name}`);
    } catch {
      // Then it lasts as long as the page.
    }
  },
};

/** The conversations in the browser's database; in memory alone where it has none. */
export async function openStore() {
  try {
    return new DatabaseStore(await openDatabase());
  } catch {
    return new MemoryStore();
  }
}

class DatabaseStore {
  isLasting = true;
  #database;

  constructor(database) {
    this.#database = database;
  }

  /** Their ids and titles, newest first; read from the index, without what was said. */
  async list() {
    const index = this.#objects("readonly").index("summary");
    const rows = [];
    await new Promise((resolve, reject) => {
      const opening = index.openKeyCursor(null, "prev");
      opening.onerror = () => reject(opening.error);
      opening.onsuccess = () => {
        const cursor = opening.result;
        if (!cursor) return resolve();
        rows.push({ id: cursor.primaryKey, title: cursor.key[1] });
        cursor.continue();
      };
    });
    return rows;
  }

  get(id) {
    return result(this.#objects("readonly").get(id));
  }

  all() {
    return result(this.#objects("readonly").getAll());
  }

  /** Raises QuotaExceededError where the browser has no more room. */
  put(conversation) {
    return this.#write((objects) => objects.put({ ...conversation, label: titleOf(conversation) }));
  }

  delete(id) {
    return this.#write((objects) => objects.delete(id));
  }

  #objects(mode) {
    return this.#database.transaction("conversations", mode).objectStore("conversations");
  }

  #write(action) {
    return new Promise((resolve, reject) => {
      const objects = this.#objects("readwrite");
      const { transaction } = objects;
      transaction.oncomplete = () => resolve();
      transaction.onabort = () => reject(transaction.error);
      action(objects);
    });
  }
}

class MemoryStore {
  isLasting = false;
  #conversations = new Map();

  async list() {
    const all = [...this.#conversations.values()].sort((one, other) => other.updated - one.updated);
    return all.map((conversation) => ({ id: conversation.id, title: titleOf(conversation) }));
  }

  async get(id) {
    return this.#conversations.get(id);
  }

  async all() {
    return [...this.#conversations.values()];
  }

  async put(conversation) {
    this.#conversations.set(conversation.id, conversation);
  }

  async delete(id) {
    this.#conversations.delete(id);
  }
}

function openDatabase() {
  const opening = indexedDB.open(SCOPE, 1);
  opening.onupgradeneeded = () => {
    const objects = opening.result.createObjectStore("conversations", { keyPath: "id" });
    objects.createIndex("summary", ["updated", "label"]);
  };
  return result(opening);
}

function result(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

/** A file of conversations. */
export function exportFile(conversations) {
  const content = JSON.stringify({ format: FORMAT, version: 1, conversations }, null, 1);
  return new File([content], "conversations.json", { type: "application/json" });
}

/** The conversations of such a file. Raises TypeError that says what is wrong with it. */
export async function importFile(file) {
  if (file.size > MAX_FILE_BYTES) throw new TypeError("the file is over 256 MiB");
  let content;
  try {
    content = JSON.parse(await file.text());
  } catch {
    throw new TypeError("the file is not JSON");
  }
  if (content?.format !== FORMAT || !Array.isArray(content.conversations)) {
    throw new TypeError("the file holds no conversations of this page");
  }
  return content.conversations.map((each) => checkedConversation(each ?? {}));
}
