// Shows a model's input: a picture, texts, fields of a JSON object, or tensors. The elements are created when a model
// is chosen, and call `run(input)` when there is something to send.

import { example } from "./api.js";
import { fill, find, h, isObject } from "./dom.js";

const PICTURES = ["image", "encoded image"];

export async function showInput(model, run, failed) {
  const box = find("input");
  const asked = { model, run, failed, example: () => example(model.name) };
  if (!model.client) return fill(box, tensors(asked));
  if (PICTURES.includes(model.codec)) return fill(box, ...picture(asked));
  const first = await asked.example().then(({ data }) => data.text(), () => "");
  const isText = model.codec === "text" && !isObject(attempt(() => JSON.parse(first)));
  return fill(box, isText ? texts(asked, first) : value(asked, first));
}

// Takes the pictures that are dropped anywhere on the page or pasted. Null if the model's input is not a picture.
let takeFiles = null;

export function listen() {
  const over = (on) => () => find("stage").classList.toggle("over", on && takeFiles !== null);
  for (const name of ["dragenter", "dragover"]) {
    addEventListener(name, (event) => (event.preventDefault(), over(true)()));
  }
  addEventListener("dragleave", over(false));
  addEventListener("drop", (event) => {
    event.preventDefault();
    over(false)();
    takeFiles?.([...event.dataTransfer.files]);
  });
  addEventListener("paste", (event) => takeFiles?.([...event.clipboardData.files]));
}

export const forget = () => (takeFiles = null);

function picture({ run, failed, example }) {
  const take = (files) => {
    if (!files.length) return;
    find("input").classList.add("compact");
    run({ kind: "picture", files });
  };
  takeFiles = take;
  const chooser = h("input", { type: "file", accept: "image/*", multiple: true, id: "file", class: "unseen", onchange: chosen });
  function chosen() {
    take([...chooser.files]);
    chooser.value = ""; // so that the same file can be chosen again
  }
  const useExample = () => example().then(({ data, name }) => take([new File([data], name, { type: data.type })]), failed);
  return [
    h("div", { class: "drop" },
      h("p", { class: "hint" }, h("span", { class: "big" }, "Drop a picture here"), " or several, or paste one"),
      h("div", { class: "row" },
        h("label", { class: "button primary", for: "file" }, chooser, "Choose a picture"),
        h("button", { type: "button", onclick: useExample }, "Use the example"))),
  ];
}

function texts({ run }, first) {
  const list = h("ol", { class: "texts" });
  const send = () => {
    const values = [...list.querySelectorAll("textarea")].map(({ value }) => value).filter((text) => text.trim());
    if (values.length) run({ kind: "instances", values });
  };
  const keys = (event) => event.key === "Enter" && (event.ctrlKey || event.metaKey) && send();
  function add(text = "") {
    const area = h("textarea", { rows: 1, "aria-label": `Text ${list.children.length + 1}`, placeholder: "Type a text", onkeydown: keys }, text);
    list.append(h("li", {}, area));
    return area;
  }
  add(first.trim());
  return h("div", { class: "ask" }, list,
    h("div", { class: "row" },
      h("button", { type: "button", class: "primary", id: "run", onclick: send }, "Run"),
      h("button", { type: "button", onclick: () => add().focus() }, "Add a text")));
}

// Show a form if the example is an object of words and numbers, and otherwise a text field for JSON.
function value({ model, run, failed }, first) {
  const parsed = named(attempt(() => JSON.parse(first)), model.columns);
  const plain = isObject(parsed) && Object.values(parsed).every(isWord);
  if (!plain) return json("instance", first, failed, (instance) => run({ kind: "instances", values: [instance] }));
  const fields = Object.entries(parsed).map(([name, word]) => [name, word, field(name, word)]);
  const send = () => run({ kind: "instances", values: [Object.fromEntries(fields.map(([name, word, { input }]) => [name, read(word, input)]))] });
  return h("div", { class: "ask" }, h("div", { class: "fields" }, fields.map(([, , { element }]) => element)),
    h("div", { class: "row" }, h("button", { type: "button", class: "primary", id: "run", onclick: send }, "Run")));
}

// Return the cells of a table's row, keyed by the names of the columns.
const named = (cells, columns) =>
  columns && Array.isArray(cells) ? Object.fromEntries(columns.map((name, index) => [name, cells[index]])) : cells;

const isWord = (word) => word === null || typeof word !== "object";

function read(word, input) {
  if (typeof word === "boolean") return input.checked;
  return typeof word === "number" && input.value !== "" ? Number(input.value) : input.value;
}

function field(name, word) {
  const id = `field-${name.replace(/\W/g, "-")}`;
  const long = typeof word === "string" && word.length > 40;
  const kind = { number: { type: "number", step: "any" }, boolean: { type: "checkbox", checked: word } }[typeof word] ?? {};
  const input = long ? h("textarea", { id, rows: 4 }, word) : h("input", { id, value: word ?? "", ...kind });
  return { input, element: h("div", { class: long ? "field wide" : "field" }, h("label", { for: id }, name), input) };
}

const ONES = 1;

function tensors({ model, run, failed }) {
  const input = ({ name, datatype, shape }) => {
    const whole = [...(model.max_batch_size ? [1] : []), ...shape.map((side) => (side < 0 ? ONES : side))];
    const count = whole.reduce((product, side) => product * side, 1);
    const one = { BYTES: "text", BOOL: true }[datatype] ?? 0;
    return { name, datatype, shape: whole, data: Array(Math.min(count, 4096)).fill(one) };
  };
  const document = { inputs: (model.inputs ?? []).map(input) };
  return json("tensors", JSON.stringify(document, null, 1), failed, (document) => run({ kind: "tensors", document }));
}

function json(what, text, failed, use) {
  const area = h("textarea", { rows: 8, class: "mono", id: "document", spellcheck: "false" }, text);
  const send = () => {
    const value = attempt(() => JSON.parse(area.value));
    if (value === undefined) failed(new Error("this is not valid JSON"));
    else use(value);
  };
  return h("div", { class: "ask" }, h("label", { for: "document" }, `The ${what}, as JSON`), area,
    h("div", { class: "row" }, h("button", { type: "button", class: "primary", id: "run", onclick: send }, "Run")));
}

function attempt(parse) {
  try {
    return parse();
  } catch {
    return undefined;
  }
}
