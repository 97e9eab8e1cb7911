// Shows entities and answers, marked in their text. Positions count characters as Python does, not UTF-16 code units.

import { h, hue } from "../dom.js";
import { bars } from "./scores.js";

// {"entities": [{"label", "score", "word", "start", "end"}]}
export const entities = ({ predictions, input }) =>
  predictions.map(({ entities }, index) => {
    const value = input.values[index];
    return h("div", { class: "block" }, marked(value.text ?? value, entities), entities.length ? null : h("p", { class: "help" }, "No entities."));
  });

// {"answers": [{"answer", "score", "start", "end"}]}: shows all answers as bars, and marks the best one in its passage.
export const answers = ({ predictions, input }) =>
  predictions.map(({ answers }, index) => {
    const all = answers.map(({ answer, score }) => ({ label: answer || "(no answer)", score }));
    return h("div", { class: "block" }, bars(all), marked(input.values[index].context ?? "", answers.slice(0, 1)));
  });

// `spans` are [{start, end, label}] in any order. If two overlap, only the first is marked.
function marked(text, spans) {
  const characters = Array.from(text);
  const labels = [...new Set(spans.map(({ label }) => label))];
  const parts = [];
  let at = 0;
  for (const { start, end, label } of [...spans].sort((one, other) => one.start - other.start)) {
    if (start < at || end <= start) continue;
    const word = characters.slice(start, end).join("");
    parts.push(characters.slice(at, start).join(""), h("mark", { "--hue": hue(labels.indexOf(label)) }, word, label && h("span", {}, label)));
    at = end;
  }
  return h("p", { class: "passage" }, parts, characters.slice(at).join(""));
}
