// Any other prediction: its JSON.

import { h } from "../dom.js";

const MOST = 20000; // characters

export const matches = () => true;

export const render = ({ predictions }) => h("pre", { class: "mono", tabindex: 0 }, pretty(predictions));

// JSON in lines, with a list of numbers or words in one.
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
