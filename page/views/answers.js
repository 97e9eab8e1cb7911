// {"answers": [{"answer", "score", "start", "end"}]}: the best one marked in its passage, and bars of all.

import { h } from "../dom.js";
import { bars } from "./classes.js";
import { marked } from "./marked.js";

export const matches = (prediction) => Array.isArray(prediction?.answers);

export function render({ predictions, input }) {
  return predictions.map(({ answers }, index) => {
    const all = answers.map(({ answer, score }) => ({ label: answer || "(no answer)", score }));
    const passage = input.values[index].context ?? "";
    return h("div", { class: "block" }, bars(all), marked(passage, answers.slice(0, 1)));
  });
}
