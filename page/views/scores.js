// Shows classes, words and probabilities as bars, best first.

import { h, percent } from "../dom.js";
import { picture } from "./picture.js";

// Return a bar for each class, in the class's `colour` if it has one.
export function bars(classes) {
  return h("ol", { class: "bars" }, classes.map(({ label, score, colour }) =>
    h("li", { "--share": Math.max(0, Math.min(1, score)), ...(colour === undefined ? {} : { class: "coloured", "--hue": colour }) },
      h("span", { class: "name" }, label), h("span", { class: "number" }, percent(score)), h("span", { class: "bar", "aria-hidden": "true" }))));
}

// If there are several results, number them by instance.
function heading(predictions, input, index) {
  const value = input.values?.[index];
  return predictions.length > 1 && h("h3", {}, typeof value === "string" ? value : `Instance ${index + 1}`);
}

const block = (predictions, input, index, ...parts) => h("div", { class: "block" }, heading(predictions, input, index), ...parts);

// {"classes": [{"label", "class_id", "score"}]}
export const classes = ({ predictions, input }) =>
  predictions.map(({ classes }, index) =>
    input.kind === "picture"
      ? h("div", { class: "seen" }, picture(input.files[index]).element, h("div", { class: "results" }, bars(classes)))
      : block(predictions, input, index, bars(classes)));

// {"masks": [[{"token", "score", "sequence"}]]}: shows the words that may replace each [MASK].
export const masks = ({ predictions, input }) =>
  predictions.map(({ masks }, index) =>
    block(predictions, input, index, masks.map((words) => bars(words.map(({ token, score }) => ({ label: token, score }))))));

// {"prediction": …, "probabilities": {class: …}}
export const probabilities = ({ predictions, input }) =>
  predictions.map(({ prediction, probabilities }, index) => {
    const classes = Object.entries(probabilities).map(([label, score]) => ({ label, score }));
    const sorted = classes.sort((one, other) => other.score - one.score);
    return block(predictions, input, index, h("p", { class: "total" }, h("strong", {}, String(prediction))), bars(sorted));
  });
