// The second view: processes, models, queue, requests per second and latency, live from /metrics.

import { metrics } from "./api.js";
import { Spark } from "./chart.js";
import { fill, find, h, milliseconds } from "./dom.js";
import { Reading, growth, parse, quantile } from "./metrics.js";

const PAUSE = 1000; // milliseconds
const KEPT = 120; // readings: two minutes
const WINDOW = 10; // readings that a rate and a latency are made of
const SECONDS = "serve_request_seconds";

let shown = false;
let parts = null;
let readings = [];

export function showOperations(on) {
  if (on === shown) return;
  shown = on;
  if (on) {
    parts ??= build();
    look();
  }
}

async function look() {
  if (!shown) return;
  if (document.visibilityState === "visible") {
    try {
      readings = [...readings, new Reading(parse(await metrics()), performance.now())].slice(-KEPT);
      parts.error.textContent = "";
      draw(readings.at(-1), readings.at(-1 - Math.min(WINDOW, readings.length - 1)));
    } catch (err) {
      parts.error.textContent = err.message;
    }
  }
  setTimeout(look, PAUSE);
}

function build() {
  const made = { error: h("p", { class: "help", role: "status" }), tiles: {}, processes: h("tbody"), models: h("tbody") };
  const tile = (key, title, help) => {
    const spark = new Spark(KEPT, `${title}, the last two minutes`);
    const value = h("p", { class: "value" }, "–");
    made.tiles[key] = { spark, value };
    return h("section", { class: "card tile" }, h("h3", {}, title), value, spark.element, h("p", { class: "help" }, help));
  };
  fill(find("operations"), h("h2", { class: "unseen" }, "Operations"), made.error,
    h("div", { class: "tiles" },
      tile("rate", "Requests per second", "that models answered"),
      tile("latency", "Latency, median", "of the last ten seconds"),
      tile("slow", "Latency, 95 of 100", "are faster than this"),
      tile("queue", "In work", "received and not answered yet")),
    h("div", { class: "tables" },
      table("Processes", ["Process", "State", "Starts"], made.processes),
      table("Models", ["Model", "Version", "Requests", "Errors", "Per second", "Median", "95 %", "Queue"], made.models)));
  return made;
}

const table = (title, names, body) =>
  h("section", { class: "card" }, h("h3", {}, title), h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": title },
    h("table", { class: "plain" }, h("thead", {}, h("tr", {}, names.map((name) => h("th", { scope: "col" }, name)))), body)));

function draw(now, before) {
  const seconds = Math.max((now.time - before.time) / 1000, 1e-9);
  const latency = (share, wanted) => quantile(before, now, SECONDS, share, wanted);
  const answered = (wanted) => served(now, wanted) - served(before, wanted);
  set("rate", Math.max(0, answered()) / seconds, (value) => value.toFixed(value < 10 ? 1 : 0));
  set("latency", times(latency(0.5), 1000), milliseconds);
  set("slow", times(latency(0.95), 1000), milliseconds);
  set("queue", now.sum("serve_in_flight"), String);
  fill(parts.processes, now.all("serve_process_starts_total").map(({ labels: { process }, value }) => processRow(process, value, now)));
  fill(parts.models, modelsOf(now).map(([model, version]) => modelRow(model, version, now, before, seconds, latency)));
}

const times = (value, factor) => (value === null ? null : value * factor);

// Requests of no model are calls of this page and mistakes.
const served = (reading, wanted = {}) =>
  reading.all("serve_requests_total", wanted).reduce((sum, { labels, value }) => sum + (labels.model ? value : 0), 0);

function set(key, value, words) {
  const { spark, value: element } = parts.tiles[key];
  element.textContent = value === null ? "–" : words(value);
  spark.add(value);
}

function processRow(process, starts, now) {
  const up = now.all("serve_process_up", { process })[0]?.value !== 0;
  const answers = process !== "tritonserver" || now.sum("serve_triton_up") === 1;
  const state = up ? (answers ? "running" : "starting") : "down";
  return h("tr", {}, h("th", { scope: "row" }, process), h("td", {}, h("span", { class: `state ${state}` }, state)), h("td", {}, String(starts)));
}

function modelsOf(now) {
  const pairs = [...now.all("nv_inference_request_success"), ...now.all("serve_requests_total").filter(({ labels }) => labels.model)];
  return [...new Map(pairs.map(({ labels: { model, version } }) => [`${model}/${version}`, [model, version]])).values()].sort();
}

function modelRow(model, version, now, before, seconds, latency) {
  const wanted = { model, version };
  const errors = now.all("serve_requests_total", wanted).reduce((sum, { labels, value }) => sum + (labels.code >= "400" ? value : 0), 0);
  const rate = growth(before, now, "serve_requests_total", wanted) / seconds;
  const words = (value) => (value === null ? "–" : milliseconds(1000 * value));
  const cells = [served(now, wanted), errors, rate.toFixed(1), words(latency(0.5, { model })), words(latency(0.95, { model })), now.sum("nv_inference_pending_request_count", wanted)];
  return h("tr", {}, h("th", { scope: "row" }, model), h("td", {}, version), cells.map((cell) => h("td", {}, String(cell))));
}
