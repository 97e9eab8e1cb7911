// Shows the reply. The first view in VIEWS whose condition holds for the first prediction renders all predictions. To
// add a kind of prediction, write a function of {predictions, input} in views/ and add a line to VIEWS.

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

// Show the pictures alone, until the reply arrives.
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
