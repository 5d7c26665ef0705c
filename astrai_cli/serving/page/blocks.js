const MAX_COLUMNS = 64;

export const indentOf = (text) => text.length - text.trimStart().length;

/**
 * The block that a line without its containers' marks begins; null where more of the line
 * must be known. opens: it is a container, and `rest` the line in it.
 *
 * above: the open leaf that the line would continue. mayNest: there may be more containers.
 */
export function blockOf(line, whole, above, mayNest) {
  const indent = indentOf(line);
  const rest = line.slice(indent);
  const text = { kind: "text", rest };
  if (!rest) return whole ? { kind: "nothing" } : null;
  if (above?.columns && /^[|:\- \t]+$/.test(rest) && /[|-]/.test(rest)) {
    if (!whole) return null;
    const alignments = tableAlignments(rest);
    if (alignments?.length === above.columns) return { kind: "table", alignments };
  }
  switch (rest[0]) {
    case "#":
      return heading(rest, whole) ?? (isMarks(rest, "#", 6) && !whole ? null : text);
    case "`":
    case "~":
      return fence(rest, whole, indent) ?? (mayBeFence(rest) && !whole ? null : text);
    case ">":
      return mayNest ? { opens: true, kind: "quote", rest: rest.replace(/^> ?/, "") } : text;
    case "-":
    case "*":
    case "_":
    case "+":
      return ruleOrItem(rest, whole, indent, mayNest, text);
    default:
      return /^\d/.test(rest) ? numberedItem(rest, whole, indent, mayNest, above, text) : text;
  }
}

const isMarks = (text, mark, most) => text.length <= most && text === mark.repeat(text.length);

function heading(rest, whole) {
  const found = /^(#{1,6})(?:[ \t]+|$)/.exec(rest);
  if (!found || (found[1] === rest && !whole)) return null;
  return { kind: "heading", level: found[1].length, rest: rest.slice(found[0].length) };
}

const FENCE = /^(`{3,}(?=[^`]*$)|~{3,})[ \t]*(.*)$/;
const mayBeFence = (rest) => FENCE.test(rest) || /^(?:`{1,2}|~{1,2})$/.test(rest);

function fence(rest, whole, indent) {
  const found = whole && FENCE.exec(rest);
  return found ? { kind: "code", mark: found[1], language: found[2].trim(), indent } : null;
}

function ruleOrItem(rest, whole, indent, mayNest, text) {
  const bare = rest.replace(/[ \t]/g, "");
  if (isMarks(bare, rest[0], bare.length)) {
    if (!whole) return null;
    if (bare.length >= 3 && rest[0] !== "+") return { kind: "rule" };
  }
  const found = mayNest && /^[-*+](?:[ \t]+|$)/.exec(rest);
  if (!found) return text;
  const inner = rest.slice(found[0].length);
  return { opens: true, kind: "item", ordered: false, indent: indent + 2, rest: inner };
}

function numberedItem(rest, whole, indent, mayNest, above, text) {
  if (!whole && /^\d{1,9}[.)]?$/.test(rest)) return null;
  const found = mayNest && /^(\d{1,9})[.)](?:[ \t]+|$)/.exec(rest);
  // A line of a paragraph may begin with a year.
  if (!found || (above?.continues && Number(found[1]) !== 1)) return text;
  const inner = rest.slice(found[0].length);
  const start = Number(found[1]);
  return { opens: true, kind: "item", ordered: true, start, indent: indent + 2, rest: inner };
}

/** The cells of a row, bars at its ends left out. */
export function tableCells(row) {
  const inner = row.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "");
  return inner.split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

/** A class for each column of a delimiter row, or null where the row is none. */
function tableAlignments(row) {
  const cells = tableCells(row);
  if (cells.length > MAX_COLUMNS || !cells.every((cell) => /^:?-+:?$/.test(cell))) return null;
  return cells.map((cell) => {
    if (!cell.endsWith(":")) return "";
    return cell.startsWith(":") ? "centred" : "right";
  });
}
