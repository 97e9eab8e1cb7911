// Of several instances each result says which one it is of.

import { h } from "../dom.js";

export function heading(predictions, input, index) {
  if (predictions.length < 2) return null;
  const value = input.values?.[index];
  return h("h3", {}, typeof value === "string" ? value : `Instance ${index + 1}`);
}
