// One call as data, {path, query, headers, body, file}: what is sent and what the code to copy says are made of it.
//
// An input is {kind: "picture", file, name}, {kind: "instances", values} or {kind: "tensors", document}.

import { ask } from "./api.js";

export function describe(model, version, input, parameters) {
  const named = { model_name: model, ...(version && { model_version: version }) };
  if (input.kind === "picture") {
    const type = input.file.type || "application/octet-stream";
    return { path: "/invocations", query: { ...named, ...asWords(parameters) }, type, file: input.name, body: input.file };
  }
  if (input.kind === "tensors") return { path: "/invocations", query: named, type: JSON_TYPE, document: input.document };
  const more = Object.keys(parameters).length ? { parameters } : {};
  return { path: "/invocations", query: {}, type: JSON_TYPE, document: { ...named, instances: input.values, ...more } };
}

const JSON_TYPE = "application/json";

const asWords = (parameters) =>
  Object.fromEntries(Object.entries(parameters).map(([name, value]) => [name, String(value)]));

export const address = (call) => {
  const query = new URLSearchParams(call.query).toString();
  return call.path + (query && `?${query}`);
};

// {document, text, times, total}: the reply, its text, the stages' milliseconds, and those of the whole call.
export async function send(call, signal) {
  const began = performance.now();
  const response = await ask(address(call), {
    method: "POST",
    headers: { "Content-Type": call.type },
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
