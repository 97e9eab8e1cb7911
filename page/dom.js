// Creates elements. Text always becomes text nodes, so nothing from a model, a file or a server is parsed as HTML.

export const find = (id) => document.getElementById(id);

// Example: h("li", { class: "row", onclick: f, "--share": 0.5 }, "text", element). Names that begin with -- are CSS
// properties.
export function h(tag, properties = {}, ...children) {
  return filled(document.createElement(tag), properties, children);
}

// Do the same as `h` for an SVG element.
export function svg(tag, properties = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), properties, children);
}

function filled(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) set(element, name, value);
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

function set(element, name, value) {
  if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
  else if (name.startsWith("--")) element.style.setProperty(name, value);
  else if (value === true) element.setAttribute(name, "");
  else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
}

export const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

export const fill = (element, ...children) => {
  element.replaceChildren(...children.flat().filter(Boolean));
  return element;
};

export const percent = (share) => `${(100 * share).toFixed(1)} %`;

// Return a hue for a class. Consecutive classes are a golden angle apart, so their colours are easy to distinguish.
export const hue = (number) => Math.round((number * 137.508 + 225) % 360);

export const milliseconds = (value) => (value < 10 ? `${value.toFixed(1)} ms` : `${Math.round(value)} ms`);

// Browsers offer navigator.clipboard only on localhost and over https.
export function copyButton(text) {
  const button = h("button", { type: "button", class: "copy", hidden: !navigator.clipboard, onclick: copy }, "Copy");
  async function copy() {
    await navigator.clipboard.writeText(text());
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  }
  return button;
}
