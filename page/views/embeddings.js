// {"embedding": […]}: of several texts or pictures how similar each pair is (the cosine), of one its numbers as stripes.

import { h } from "../dom.js";
import { address, picture } from "./picture.js";

const MORE = ["Someone is having a meal.", "A band plays on a stage.", "The soup is almost ready."];

export const matches = (prediction) => Array.isArray(prediction?.embedding) && typeof prediction.embedding[0] === "number";

export function render({ predictions, input }) {
  const vectors = predictions.map(({ embedding }) => embedding);
  const cut = predictions.filter(({ truncated }) => truncated).length;
  const note = cut ? h("p", { class: "help" }, `${cut} of the texts are longer than the model reads: the rest was left out.`) : null;
  return h("div", { class: "block" }, vectors.length > 1 ? matrix(vectors, input) : alone(vectors[0], input), note);
}

function alone(vector, { files = [] }) {
  const what = files.length ? "pictures" : "texts";
  const seen = files.map((file) => h("div", { class: "seen" }, picture(file).element));
  return [...seen, h("h3", {}, `${vector.length} numbers`), stripes(vector), h("div", { class: "row" }, more(`Compare with other ${what}`))];
}

// The input adds some and asks again.
function more(text) {
  const ask = (event) => event.target.closest("#stage").querySelector(".ask, .drop")?.dispatchEvent(new CustomEvent("more", { detail: MORE }));
  return h("button", { type: "button", onclick: ask }, text);
}

// A stripe for each number: blue where it is positive, orange where it is negative.
function stripes(vector) {
  const canvas = h("canvas", { class: "stripes", width: vector.length, height: 1, role: "img", "aria-label": `the ${vector.length} numbers of the embedding as colours` });
  const most = Math.max(...vector.map(Math.abs)) || 1;
  const context = canvas.getContext("2d");
  vector.forEach((value, index) => {
    context.fillStyle = value < 0 ? `rgba(224, 122, 46, ${-value / most})` : `rgba(61, 90, 254, ${value / most})`;
    context.fillRect(index, 0, 1, 1);
  });
  return canvas;
}

export function cosine(one, other) {
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
    h("table", { class: "matrix" }, h("thead", {}, h("tr", {}, h("td", {}), numbers)), h("tbody", {}, rows))),
    files ? h("div", { class: "row" }, more("Add pictures")) : null];
}

const thumbnail = (file) => h("img", { class: "thumbnail", src: address(file), alt: file.name, title: file.name });
