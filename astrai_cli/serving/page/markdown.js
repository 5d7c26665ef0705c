import { blockOf, indentOf } from "./blocks.js";
import { element } from "./dom.js";
import { Code, newLeaf, Table } from "./leaves.js";

// Characters of a line that may be held, and containers in each other; what is over is text.
const MAX_HELD = 1024;
const MAX_NESTING = 12;

/**
 * Shows Markdown that comes in pieces, below `root`.
 *
 * Blocks that are complete are never touched again, and of the open one only the end
 * is laid out anew: the work grows with the text, not with its square. The
 * result does not depend on how the text was cut. It is CommonMark as models write it, with
 * tables; without HTML, indented code, reference links and underlined headings. A line
 * end in a paragraph stays one, and list items may be indented by two columns or more.
 */
export class MarkdownRenderer {
  #root;
  #containers = [];
  #leaf = null;
  #held = "";
  #flowing = false;

  constructor(root) {
    this.#root = root;
  }

  write(text) {
    const [first, ...rest] = text.replaceAll("\r", "").split("\n");
    this.#add(first);
    for (const part of rest) {
      this.#endLine();
      this.#add(part);
    }
  }

  /** Show what was written since the last time. */
  flush() {
    this.#leaf?.render(true);
  }

  end() {
    if (this.#held) this.#endLine();
    this.#closeTo(0);
  }

  /** Part of a line: held until it is sure what block the line belongs to, then it flows. */
  #add(text) {
    if (!text) return;
    if (this.#flowing) {
      this.#leaf.add(text);
      return;
    }
    this.#held += text;
    this.#flowing = this.#begin(this.#held, false);
    if (this.#flowing) this.#held = "";
  }

  #endLine() {
    if (!this.#flowing) this.#begin(this.#held, true);
    this.#leaf?.endLine?.();
    this.#flowing = false;
    this.#held = "";
  }

  /** Place the beginning of a line; false where more of it must be known. */
  #begin(held, complete) {
    const head = held.slice(0, MAX_HELD);
    const tooLong = held.length > MAX_HELD;
    const placed = this.#place(head.replace(/^[ \t]+/, expandTabs), complete && !tooLong, tooLong);
    if (placed && tooLong) this.#leaf.add(held.slice(MAX_HELD));
    return placed;
  }

  #place(line, whole, forced) {
    let rest = line;
    let matched = 0;
    for (const container of this.#containers) {
      if (isBlank(rest) && !whole && !forced) return false;
      const inner = container.strip(rest, this.#leaf);
      if (inner === null) break;
      rest = inner;
      matched++;
    }
    const allMatched = matched === this.#containers.length;
    if (allMatched && this.#leaf instanceof Code) {
      return this.#placeCode(rest, whole, forced);
    }
    if (whole && isBlank(rest)) {
      this.#closeTo(matched);
      return true;
    }
    const openings = [];
    const room = MAX_NESTING - matched;
    for (;;) {
      const above = allMatched && !openings.length ? this.#leaf : null;
      const block = blockOf(rest, whole, above, openings.length < room);
      if (!block && !forced) return false;
      if (!block?.opens) {
        this.#open(matched, openings, block ?? { kind: "text", rest: rest.trimStart() });
        return true;
      }
      openings.push(block);
      rest = block.rest;
    }
  }

  #placeCode(line, whole, forced) {
    const mark = line.trim();
    if (mark === this.#leaf.mark[0].repeat(mark.length)) {
      if (!whole && !forced) return false;
      if (whole && mark.length >= this.#leaf.mark.length) {
        this.#closeTo(this.#containers.length);
        return true;
      }
    }
    this.#leaf.add(line.slice(Math.min(indentOf(line), this.#leaf.indent)));
    return true;
  }

  /** Close the containers behind the first `matched`, open new ones and a block in them. */
  #open(matched, openings, block) {
    if (block.kind === "text" && !openings.length) {
      // A paragraph goes on even where the line leaves out its container's marks.
      if (this.#leaf?.continues) {
        this.#leaf.add(`\n${block.rest}`);
        return;
      }
      if (this.#leaf instanceof Table && matched === this.#containers.length) {
        this.#leaf.add(block.rest);
        return;
      }
    }
    const header = block.kind === "table" ? this.#leaf.takeHeader() : null;
    const neighbour = this.#containers[matched];
    this.#closeTo(matched);
    for (const opening of openings) this.#openContainer(opening, neighbour);
    this.#leaf = newLeaf(block, header);
    if (this.#leaf) this.#inner().append(this.#leaf.element);
    else if (block.kind === "rule") this.#inner().append(element("hr"));
    if (block.rest) this.#leaf.add(block.rest);
  }

  #openContainer(opening, neighbour) {
    if (opening.kind === "quote") {
      const quote = this.#inner().appendChild(element("blockquote"));
      this.#containers.push({ element: quote, strip: stripQuote });
      return;
    }
    const { ordered, start, indent } = opening;
    let list = neighbour?.list;
    if (list?.parentNode !== this.#inner() || (list.localName === "ol") !== ordered) {
      list = ordered ? element("ol", { start }) : element("ul");
      this.#inner().append(list);
    }
    const item = list.appendChild(element("li"));
    this.#containers.push({ element: item, list, strip: (line, leaf) => stripItem(line, indent, leaf) });
  }

  #inner() {
    return this.#containers.at(-1)?.element ?? this.#root;
  }

  #closeTo(count) {
    this.#leaf?.render(false);
    this.#leaf = null;
    this.#containers.length = count;
  }
}

const isBlank = (text) => !/[^ \t]/.test(text);
const expandTabs = (spaces) => spaces.replaceAll("\t", "    ");

function stripQuote(line) {
  const found = /^ *> ?/.exec(line);
  return found && line.slice(found[0].length);
}

function stripItem(line, indent, leaf) {
  if (isBlank(line)) return line;
  if (indentOf(line) >= indent) return line.slice(indent);
  // Models forget to indent code in lists, and its end is marked anyway.
  return leaf instanceof Code ? line : null;
}
