// Shows details below the result: how long each stage took, the reply's JSON, and the call as code.

import { copyButton, fill, find, h, milliseconds } from "./dom.js";
import { languages } from "./code.js";
import { tabs } from "./tabs.js";
import { pretty } from "./views/tables.js";

const WORDS = { decode: "Decode the input", preprocess: "Prepare tensors", triton: "Infer in Triton", postprocess: "Read the outputs" };

export function showDetails(call, reply) {
  find("details").hidden = false;
  if (reply) {
    fill(find("times"), times(reply));
    fill(find("json"), code("The reply's JSON", pretty(reply.document), () => reply.text));
  } else {
    const nothing = () => h("p", { class: "help" }, "There is no reply.");
    fill(find("times"), nothing());
    fill(find("json"), nothing());
  }
  showCode(call);
}

function times({ times, total, id }) {
  const rest = Math.max(0, total - times.reduce((sum, { duration }) => sum + duration, 0));
  const all = [...times.map(({ name, duration }) => [name, WORDS[name] ?? name, duration]), ["rest", "All else: HTTP and this browser", rest]];
  const bar = h("div", { class: "stack", "aria-hidden": "true" }, all.map(([name, , duration]) => h("span", { class: `part ${name}`, "--share": duration / total })));
  const rows = all.map(([name, words, duration]) => h("li", {}, h("span", { class: `swatch ${name}`, "aria-hidden": "true" }), h("span", { class: "name" }, words), h("span", { class: "number" }, milliseconds(duration))));
  return [h("p", { class: "total" }, h("strong", {}, milliseconds(total)), " in all"), bar, h("ol", { class: "rows" }, rows), id && h("p", { class: "help" }, "Request id: ", h("code", {}, id))];
}

function code(label, shown, whole = () => shown) {
  return h("div", { class: "code" }, copyButton(whole), h("pre", { class: "mono", tabindex: 0, role: "region", "aria-label": label }, shown));
}

let chosen = "curl";

function showCode(call) {
  const all = languages(call, location.origin);
  const names = all.map(([name]) => name);
  const first = Math.max(0, names.indexOf(chosen));
  const buttons = names.map((name, index) =>
    h("button", { role: "tab", type: "button", id: `tab-code-${index}`, "aria-controls": `code-${index}`, "aria-selected": String(index === first) }, name));
  const panels = all.map(([name, text], index) =>
    h("div", { role: "tabpanel", id: `code-${index}`, "aria-labelledby": `tab-code-${index}`, hidden: index !== first }, code(name, text)));
  const list = h("div", { class: "tabs small", role: "tablist", "aria-label": "Languages" }, buttons);
  fill(find("code"), list, panels);
  tabs(list, (tab) => (chosen = tab.textContent));
}
