// Shows the reply. The first view that takes the first prediction renders all of them. A new kind of prediction is a
// function in views/ of {predictions, input}, and a line here.

import { fill, find, h, isObject } from "./dom.js";
import { detections } from "./views/detections.js";
import { embeddings } from "./views/embeddings.js";
import { answers, entities } from "./views/passages.js";
import { keep, picture } from "./views/picture.js";
import { classes, masks, probabilities } from "./views/scores.js";
import { segments } from "./views/segments.js";
import { anything, isRecord, records, tensors } from "./views/tables.js";

const VIEWS = [
  [({ detections }) => Array.isArray(detections), detections],
  [({ segments }) => Array.isArray(segments), segments],
  [({ embedding }) => Array.isArray(embedding) && typeof embedding[0] === "number", embeddings],
  [({ masks }) => Array.isArray(masks) && Array.isArray(masks[0]), masks],
  [({ entities }) => Array.isArray(entities), entities],
  [({ answers }) => Array.isArray(answers), answers],
  [({ classes }) => Array.isArray(classes), classes],
  [({ probabilities }) => isObject(probabilities), probabilities],
  [isRecord, records],
  [() => true, anything],
];

// Before the reply: the pictures without anything on them.
export function showInputAlone(input) {
  keep(input.files ?? []);
  if (input.kind === "picture") fill(find("result"), input.files.map((file) => h("div", { class: "seen" }, picture(file).element)));
}

export function showResult(document, input) {
  fill(find("result"), render(document, input));
}

function render(document, input) {
  if (Array.isArray(document.outputs)) return tensors(document.outputs);
  const predictions = document.predictions ?? [document];
  const [, view] = VIEWS.find(([takes]) => takes(predictions[0] ?? {}));
  return view({ predictions, input });
}
