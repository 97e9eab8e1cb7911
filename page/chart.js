// A line of the last values, as SVG.

import { svg } from "./dom.js";

const WIDTH = 240, HEIGHT = 48;

export class Spark {
  constructor(points, label) {
    this.points = points;
    this.values = [];
    this.element = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", class: "spark", role: "img", "aria-label": label });
    this.area = svg("path", { class: "area" });
    this.line = svg("path", { class: "line" });
    this.element.append(this.area, this.line);
  }

  add(value) {
    this.values = [...this.values, value ?? 0].slice(-this.points);
    const most = Math.max(...this.values, 1e-9);
    const x = (index) => WIDTH - ((this.values.length - 1 - index) * WIDTH) / (this.points - 1);
    const path = this.values.map((each, index) => `${x(index).toFixed(1)},${(HEIGHT - 2 - (each / most) * (HEIGHT - 6)).toFixed(1)}`);
    this.line.setAttribute("d", `M${path.join("L")}`);
    this.area.setAttribute("d", `M${x(0).toFixed(1)},${HEIGHT}L${path.join("L")}L${WIDTH},${HEIGHT}Z`);
  }
}
