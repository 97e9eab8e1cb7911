// {"segments": [{"label", "class_id", "share"}], "map": {"b64"}, "image"}: shows the class of each pixel as a
// transparent layer over the picture, and the classes' shares as bars.

import { h, hue } from "../dom.js";
import { slider } from "../parameters.js";
import { bars } from "./scores.js";
import { picture } from "./picture.js";

const VEIL = 0.6; // the map's initial opacity

export function segments({ predictions, input }) {
  return predictions.map((prediction, index) => one(prediction, input.files?.[index] ?? new Blob(), `opacity-${index}`));
}

function one({ segments, map, image }, file, id) {
  const { element, layer } = picture(file, image);
  const list = bars(segments.map(({ label, share, class_id }) => ({ label, score: share, colour: hue(class_id) })));
  const count = segments.length === 1 ? "1 class" : `${segments.length} classes`;
  const details = h("div", { class: "results" }, h("h3", {}, count), map ? veil(map, layer, id) : null, list);
  return h("div", { class: "seen" }, element, details);
}

// Draw the map over the picture. Return the slider for its opacity.
function veil({ b64, width, height }, layer, id) {
  const canvas = h("canvas", { class: "map", width, height, "--opacity": VEIL, "aria-hidden": "true" });
  layer.append(canvas);
  const { input, beside } = slider(id, VEIL, "number", 0, 1);
  input.addEventListener("input", () => canvas.style.setProperty("--opacity", input.value));
  const drawn = classesOf(b64, width, height).then((classes) => canvas.getContext("2d").putImageData(coloured(classes, width, height), 0, 0));
  drawn.catch(() => canvas.replaceWith(h("p", { class: "blank", "--ratio": width / height }, "This browser cannot show the map.")));
  return h("div", { class: "field" }, h("div", { class: "pair" }, h("label", { for: id }, "Opacity of the map"), beside), input);
}

// Return the class ids of the map's pixels, which are the grey levels of a PNG.
async function classesOf(b64, width, height) {
  const bytes = Uint8Array.from(atob(b64), (letter) => letter.charCodeAt(0));
  const bitmap = await createImageBitmap(new Blob([bytes], { type: "image/png" }), { colorSpaceConversion: "none" });
  const context = h("canvas", { width, height }).getContext("2d", { willReadFrequently: true });
  context.drawImage(bitmap, 0, 0);
  return context.getImageData(0, 0, width, height).data.filter((_, index) => index % 4 === 0);
}

function coloured(classes, width, height) {
  const colours = new Map();
  const data = new ImageData(width, height);
  const pixels = new Uint32Array(data.data.buffer);
  classes.forEach((id, index) => {
    if (!colours.has(id)) colours.set(id, colour(id));
    pixels[index] = colours.get(id);
  });
  return data;
}

// Return the colour of the swatches and bars, in the format of a canvas pixel.
function colour(id) {
  const context = h("canvas", { width: 1, height: 1 }).getContext("2d");
  context.fillStyle = `hsl(${hue(id)} 75% 48%)`;
  context.fillRect(0, 0, 1, 1);
  return new Uint32Array(context.getImageData(0, 0, 1, 1).data.buffer)[0];
}
