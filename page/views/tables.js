// Shows tensors and records as tables, and anything else as JSON.

import { h, isObject } from "../dom.js";

const FIRST = 24; // values of a tensor that are shown
const MOST = 20000; // characters of JSON that are shown

const table = (label, names, rows) =>
  h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label },
    h("table", { class: "plain" }, h("thead", {}, h("tr", {}, names.map((name) => h("th", { scope: "col" }, name)))), h("tbody", {}, rows)));

export const firstOf = (values) => values.slice(0, FIRST).map(String).join(", ") + (values.length > FIRST ? `, … ${values.length - FIRST} more` : "");

// Show the outputs of KServe's protocol.
export const tensors = (outputs) =>
  table("The outputs", ["Output", "Type", "Shape", "Values"], outputs.map(({ name, datatype, shape, data = [] }) =>
    h("tr", {}, h("th", { scope: "row" }, name), h("td", {}, datatype), h("td", {}, shape.join(" × ")), h("td", { class: "mono" }, firstOf(data.flat(Infinity))))));

export const isRecord = (prediction) =>
  isObject(prediction) && Object.values(prediction).length > 0 && Object.values(prediction).every((value) => value === null || typeof value !== "object");

export function records({ predictions }) {
  const names = [...new Set(predictions.flatMap((each) => Object.keys(each)))];
  return table("The predictions", names, predictions.map((each) => h("tr", {}, names.map((name) => h("td", {}, word(each[name]))))));
}

const word = (value) => (typeof value === "number" && !Number.isInteger(value) ? value.toPrecision(5) : String(value ?? ""));

export const anything = ({ predictions }) => h("pre", { class: "mono", tabindex: 0 }, pretty(predictions));

// Return indented JSON, with each list of numbers or words on one line.
export function pretty(value) {
  const text = lines(value, "");
  return text.length > MOST ? `${text.slice(0, MOST)}\n… (${text.length - MOST} characters more)` : text;
}

function lines(value, indent) {
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const deeper = `${indent}  `;
  const isList = Array.isArray(value);
  if (isList && value.every((each) => each === null || typeof each !== "object")) return `[${value.map((each) => JSON.stringify(each)).join(", ")}]`;
  const parts = isList ? value.map((each) => lines(each, deeper)) : Object.entries(value).map(([key, each]) => `${JSON.stringify(key)}: ${lines(each, deeper)}`);
  const [open, close] = isList ? "[]" : "{}";
  const line = `${open}${parts.join(", ")}${close}`;
  return line.length < 60 && !line.includes("\n") ? line : `${open}\n${parts.map((part) => deeper + part).join(",\n")}\n${indent}${close}`;
}
