import { element } from "./dom.js";

const MAX_DEPTH = 24;
const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', nbsp: "\u00a0", "#39": "'" };

// Each is tried at one place (y), and is bounded or cannot backtrack far.
const PLAIN = /[^\\`*_~![\]<&\nh]+/y;
const CODE = /(`+)([^`]|[^`][^]*?[^`])\1(?!`)/y;
const OPEN_CODE = /(`+)([^`][^]*)$/y;
const DESTINATION =
  /\(\s{0,8}(?:<([^<>\n]{0,2048})>|((?:[^\s()]|\([^\s()]{0,512}\)){0,2048}))(?:\s{1,8}"[^"]{0,512}")?\s{0,8}\)/y;
const OPEN_DESTINATION = /\([^\s)]*$/y;
const ANGLE_LINK = /<((?:https?:\/\/|mailto:)[^\s<>]{1,2048})>/y;
const BARE_LINK = /https?:\/\/[^\s<>`|]{1,2048}/y;
const BREAK = /<br ?\/?>/iy;
const ENTITY = /&(amp|lt|gt|quot|nbsp|#39);/y;
const RUN = /(.)\1*/y;

/** The address as links may have it, or null: web and mail addresses only. */
export function safeAddress(text) {
  try {
    const url = new URL(text);
    return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

/**
 * Markdown's emphasis, code, links and line ends as nodes. HTML is text, all but <br>.
 *
 * open: the text is still growing. What is not closed yet is shown as if it were, and
 * half a delimiter at the end is not shown, so that little changes when the rest comes.
 */
export function inlineNodes(text, open = false) {
  return new InlineParser(open ? withoutTrailingMarks(text) : text, open).parse();
}

function withoutTrailingMarks(text) {
  let end = text.length;
  while (end && "*_~`".includes(text[end - 1])) end--;
  return text.slice(0, end);
}

/** One pass over the text, with a stack of the delimiters that may still be closed. */
class InlineParser {
  #source;
  #open;
  #at = 0;
  #text = "";
  #frames = [{ marker: "", nodes: [] }];

  constructor(source, open) {
    this.#source = source;
    this.#open = open;
  }

  parse() {
    while (this.#at < this.#source.length) this.#step();
    while (this.#frames.length > 1) {
      const { marker, count } = this.#frames.at(-1);
      if (this.#open && /[*_~]/.test(marker)) this.#wrap(count);
      else this.#flatten();
    }
    this.#endText();
    return this.#frames[0].nodes;
  }

  #step() {
    const char = this.#source[this.#at];
    switch (char) {
      case "\\":
        return this.#escape();
      case "`":
        return this.#code();
      case "*":
      case "_":
      case "~":
        return this.#delimiter(char);
      case "!":
        return this.#source[this.#at + 1] === "[" ? this.#bracket("![") : this.#take(1);
      case "[":
        return this.#bracket("[");
      case "]":
        return this.#endBracket();
      case "<":
        return this.#angle();
      case "&":
        return this.#entity();
      case "h":
        return this.#bareLink();
      case "\n":
        this.#at++;
        return this.#add(element("br"));
      default:
        return this.#take(this.#match(PLAIN)[0].length);
    }
  }

  #match(pattern) {
    pattern.lastIndex = this.#at;
    return pattern.exec(this.#source);
  }

  #take(length) {
    this.#text += this.#source.slice(this.#at, this.#at + length);
    this.#at += length;
  }

  #add(...nodes) {
    this.#endText();
    this.#frames.at(-1).nodes.push(...nodes);
  }

  #endText() {
    if (this.#text) this.#frames.at(-1).nodes.push(document.createTextNode(this.#text));
    this.#text = "";
  }

  #escape() {
    const next = this.#source[this.#at + 1] ?? "";
    if (/[!-/:-@[-`{-~]/.test(next)) this.#at++;
    if (next === "\n") this.#at++;
    else this.#take(1);
  }

  #code() {
    const found = this.#match(CODE) ?? (this.#open && this.#match(OPEN_CODE));
    if (!found) return this.#take(this.#match(RUN)[0].length);
    const [whole, , inner] = found;
    const text = inner.replaceAll("\n", " ");
    const padded = text.startsWith(" ") && text.endsWith(" ") && text.trim();
    this.#add(element("code", {}, padded ? text.slice(1, -1) : text));
    this.#at += whole.length;
  }

  /** A run of * _ or ~~: closes what it can, opens what is left, or is text. */
  #delimiter(char) {
    const { length } = this.#match(RUN)[0];
    const { opens, closes } = flanks(this.#source, this.#at, length);
    if (char === "~" && length !== 2) return this.#take(length);
    this.#at += length;
    let count = length;
    while (count && closes) {
      const index = this.#frames.findLastIndex(
        (frame) => frame.marker === char && mayClose(frame, { opens, length }),
      );
      if (index < 0) break;
      while (this.#frames.length > index + 1) this.#flatten();
      const used = Math.min(2, count, this.#frames[index].count);
      this.#wrap(used);
      count -= used;
    }
    if (!count) return;
    if (opens && this.#frames.length < MAX_DEPTH) {
      this.#endText();
      this.#frames.push({ marker: char, count, length, closes, nodes: [] });
    } else {
      this.#text += char.repeat(count);
    }
  }

  /** Close `used` characters of the delimiter on top of the stack. */
  #wrap(used) {
    this.#endText();
    const frame = this.#frames.at(-1);
    const name = frame.marker === "~" ? "del" : used === 2 ? "strong" : "em";
    let node = element(name, {}, ...frame.nodes);
    // Three at once, where the text ends before they are closed.
    if (used === 3) node = element("strong", {}, node);
    frame.count -= used;
    if (frame.count > 0) {
      frame.nodes = [node];
    } else {
      this.#frames.pop();
      this.#add(node);
    }
  }

  /** The delimiter on top of the stack was never closed: it is text. */
  #flatten() {
    this.#endText();
    const { marker, count, nodes } = this.#frames.pop();
    this.#text += marker.repeat(count);
    this.#add(...nodes);
  }

  #bracket(marker) {
    if (this.#frames.length >= MAX_DEPTH) return this.#take(marker.length);
    this.#endText();
    this.#frames.push({ marker, count: 1, nodes: [] });
    this.#at += marker.length;
  }

  #endBracket() {
    const isBracket = (frame) => frame.marker.endsWith("[");
    const index = this.#frames.findLastIndex(isBracket);
    if (index < 0) return this.#take(1);
    while (this.#frames.length > index + 1) this.#flatten();
    this.#at++;
    const found = this.#match(DESTINATION) ?? (this.#open && this.#match(OPEN_DESTINATION));
    if (!found) {
      this.#flatten();
      this.#text += "]";
      return;
    }
    this.#at += found[0].length;
    this.#endText();
    const { nodes } = this.#frames.pop();
    this.#add(...linked(nodes, found[1] ?? found[2] ?? ""));
    // A link holds no other.
    for (const frame of this.#frames.filter(isBracket)) {
      frame.nodes.unshift(document.createTextNode(frame.marker));
      Object.assign(frame, { marker: "", count: 0 });
    }
  }

  #angle() {
    const found = this.#match(ANGLE_LINK);
    if (found) {
      this.#add(...linked([document.createTextNode(found[1])], found[1]));
    } else if (this.#match(BREAK)) {
      this.#add(element("br"));
    } else {
      return this.#take(1);
    }
    this.#at = this.#source.indexOf(">", this.#at) + 1;
  }

  #entity() {
    const found = this.#match(ENTITY);
    if (!found) return this.#take(1);
    this.#text += ENTITIES[found[1]];
    this.#at += found[0].length;
  }

  #bareLink() {
    const inLink = this.#frames.some((frame) => frame.marker.endsWith("["));
    const inWord = /[\p{L}\p{N}]/u.test(this.#source[this.#at - 1] ?? "");
    const found = inLink || inWord ? null : this.#match(BARE_LINK);
    if (!found) return this.#take(1);
    let [address] = found;
    if (!address.includes("(")) [address] = address.split(")");
    address = address.replace(/[.,:;!?'"*_~\]]{1,64}$/, "");
    if (!safeAddress(address)) return this.#take(1);
    this.#add(...linked([document.createTextNode(address)], address));
    this.#at += address.length;
  }
}

/** The nodes as a link, or as they are where the address is none that is safe. */
function linked(nodes, address) {
  const href = safeAddress(address);
  if (!href) return nodes;
  const attributes = { href, target: "_blank", rel: "noopener noreferrer", title: href };
  return [element("a", attributes, ...nodes)];
}

/** Whether a run of delimiters may open or close emphasis: CommonMark 0.31, section 6.2. */
function flanks(text, at, length) {
  const before = text[at - 1] ?? " ";
  const after = text[at + length] ?? " ";
  const isSpace = (char) => /\s/.test(char);
  const isMark = (char) => /[\p{P}\p{S}]/u.test(char);
  const left = !isSpace(after) && (!isMark(after) || isSpace(before) || isMark(before));
  const right = !isSpace(before) && (!isMark(before) || isSpace(after) || isMark(after));
  if (text[at] !== "_") return { opens: left, closes: right };
  return { opens: left && (!right || isMark(before)), closes: right && (!left || isMark(after)) };
}

/** CommonMark's rules 9 and 10, of runs that could both open and close. */
function mayClose(frame, run) {
  const ambiguous = frame.closes || run.opens;
  const sum = frame.length + run.length;
  return !ambiguous || sum % 3 !== 0 || frame.length % 3 === 0;
}
