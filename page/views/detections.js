// {"detections": [{"label", "class_id", "score", "box", "polygons", "keypoints"}], "image"}: shows boxes, masks and
// keypoints on the picture, and a list of the objects.

import { h, hue, percent, svg } from "../dom.js";
import { picture } from "./picture.js";

const MOST = 400; // boxes that are drawn; thousands would only hide the picture
const SEEN = 0.5; // keypoints with a lower score are not drawn, as in pictures that the server draws

export function detections({ predictions, input }) {
  return predictions.map((prediction, index) => one(prediction, input.files?.[index]));
}

function one({ detections, image }, file) {
  const { element, layer } = picture(file ?? new Blob(), image);
  const shown = detections.slice(0, MOST);
  const boxes = shown.map((each) => box(each, image));
  const shapes = shown.map((each) => shape(each, image));
  const rows = shown.map((each, index) => row(each, [boxes[index], shapes[index]]));
  layer.append(drawing(shapes, image), ...boxes);
  const count = detections.length === 1 ? "1 object" : `${detections.length} objects`;
  const more = detections.length > MOST ? `, ${MOST} of them shown` : "";
  return h("div", { class: "seen" }, element,
    h("div", { class: "results" }, h("h3", {}, count + more), h("ol", { class: "rows", tabindex: 0, "aria-label": "Objects, best first" }, rows)));
}

function box({ label, class_id, score, box: { xmin, ymin, xmax, ymax } }, { width, height }) {
  const position = { "--x": xmin / width, "--y": ymin / height, "--w": (xmax - xmin) / width, "--h": (ymax - ymin) / height };
  const name = ymin / height < 0.05 ? "box high" : "box"; // its label is inside, because above it would be outside the picture
  return h("div", { class: name, "--hue": hue(class_id), ...position, "data-label": label, title: `${label} ${percent(score)}` }, h("span", {}, label));
}

// Draw in pixels of the picture, with the best detections on top.
const drawing = (shapes, { width, height }) =>
  svg("svg", { class: "shapes", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" }, shapes.toReversed());

// Return the mask of one object, and its keypoints.
function shape({ class_id, polygons = [], keypoints = [] }, { width, height }) {
  const radius = Math.max((width + height) / 250, 1);
  const seen = keypoints.filter(({ score = 1 }) => score >= SEEN);
  return svg("g", { "--hue": hue(class_id) },
    polygons.map((points) => svg("polygon", { points: points.join(" ") })),
    seen.map(({ x, y }) => svg("circle", { cx: x, cy: y, r: radius })));
}

function row({ label, class_id, score }, drawn) {
  const mark = (on) => () => drawn.forEach((each) => each.classList.toggle("marked", on));
  const element = h("li", { "--hue": hue(class_id), onpointerenter: mark(true), onpointerleave: mark(false) },
    h("span", { class: "swatch", "aria-hidden": "true" }), h("span", { class: "name" }, label), h("span", { class: "number" }, percent(score)));
  return element;
}
