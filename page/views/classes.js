// {"classes": [{"label", "class_id", "score"}]}: bars, best first; of a picture beside it.

import { h, percent } from "../dom.js";
import { picture } from "./picture.js";
import { heading } from "./heading.js";

export const matches = (prediction) => Array.isArray(prediction?.classes);

export function render({ predictions, input }) {
  return predictions.map(({ classes }, index) =>
    input.kind === "picture"
      ? h("div", { class: "seen" }, picture(input.files[index]).element, h("div", { class: "found" }, bars(classes)))
      : h("div", { class: "block" }, heading(predictions, input, index), bars(classes)));
}

// One with a `colour` of its own has a swatch, and its bar that colour.
export function bars(classes) {
  return h("ol", { class: "bars" }, classes.map(({ label, score, colour }) =>
    h("li", { "--share": Math.max(0, Math.min(1, score)), ...(colour === undefined ? {} : { class: "coloured", "--hue": colour }) }, h("span", { class: "name" }, label), h("span", { class: "number" }, percent(score)), h("span", { class: "bar", "aria-hidden": "true" }))));
}
