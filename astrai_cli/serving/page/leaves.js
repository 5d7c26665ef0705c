import { tableCells } from "./blocks.js";
import { copyButton, element } from "./dom.js";
import { inlineNodes } from "./inline.js";

// Text that is longer is shown in parts, which are finished one by one.
const MAX_INLINE = 4096;

/** What shows the text of a block, or null for a block without any. */
export function newLeaf(block, header) {
  switch (block.kind) {
    case "code":
      return new Code(block);
    case "table":
      return new Table(header, block.alignments);
    case "heading":
      return new Heading(block.level);
    case "text":
      return new Paragraph();
    default:
      return null;
  }
}

/** Text with emphasis and links. What is over MAX_INLINE is finished part by part. */
class Prose {
  #text = "";
  #tail;

  constructor(name, className = "") {
    this.element = element(name, { className });
    this.#tail = this.element;
  }

  /** What is not finished: all of it, unless it is long. */
  get text() {
    return this.#text;
  }

  get isLong() {
    return this.#tail !== this.element;
  }

  add(text) {
    this.#text += text;
    while (this.#text.length > MAX_INLINE) {
      const cut = this.#text.lastIndexOf(" ", MAX_INLINE - 1) + 1 || MAX_INLINE;
      this.#tail.replaceChildren(...inlineNodes(this.#text.slice(0, cut)));
      this.#tail = this.element.appendChild(element("span"));
      this.#text = this.#text.slice(cut);
    }
  }

  render(open) {
    const text = this.text.trim().replace(/ {1,64}\n/g, "\n");
    this.#tail.replaceChildren(...inlineNodes(text, open));
  }
}

/** Two levels down, for the page and its messages have the first two. */
class Heading extends Prose {
  constructor(level) {
    super(`h${Math.min(level + 2, 6)}`, `heading-${level}`);
  }

  get text() {
    return super.text.replace(/(?:^|[ \t])#{1,64}[ \t]{0,64}$/, "");
  }
}

/** Goes on in the next line; one line with bars may turn out to be a table's header. */
class Paragraph extends Prose {
  continues = true;

  constructor() {
    super("p");
  }

  get columns() {
    const mayBeHeader = this.text.includes("|") && !this.text.includes("\n") && !this.isLong;
    return mayBeHeader ? tableCells(this.text).length : 0;
  }

  takeHeader() {
    this.element.remove();
    return this.text;
  }

  render(open) {
    if (open && this.text.startsWith("|") && this.columns) return;
    super.render(open);
  }
}

/** A fenced block. Long ones are cut into parts, which the browser lays out one by one. */
export class Code {
  #code = element("code");
  #text = document.createTextNode("");
  #pending = "";
  #hasBegun = false;

  constructor({ mark, language, indent }) {
    Object.assign(this, { mark, indent });
    this.#code.append(element("span", {}, this.#text));
    const name = language.split(/\s/)[0].slice(0, 40);
    const box = { tabIndex: 0, role: "region", "aria-label": name ? `Code: ${name}` : "Code" };
    const copy = copyButton("Copy the code", () => this.#code.textContent);
    this.element = element(
      "div",
      { className: "code-block" },
      element("div", { className: "code-head" }, element("span", {}, name), copy),
      element("pre", box, this.#code),
    );
  }

  add(text) {
    this.#pending += text;
  }

  endLine() {
    // The first line was the fence.
    if (this.#hasBegun) this.#pending += "\n";
    this.#hasBegun = true;
  }

  render() {
    this.#text.appendData(this.#pending);
    this.#pending = "";
    const end = this.#text.length > MAX_INLINE ? this.#text.data.lastIndexOf("\n") + 1 : 0;
    if (!end) return;
    this.#text = this.#text.splitText(end);
    this.#code.append(element("span", {}, this.#text));
  }
}

/** A header and rows of cells; only the last row is laid out anew. */
export class Table {
  #body = element("tbody");
  #row = null;
  #text = "";

  constructor(header, alignments) {
    this.alignments = alignments;
    const head = element("tr");
    this.#fill(head, header, "th", false);
    const table = element("table", {}, element("thead", {}, head), this.#body);
    const box = { className: "table-block", tabIndex: 0, role: "region", "aria-label": "Table" };
    this.element = element("div", box, table);
  }

  add(text) {
    for (let at = 0; at < text.length; ) {
      const room = MAX_INLINE - this.#text.length;
      this.#text += text.slice(at, at + room);
      at += room;
      if (this.#text.length === MAX_INLINE) this.endLine();
    }
  }

  endLine() {
    this.render(false);
    this.#row = null;
    this.#text = "";
  }

  render(open) {
    if (!this.#text) return;
    this.#row ??= this.#body.appendChild(element("tr"));
    this.#fill(this.#row, this.#text, "td", open);
  }

  #fill(row, text, name, open) {
    const cells = tableCells(text);
    row.replaceChildren(
      ...this.alignments.map((alignment, index) =>
        element(name, { className: alignment }, ...inlineNodes(cells[index] ?? "", open)),
      ),
    );
  }
}
