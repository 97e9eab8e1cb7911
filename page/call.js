// Describes a call as an object {path, query, type, body, document, file, fields, files}. Both the request and the code
// to copy are made from it.
//
// An input is {kind: "picture", files}, {kind: "instances", values} or {kind: "tensors", document}.

import { ask } from "./api.js";

export function describe(model, version, input, parameters) {
  const named = { model_name: model, ...(version && { model_version: version }) };
  if (input.kind === "picture") return pictures(input.files, { ...named, ...asWords(parameters) });
  if (input.kind === "tensors") return { path: "/invocations", query: named, type: JSON_TYPE, document: input.document };
  const more = Object.keys(parameters).length ? { parameters } : {};
  return { path: "/invocations", query: {}, type: JSON_TYPE, document: { ...named, instances: input.values, ...more } };
}

const JSON_TYPE = "application/json";

// One picture is sent as the body, several as the files of a form.
function pictures(files, query) {
  const names = files.map(({ name }) => name || "picture.png");
  if (files.length === 1) return { path: "/invocations", query, type: files[0].type || "application/octet-stream", file: names[0], body: files[0] };
  const body = new FormData();
  for (const [name, value] of Object.entries(query)) body.append(name, value);
  files.forEach((file, index) => body.append("image", file, names[index]));
  return { path: "/invocations", query: {}, fields: query, files: names, body };
}

const asWords = (parameters) =>
  Object.fromEntries(Object.entries(parameters).map(([name, value]) => [name, String(value)]));

export const address = (call) => {
  const query = new URLSearchParams(call.query).toString();
  return call.path + (query && `?${query}`);
};

// Send the call. Return {document, text, times, total, id}: the reply, its text, the milliseconds that each stage took,
// the milliseconds of the whole call, and the request's ID.
export async function send(call, signal) {
  const began = performance.now();
  const response = await ask(address(call), {
    method: "POST",
    headers: call.type ? { "Content-Type": call.type } : {}, // the browser sets the header for a form
    body: call.document ? JSON.stringify(call.document) : call.body,
    signal,
  });
  const text = await response.text();
  return {
    document: JSON.parse(text),
    text,
    times: stages(response.headers.get("server-timing") ?? ""),
    total: performance.now() - began,
    id: response.headers.get("x-request-id") ?? "",
  };
}

export const stages = (header) =>
  [...header.matchAll(/([\w-]+);dur=([\d.]+)/g)].map(([, name, duration]) => ({ name, duration: Number(duration) }));
