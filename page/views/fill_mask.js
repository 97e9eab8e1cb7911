// {"masks": [[{"token", "score", "sequence"}]]}: for each [MASK] the words that may stand there.

import { h } from "../dom.js";
import { bars } from "./classes.js";
import { heading } from "./heading.js";

export const matches = (prediction) => Array.isArray(prediction?.masks) && Array.isArray(prediction.masks[0]);

export function render({ predictions, input }) {
  return predictions.map(({ masks }, index) =>
    h("div", { class: "block" }, heading(predictions, input, index), masks.map((words) => bars(words.map(({ token, score }) => ({ label: token, score }))))));
}
