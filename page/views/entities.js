// {"entities": [{"label", "score", "word", "start", "end"}]}: marked in the text.

import { h } from "../dom.js";
import { marked } from "./marked.js";

export const matches = (prediction) => Array.isArray(prediction?.entities);

export function render({ predictions, input }) {
  return predictions.map(({ entities }, index) => {
    const value = input.values[index];
    return h("div", { class: "block" }, marked(value.text ?? value, entities), entities.length ? null : h("p", { class: "help" }, "No entities."));
  });
}
