// KServe's outputs: name, type, shape and the first values of each tensor.

import { h } from "../dom.js";

const FIRST = 24;

export function render(outputs) {
  const row = ({ name, datatype, shape, data = [] }) => {
    const values = data.flat(Infinity);
    const rest = values.length > FIRST ? `, … ${values.length - FIRST} more` : "";
    return h("tr", {}, h("th", { scope: "row" }, name), h("td", {}, datatype), h("td", {}, shape.join(" × ")), h("td", { class: "mono" }, values.slice(0, FIRST).map(String).join(", ") + rest));
  };
  const head = ["Output", "Type", "Shape", "Values"].map((name) => h("th", { scope: "col" }, name));
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "The outputs" },
    h("table", { class: "plain" }, h("thead", {}, h("tr", {}, head)), h("tbody", {}, outputs.map(row))));
}
