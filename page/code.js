// Shows a call as code to copy.

import { address } from "./call.js";

// Return [[language, text], …].
export const languages = (call, origin) => [
  ["curl", curl(call, origin)],
  ["Python requests", requests(call, origin)],
  ["Python boto3", boto3(call)],
  ...ofOtherApis(call, origin),
];

const quote = (text) => `'${String(text).replaceAll("'", `'\\''`)}'`;

// Return a value as a Python literal. Only three words differ from JSON: None, True and False.
function literal(value, indent = "") {
  const deeper = `${indent}    `;
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const entries = Array.isArray(value)
    ? value.map((each) => literal(each, deeper))
    : Object.entries(value).map(([key, each]) => `${JSON.stringify(key)}: ${literal(each, deeper)}`);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  const line = `${open}${entries.join(", ")}${close}`;
  return line.length + indent.length < 90 ? line : `${open}\n${entries.map((each) => `${deeper}${each},\n`).join("")}${indent}${close}`;
}

function curl(call, origin) {
  if (call.files) return curlForm(call, origin);
  const body = call.document ? `--data ${quote(JSON.stringify(call.document))}` : `--data-binary ${quote(`@${call.file}`)}`;
  return `curl ${quote(origin + address(call))} \\\n  -H ${quote(`Content-Type: ${call.type}`)} \\\n  ${body}`;
}

function curlForm({ fields, files, path }, origin) {
  const words = Object.entries(fields).map(([name, value]) => `--form-string ${quote(`${name}=${value}`)}`);
  const pictures = files.map((file) => `-F ${quote(`image=@"${file.replace(/["\\]/g, "\\$&")}"`)}`);
  return `curl ${quote(origin + path)} \\\n  ${[...words, ...pictures].join(" \\\n  ")}`;
}

function requests(call, origin) {
  const [opening, body] = call.files
    ? [`pictures = ${literal(call.files)}\n`, `data=${literal(call.fields, "    ")},\n    files=[("image", open(name, "rb")) for name in pictures],`]
    : call.document
      ? ["", `json=${literal(call.document, "    ")},`]
      : ["", `headers={"Content-Type": ${literal(call.type)}},\n    data=open(${literal(call.file)}, "rb"),`];
  const query = Object.keys(call.query).length ? `\n    params=${literal(call.query, "    ")},` : "";
  return `import requests

${opening}reply = requests.post(
    ${literal(origin + call.path)},${query}
    ${body}
)
reply.raise_for_status()
print(reply.json())`;
}

// SageMaker drops query strings. Instead, the parameters for pictures go into a JSON body, and for tensors the model's
// name goes into CustomAttributes.
function boto3(call) {
  const attributes = Object.entries(call.query).map(([name, value]) => `${name}=${value}`).join(";");
  const custom = call.document && attributes ? `\n    CustomAttributes=${literal(attributes)},` : "";
  return `import json
${call.document ? "" : PICTURES}
import boto3

${call.document ? "" : reading(call)}reply = boto3.client("sagemaker-runtime").invoke_endpoint(
    EndpointName="triton-multi-model",
    ContentType="application/json",${custom}
    Body=json.dumps(${call.document ? literal(call.document, "    ") : "body"}),
)
print(json.load(reply["Body"]))`;
}

const PICTURES = `from base64 import b64encode
from pathlib import Path
`;

function reading(call) {
  const { model_name, model_version, ...parameters } = call.fields ?? call.query;
  const named = { model_name, ...(model_version && { model_version }) };
  return `pictures = ${literal(call.files ?? [call.file])}
body = ${literal({ ...named, parameters })}
body["instances"] = [{"b64": b64encode(Path(name).read_bytes()).decode()} for name in pictures]
`;
}

// Routes of other servers' APIs, keyed by the model's task. `theirs` is the only parameter that such a route has here,
// and `ours` is the name of that parameter in the model's client.
const APIS = {
  embedding: { path: "/v1/embeddings", write: openai, ours: "dimensions", theirs: "dimensions", fields: (instances) => ({ input: instances }) },
  "text-ranking": { path: "/v2/rerank", write: cohere, ours: "top_k", theirs: "top_n", fields: ([instance]) => instance },
};

function ofOtherApis({ task, document }, origin) {
  const { model_name: model, model_version, instances, parameters = {} } = document ?? {};
  const api = APIS[task];
  if (!api || model_version || Object.keys(parameters).some((name) => name !== api.ours)) return [];
  const value = parameters[api.ours];
  const body = { model, ...api.fields(instances), ...(value && { [api.theirs]: value }) };
  const text = curl({ path: api.path, query: {}, type: "application/json", document: body }, origin);
  return [[`curl ${api.path}`, text], ...api.write(body, origin)];
}

const keywords = (body) => Object.entries(body).map(([name, value]) => `\n    ${name}=${literal(value, "    ")},`).join("");

function openai(body, origin) {
  const { input, ...options } = body;
  const server = literal(`${origin}/v1`);
  return [
    ["Python openai", `from openai import OpenAI

client = OpenAI(base_url=${server}, api_key="none")
reply = client.embeddings.create(${keywords(body)}
)
print([entry.embedding for entry in reply.data])`],
    ["LangChain", `from langchain_openai import OpenAIEmbeddings

model = OpenAIEmbeddings(${keywords(options)}
    base_url=${server},
    api_key="none",
    check_embedding_ctx_length=False,
)
print(model.embed_documents(${literal(input)}))`],
  ];
}

function cohere(body, origin) {
  return [["Python cohere", `from cohere import ClientV2

client = ClientV2(base_url=${literal(origin)}, api_key="none")
reply = client.rerank(${keywords(body)}
)
print([[result.index, result.relevance_score] for result in reply.results])`]];
}
