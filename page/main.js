// Runs the page: models on the left, input and result in the middle.

import { describe, send } from "./call.js";
import { models as listModels } from "./api.js";
import { showDetails } from "./details.js";
import { fill, find, h } from "./dom.js";
import { watchHealth } from "./health.js";
import { forget, listen, showInput } from "./inputs.js";
import { showParameters } from "./parameters.js";
import { showInputAlone, showResult } from "./results.js";
import { tabs } from "./tabs.js";

const AGAIN = 1000; // milliseconds between calls of a model that is being loaded
const SOON = 120; // milliseconds between the last move of a slider and the call
const KINDS = { image: "picture", "encoded image": "picture", text: "text", json: "JSON", row: "row" };

let models = [];
let chosen = null; // the chosen model
let input = null; // the input that was sent last
let parameters = () => ({});
let running = null; // the AbortController of the current call
let timer = 0;

async function load() {
  try {
    models = await listModels();
  } catch (err) {
    return fail(err);
  }
  fail(null);
  showModels();
  const same = models.find(({ name }) => name === chosen?.name);
  if (same) chosen = same;
  else {
    const loaded = models.filter(({ notLoaded }) => !notLoaded);
    const first = loaded.find(findsObjects) ?? loaded.find(({ codec }) => KINDS[codec] === "picture") ?? loaded[0];
    if (first) await choose(first);
  }
  scrollToChosen();
}

// Scroll the list of models to the chosen one, without scrolling the page.
function scrollToChosen() {
  const list = find("models");
  const { offsetTop = 0, offsetLeft = 0 } = list.querySelector(".model:has(:checked)") ?? {};
  list.scrollTo(offsetLeft - list.clientWidth / 3, offsetTop - list.clientHeight / 3);
}

// The page begins with a detector, if there is one, because its results show most of the page's features.
const findsObjects = ({ codec, parameters = [] }) => KINDS[codec] === "picture" && parameters.some(({ name }) => name === "iou");

const broken = ({ error }) => Boolean(error);

function kind(model) {
  if (model.notLoaded) return "not loaded";
  if (broken(model)) return "not served";
  return (model.client ? KINDS[model.codec] : "tensors") ?? "any";
}

function showModels() {
  const hadFocus = document.activeElement?.name === "model";
  fill(find("models"), models.map((model) =>
    h("label", { class: "model" },
      h("input", { type: "radio", name: "model", value: model.name, checked: model.name === chosen?.name, onchange: () => choose(model) }),
      h("span", { class: "name" }, model.name),
      h("span", { class: "kind" }, kind(model)))));
  if (hadFocus) find("models").querySelector(":checked")?.focus();
}

async function choose(model) {
  running?.abort();
  forget();
  chosen = model;
  input = null;
  for (const radio of document.getElementsByName("model")) radio.checked = radio.value === model.name;
  fill(find("version"), h("option", { value: "" }, "latest"), versions(model));
  parameters = showParameters(model, again);
  find("input").className = "";
  fill(find("result"));
  find("details").hidden = true;
  fail(broken(model) ? new Error(model.error) : null);
  if (model.notLoaded) await loadModel(model);
  else await showInput(model, run, fail);
}

// Load a model by calling it. The call has no inputs, so the model refuses it.
async function loadModel(model) {
  fill(find("input"), h("p", { class: "hint", role: "status" }, `${model.name} is being loaded …`));
  const call = describe(model.name, "", { kind: "tensors", document: { inputs: [] } }, {});
  running = new AbortController();
  const { signal } = running;
  try {
    const refusal = await send(call, signal).catch((err) => err);
    if (signal.aborted) return;
    models = await listModels();
    if (signal.aborted) return;
    const loaded = models.find(({ name, notLoaded }) => name === model.name && !notLoaded);
    showModels();
    if (loaded) await choose(loaded);
    else if (refusal.code === "model_not_ready") setTimeout(() => signal.aborted || loadModel(model), AGAIN);
    else {
      fill(find("input"));
      fail(refusal);
    }
  } catch (err) {
    fail(err);
  }
}

const versions = ({ versions = [] }) =>
  versions.map(({ version, state }) => h("option", { value: version }, state === "READY" ? version : `${version} (${state.toLowerCase()})`));

// Call the model again with the same input after a parameter or the version has changed.
function again() {
  clearTimeout(timer);
  if (input) timer = setTimeout(() => run(input), SOON);
}

async function run(newInput) {
  const isNew = newInput !== input;
  input = newInput;
  running?.abort();
  running = new AbortController();
  const { signal } = running;
  const call = { task: chosen.task, ...describe(chosen.name, find("version").value, newInput, parameters()) };
  if (isNew) showInputAlone(newInput);
  find("stage").setAttribute("aria-busy", "true");
  try {
    const reply = await send(call, signal);
    fail(null);
    showResult(reply.document, newInput);
    showDetails(call, reply);
  } catch (err) {
    if (err.name === "AbortError") return;
    fail(err);
    showDetails(call, null);
  } finally {
    if (!signal.aborted) find("stage").removeAttribute("aria-busy");
  }
}

function fail(err) {
  if (!err) return fill(find("error"));
  const details = [err.status && `${err.status}`, err.code, err.requestId && `request ${err.requestId}`].filter(Boolean);
  return fill(find("error"), h("div", { class: "error" }, h("p", {}, err.message), details.length ? h("p", { class: "help" }, details.join(" · ")) : null));
}

listen();
tabs(find("details").querySelector("[role=tablist]"));
find("version").addEventListener("change", again);
for (const form of document.forms) form.addEventListener("submit", (event) => event.preventDefault());
watchHealth(load);
load();
