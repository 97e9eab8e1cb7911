// {"embedding": […]}: shows how similar each pair of texts or pictures is (the cosine), or the first numbers of a
// single embedding.

import { h } from "../dom.js";
import { address, picture } from "./picture.js";
import { firstOf } from "./tables.js";

export function embeddings({ predictions, input }) {
  const vectors = predictions.map(({ embedding }) => embedding);
  const cut = predictions.filter(({ truncated }) => truncated).length;
  const note = cut ? h("p", { class: "help" }, `${cut} of the texts are longer than the model reads: the rest was left out.`) : null;
  return h("div", { class: "block" }, vectors.length > 1 ? matrix(vectors, input) : alone(vectors[0], input), note);
}

function alone(vector, { files = [] }) {
  const seen = files.map((file) => h("div", { class: "seen" }, picture(file).element));
  const help = `Send several ${files.length ? "pictures" : "texts"} at once to see how similar they are.`;
  return [...seen, h("h3", {}, `${vector.length} numbers`), h("p", { class: "mono" }, firstOf(vector)), h("p", { class: "help" }, help)];
}

function cosine(one, other) {
  let dot = 0, first = 0, second = 0;
  one.forEach((value, index) => {
    dot += value * other[index];
    first += value * value;
    second += other[index] * other[index];
  });
  return dot / (Math.sqrt(first * second) || 1);
}

function matrix(vectors, { files, values }) {
  const what = files ? "Picture" : "Text";
  const shown = (index) => (files ? thumbnail(files[index]) : h("span", { class: "text" }, values[index]));
  const cell = (row, column) => {
    const value = cosine(vectors[row], vectors[column]);
    return h("td", { "--share": Math.max(0, value), class: row === column ? "self" : "" }, value.toFixed(2));
  };
  const numbers = vectors.map((_, index) => h("th", { scope: "col" }, h("span", { class: "unseen" }, `${what} `), String(index + 1)));
  const rows = vectors.map((_, row) =>
    h("tr", {}, h("th", { scope: "row" }, h("span", { class: "index" }, String(row + 1)), shown(row)), vectors.map((_, column) => cell(row, column))));
  return [h("h3", {}, "Similarity"), h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `How similar the ${what.toLowerCase()}s are` },
    h("table", { class: "matrix" }, h("thead", {}, h("tr", {}, h("td", {}), numbers)), h("tbody", {}, rows)))];
}

const thumbnail = (file) => h("img", { class: "thumbnail", src: address(file), alt: file.name, title: file.name });
