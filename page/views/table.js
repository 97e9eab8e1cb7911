// Objects of words and numbers: a row for each instance.

import { h } from "../dom.js";

const isWord = (value) => value === null || typeof value !== "object";

export const matches = (prediction) => prediction && typeof prediction === "object" && !Array.isArray(prediction) && Object.values(prediction).length > 0 && Object.values(prediction).every(isWord);

export function render({ predictions }) {
  const names = [...new Set(predictions.flatMap((each) => Object.keys(each)))];
  const row = (prediction) => h("tr", {}, names.map((name) => h("td", {}, word(prediction[name]))));
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "The predictions" },
    h("table", { class: "plain" }, h("thead", {}, h("tr", {}, names.map((name) => h("th", { scope: "col" }, name)))), h("tbody", {}, predictions.map(row))));
}

const word = (value) => (typeof value === "number" && !Number.isInteger(value) ? value.toPrecision(5) : String(value ?? ""));
