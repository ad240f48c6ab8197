// The only way into the document: elements are created, text is text. Nothing here, or anywhere, parses HTML.

import { clean } from "/page/text.js";

const SVG = "http://www.w3.org/2000/svg";

function dress(node, attributes) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, handler] of Object.entries(value)) node.addEventListener(event, handler);
    else if (name === "vars") for (const [key, each] of Object.entries(value)) node.style.setProperty(key, each);
    else if (name === "value") node.value = value;
    else if (name === "checked" || name === "disabled" || name === "open" || name === "selected" || name === "required") node[name] = Boolean(value);
    else node.setAttribute(name, value === true ? "" : clean(value));
  }
}

function fill(node, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(clean(child)));
  }
  return node;
}

export function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  dress(node, attributes);
  return fill(node, children);
}

export function svg(tag, attributes, ...children) {
  const node = document.createElementNS(SVG, tag);
  dress(node, attributes);
  return fill(node, children);
}

export const set = (node, ...children) => {
  node.replaceChildren();
  return fill(node, children);
};

/** Change the text only where it differs: an unchanged page costs nothing, and readers are not told twice. */
export function say(node, value) {
  const text = clean(value);
  if (node.textContent !== text) node.textContent = text;
}

/** Text that somebody else wrote: kept apart from the direction of what stands around it. */
export const theirs = (value) => el("bdi", { class: "theirs" }, value);

/** One part per item, kept as long as its key stays, in the order of the items. A part is {node, update(item)}. */
export function keyed(parent, make) {
  const parts = new Map();
  return (items, key) => {
    const keep = new Set(items.map(key));
    for (const [name, part] of parts) {
      if (keep.has(name)) continue;
      part.node.remove();
      parts.delete(name);
    }
    items.forEach((item, at) => {
      const name = key(item);
      let part = parts.get(name);
      if (!part) parts.set(name, (part = make(item)));
      part.update(item);
      if (parent.children[at] !== part.node) parent.insertBefore(part.node, parent.children[at] ?? null);
    });
    return parts;
  };
}

/** Told to readers of the screen by ear. */
export const speak = (text) => say(document.getElementById("spoken"), text);

export const link = (href, text, attributes = {}) => el("a", { href, ...attributes }, text);

export const button = (text, click, attributes = {}) => el("button", { type: "button", ...attributes, on: { click } }, text);

export function panel(title, ...children) {
  const id = `h${(panel.count = (panel.count ?? 0) + 1)}`;
  const heading = el("h2", { id }, title);
  const head = el("div", { class: "panel-head" }, heading);
  const node = el("section", { class: "panel", "aria-labelledby": id }, head, ...children);
  return Object.assign(node, { head, heading });
}

/** A table whose first column names the row. */
export function table(caption, columns, rows, attributes = {}) {
  return el(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": caption, ...attributes },
    el(
      "table",
      {},
      el("caption", { class: "unseen" }, caption),
      el("thead", {}, el("tr", {}, columns.map((each) => el("th", { scope: "col", class: each.startsWith("#") ? "number" : null }, each.replace(/^#/, ""))))),
      el("tbody", {}, rows.map((cells) => el("tr", {}, cells.map((cell, at) => el(at ? "td" : "th", { scope: at ? null : "row", class: columns[at].startsWith("#") ? "number" : null }, cell))))),
    ),
  );
}

export function field(label, control, hint) {
  const id = control.id || `f${(field.count = (field.count ?? 0) + 1)}`;
  control.id = id;
  const about = hint ? el("span", { class: "hint", id: `${id}h` }, hint) : null;
  if (about) control.setAttribute("aria-describedby", about.id);
  return el("div", { class: "field" }, el("label", { for: id }, label), control, about);
}

export const choice = (options, value, change) =>
  el("select", { on: { change: (event) => change(event.target.value) } }, options.map(([key, text]) => el("option", { value: key, selected: key === value }, text)));
