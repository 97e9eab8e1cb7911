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
  const url = literal(origin + call.path);
  if (call.files) return `import requests

pictures = ${literal(call.files)}
reply = requests.post(
    ${url},
    data=${literal(call.fields, "    ")},
    files=[("image", open(name, "rb")) for name in pictures],
)
reply.raise_for_status()
print(reply.json())`;
  if (call.document) {
    const query = Object.keys(call.query).length ? `\n    params=${literal(call.query, "    ")},` : "";
    return `import requests

reply = requests.post(
    ${url},${query}
    json=${literal(call.document, "    ")},
)
reply.raise_for_status()
print(reply.json())`;
  }
  return `import requests

with open(${literal(call.file)}, "rb") as file:
    reply = requests.post(
        ${url},
        params=${literal(call.query, "        ")},
        headers={"Content-Type": ${literal(call.type)}},
        data=file,
    )
reply.raise_for_status()
print(reply.json())`;
}

// SageMaker drops query strings: what they say goes into CustomAttributes, which takes plain words only.
export function boto3(call) {
  const attributes = Object.entries(call.query).map(([name, value]) => `${name}=${value}`);
  const plain = attributes.every((each) => /^[\x21-\x7e]*$/.test(each) && !/[,;]/.test(each));
  const opening = `import json

import boto3

runtime = boto3.client("sagemaker-runtime")
`;
  const closing = `print(json.load(reply["Body"]))`;
  if (call.document || call.files || !plain) return `${opening}${call.document ? "" : reading(call)}reply = runtime.invoke_endpoint(
    EndpointName="triton-multi-model",
    ContentType="application/json",${call.document && attributes.length ? `\n    CustomAttributes=${literal(attributes.join(";"))},` : ""}
    Body=json.dumps(${call.document ? literal(call.document, "    ") : "body"}),
)
${closing}`;
  return `${opening}with open(${literal(call.file)}, "rb") as file:
    reply = runtime.invoke_endpoint(
        EndpointName="triton-multi-model",
        ContentType=${literal(call.type)},
        CustomAttributes=${literal(attributes.join(";"))},
        Body=file,
    )
${closing}`;
}

function reading(call) {
  const { model_name, model_version, ...parameters } = call.fields ?? call.query;
  const named = { model_name, ...(model_version && { model_version }) };
  return `from base64 import b64encode
from pathlib import Path

pictures = ${literal(call.files ?? [call.file])}
body = ${literal({ ...named, parameters })}
body["instances"] = [{"b64": b64encode(Path(name).read_bytes()).decode()} for name in pictures]
`;
}
