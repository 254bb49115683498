// Elements from plain data. Text is always a text node: nothing that comes from outside is ever read as HTML.

const SVG = "http://www.w3.org/2000/svg";

function dress(node, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [event, act] of Object.entries(value)) node.addEventListener(event, act);
    else if (name === "value" || name === "checked" || name === "disabled") node[name] = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  return node;
}

function add(node, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
}

/** An HTML element: h("p", {class: "note"}, "text", otherElement). */
export function h(tag, attributes = {}, ...children) {
  return add(dress(document.createElement(tag), attributes), children);
}

/** The same for SVG. */
export function svg(tag, attributes = {}, ...children) {
  return add(dress(document.createElementNS(SVG, tag), attributes), children);
}

/** Replace what is inside. */
export function fill(node, ...children) {
  node.replaceChildren();
  return add(node, children);
}

/** Set a text if it differs: no work, and nothing for a screen reader, where nothing changed. */
export function write(node, text) {
  const word = text === null || text === undefined ? "" : String(text);
  if (node.textContent !== word) node.textContent = word;
}

/**
 * Make the children of `parent` those of `items`, in order, reusing what is there by key. What has the focus keeps it.
 * `make(item)` gives an element; `update(element, item)` writes the item into it.
 */
export function keyed(parent, items, key, make, update) {
  const old = new Map();
  for (const child of parent.children) old.set(child.keyOfItem, child);
  let place = parent.firstElementChild;
  for (const item of items) {
    const name = key(item);
    let child = old.get(name);
    if (child) old.delete(name);
    else {
      child = make(item);
      child.keyOfItem = name;
    }
    update(child, item);
    if (child === place) place = place.nextElementSibling;
    else parent.insertBefore(child, place);
  }
  for (const child of old.values()) child.remove();
}

let announcer = null;

/** Tell a screen reader, politely. Only for what a person would want to be interrupted by. */
export function announce(text) {
  announcer = announcer || document.getElementById("announcer");
  announcer.textContent = "";
  setTimeout(() => (announcer.textContent = text), 50); // the same sentence twice is told twice
}

let names = 0;

/** An id that no other element has. */
export function fresh(word) {
  names += 1;
  return `${word}-${names}`;
}
