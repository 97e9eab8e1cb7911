// The same call as code to copy: curl, Python with requests, Python with boto3.

import { address } from "./call.js";

const quote = (text) => `'${String(text).replaceAll("'", `'\\''`)}'`;

// Python's literals are JSON's, but for three words.
export function literal(value, indent = "") {
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

export function curl(call, origin) {
  if (call.files) return curlForm(call, origin);
  const body = call.document ? `--data ${quote(JSON.stringify(call.document))}` : `--data-binary ${quote(`@${call.file}`)}`;
  return `curl ${quote(origin + address(call))} \\\n  -H ${quote(`Content-Type: ${call.type}`)} \\\n  ${body}`;
}

function curlForm({ fields, files, path }, origin) {
  const words = Object.entries(fields).map(([name, value]) => `--form-string ${quote(`${name}=${value}`)}`);
  const pictures = files.map((file) => `-F ${quote(`image=@"${file.replace(/["\\]/g, "\\$&")}"`)}`);
  return `curl ${quote(origin + path)} \\\n  ${[...words, ...pictures].join(" \\\n  ")}`;
}

export function requests(call, origin) {
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

// SageMaker drops query strings: a picture's parameters go into a JSON body, a tensor's model into CustomAttributes.
export function boto3(call) {
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
