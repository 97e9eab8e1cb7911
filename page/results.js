// The reply as something to look at. The first view that knows the first prediction shows them all; a new kind of
// prediction is a module in views/ with `matches(prediction)` and `render({predictions, input})`, and a line here.

import { fill, find, h } from "./dom.js";
import * as answers from "./views/answers.js";
import * as classes from "./views/classes.js";
import * as detections from "./views/detections.js";
import * as embeddings from "./views/embeddings.js";
import * as entities from "./views/entities.js";
import * as fillMask from "./views/fill_mask.js";
import * as plain from "./views/plain.js";
import * as table from "./views/table.js";
import * as tensors from "./views/tensors.js";
import * as probabilities from "./views/probabilities.js";
import * as segments from "./views/segments.js";
import { keep, picture } from "./views/picture.js";

const VIEWS = [detections, segments, embeddings, fillMask, entities, answers, classes, probabilities, table, plain];

// Before the reply: the pictures without anything on them.
export function showInputAlone(input) {
  keep(input.files ?? []);
  if (input.kind === "picture") fill(find("result"), input.files.map((file) => h("div", { class: "seen" }, picture(file).element)));
}

export function showResult(document, input) {
  fill(find("result"), render(document, input));
}

function render(document, input) {
  if (Array.isArray(document.outputs)) return tensors.render(document.outputs);
  const predictions = document.predictions ?? [document];
  const view = VIEWS.find(({ matches }) => matches(predictions[0]));
  return view.render({ predictions, input });
}
