// A text with parts of it marked. Places count characters as Python does, not UTF-16's units.

import { h, hue } from "../dom.js";

// `spans` are [{start, end, label}] in any order; of two that overlap the first stands.
export function marked(text, spans) {
  const characters = Array.from(text);
  const labels = [...new Set(spans.map(({ label }) => label))];
  const parts = [];
  let at = 0;
  for (const { start, end, label } of [...spans].sort((one, other) => one.start - other.start)) {
    if (start < at || end <= start) continue;
    parts.push(characters.slice(at, start).join(""), mark(characters.slice(start, end).join(""), label, hue(labels.indexOf(label))));
    at = end;
  }
  return h("p", { class: "passage" }, parts, characters.slice(at).join(""));
}

const mark = (text, label, colour) => h("mark", { "--hue": colour }, text, label && h("span", {}, label));
