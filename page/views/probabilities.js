// {"prediction": …, "probabilities": {class: …}}: what a classifier of rows says, and how sure it is.

import { h } from "../dom.js";
import { bars } from "./classes.js";
import { heading } from "./heading.js";

export const matches = (prediction) => prediction?.probabilities !== null && typeof prediction?.probabilities === "object";

export function render({ predictions, input }) {
  return predictions.map(({ prediction, probabilities }, index) => {
    const classes = Object.entries(probabilities).map(([label, score]) => ({ label, score }));
    const sorted = classes.sort((one, other) => other.score - one.score);
    return h("div", { class: "block" }, heading(predictions, input, index), h("p", { class: "total" }, h("strong", {}, String(prediction))), bars(sorted));
  });
}
