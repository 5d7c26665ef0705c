/** The element of index.html with this id. */
export const byId = (id) => document.getElementById(id);

/**
 * A new element. Names with a hyphen, and `role`, are attributes; all others are properties.
 * Children are nodes or text, and text stays text: nothing here ever parses markup.
 */
export function element(name, properties = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key.includes("-") || key === "role") node.setAttribute(key, value);
    else node[key] = value;
  }
  node.append(...children);
  return node;
}

const SVG = "http://www.w3.org/2000/svg";

/** A symbol of index.html's sprite; decoration for who hears the page. */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  const use = document.createElementNS(SVG, "use");
  use.setAttribute("href", `#icon-${name}`);
  svg.append(use);
  return svg;
}

/** A button that shows an icon alone, named for everybody by its label. */
export function iconButton(name, label, onclick) {
  const properties = { type: "button", className: "icon-button", title: label, onclick };
  return element("button", { ...properties, "aria-label": label }, icon(name));
}

/** A button that copies what `text` returns, and says so for a moment. */
export function copyButton(label, text) {
  const button = iconButton("copy", label, async () => {
    const copied = await copyText(text());
    button.replaceChildren(icon(copied ? "check" : "cross"));
    announce(copied ? "Copied." : "The browser does not allow copying.");
    setTimeout(() => button.replaceChildren(icon("copy")), 1500);
  });
  return button;
}

async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Browsers have no clipboard on plain HTTP but from this machine itself; the old way still works.
    const field = element("textarea", { value: text, className: "visually-hidden" });
    const focused = document.activeElement;
    document.body.append(field);
    field.select();
    const copied = document.execCommand("copy");
    field.remove();
    focused?.focus();
    return copied;
  }
}

/** Say something to who hears the page, when what they are hearing is over. */
export function announce(text) {
  byId("announcer").textContent = text;
}

/** Call at most once a frame, and soon even where the page is hidden and has no frames. */
export function oncePerFrame(action) {
  let scheduled = false;
  return () => {
    if (scheduled) return;
    scheduled = true;
    const run = () => {
      scheduled = false;
      action();
    };
    if (document.hidden) setTimeout(run, 250);
    else requestAnimationFrame(run);
  };
}
