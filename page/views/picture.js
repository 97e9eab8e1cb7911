// Shows a picture with a layer over it. Coordinates in the layer are shares of the picture's sides.

import { h } from "../dom.js";

const SMALL = 320; // pixels; smaller pictures are enlarged

// `size` is the picture's size from the server. It is used if the browser cannot show the file (TIFF, for example).
export function picture(file, size = null) {
  const image = h("img", { alt: "The picture that was sent", src: address(file), onerror: blank, onload: enlarge });
  const layer = h("div", { class: "layer" });
  const frame = h("div", { class: "frame" }, image, layer);
  function enlarge() {
    const times = Math.floor(Math.min(SMALL / image.naturalWidth, SMALL / image.naturalHeight));
    if (times > 1) image.width = times * image.naturalWidth;
  }
  function blank() {
    image.replaceWith(h("p", { class: "blank", "--ratio": size ? size.width / size.height : 1.6 }, "This browser cannot show the file."));
  }
  return { element: frame, layer };
}

const addresses = new Map();

// One URL per file, so that a result that is shown again does not read the picture again.
export function address(file) {
  if (!addresses.has(file)) addresses.set(file, URL.createObjectURL(file));
  return addresses.get(file);
}

// Free the memory of all pictures except these files.
export function keep(files) {
  for (const [file, url] of addresses) {
    if (files.includes(file)) continue;
    URL.revokeObjectURL(url);
    addresses.delete(file);
  }
}
