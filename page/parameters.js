// Shows a control for each parameter of the model, depending on its JSON schema: a list for a choice, a slider for a
// number with a minimum and a maximum that are at most 100 apart, and so on.

import { find, h, fill } from "./dom.js";

export function showParameters(model, changed) {
  const controls = (model.parameters ?? []).map((parameter) => control(parameter, changed));
  find("parameters-box").hidden = controls.length === 0;
  fill(find("parameters"), controls.map(({ element }) => element));
  // Return the values that differ from the defaults.
  return () => {
    const values = controls.map(({ name, value, initial }) => [name, value(), initial]);
    return Object.fromEntries(values.filter(([, value, initial]) => String(value) !== String(initial)).map(([name, value]) => [name, value]));
  };
}

function control({ name, default: initial, expected, help, schema = {} }, changed) {
  const id = `parameter-${name}`;
  const { input, beside = null, value } = widget(id, initial, schema, expected);
  input.setAttribute("aria-describedby", `${id}-help`);
  input.addEventListener("input", changed);
  const element = h("div", { class: "field" },
    h("div", { class: "pair" }, h("label", { for: id }, name), beside), input, h("p", { class: "help", id: `${id}-help` }, help));
  return { name, initial, element, value };
}

function widget(id, initial, { type, minimum, maximum, enum: choices }, expected) {
  if (choices) {
    const input = h("select", { id }, choices.map((each) => h("option", { value: each, selected: each === initial }, each || "(none)")));
    return { input, value: () => input.value };
  }
  if (type === "boolean") {
    const input = h("input", { id, type: "checkbox", checked: initial });
    return { input, value: () => input.checked };
  }
  const isNumber = type === "number" || type === "integer";
  if (isNumber && minimum !== undefined && maximum !== undefined && maximum - minimum <= 100) return slider(id, initial, type, minimum, maximum);
  if (isNumber) {
    const input = h("input", { id, type: "number", value: initial, min: minimum, max: maximum, step: type === "integer" ? 1 : "any" });
    return { input, value: () => (input.value === "" ? initial : Number(input.value)) };
  }
  const input = h("input", { id, value: String(initial), placeholder: expected });
  return { input, value: () => input.value };
}

export function slider(id, initial, type, min, max) {
  const step = type === "integer" ? 1 : (max - min) / 100;
  const input = h("input", { id, type: "range", min, max, step, value: initial });
  const shown = h("output", { for: id }, String(initial));
  input.addEventListener("input", () => (shown.textContent = input.value));
  // not input.value, which the browser rounds to a step
  return { input, beside: shown, value: () => Number(shown.textContent) };
}
