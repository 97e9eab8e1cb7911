// Calls the server's routes. A failed call throws Failed, with the fields of the server's error {"error", "code",
// "request_id"}.

export class Failed extends Error {
  constructor(status, { error, code = "", request_id = "" }) {
    super(error);
    Object.assign(this, { status, code, requestId: request_id });
  }
}

const NOBODY = "the server does not answer: is it still running?";

export async function ask(path, options = {}) {
  let response;
  try {
    response = await fetch(path, options);
  } catch (err) {
    if (err.name === "AbortError") throw err;
    throw new Failed(0, { error: NOBODY, code: "unreachable" });
  }
  if (response.ok) return response;
  throw new Failed(response.status, await errorOf(response));
}

async function errorOf(response) {
  const text = await response.text();
  try {
    const document = JSON.parse(text);
    if (typeof document.error === "string") return document;
  } catch {
    // not JSON: perhaps an error page of a proxy
  }
  return { error: text.slice(0, 300) || `the server answers ${response.status} and says nothing` };
}

// Return the models that are loaded, followed by those that a call would load.
export async function models() {
  const { models, not_loaded = [] } = await (await ask("/models")).json();
  return [...models, ...not_loaded.map(({ name }) => ({ name, notLoaded: true }))];
}

// Return "" if the server works, and otherwise what is wrong.
export async function health() {
  try {
    await ask("/ping");
    return "";
  } catch (err) {
    return err.message;
  }
}

export async function example(model) {
  const response = await ask(`/examples/${encodeURIComponent(model)}`);
  const type = response.headers.get("content-type") ?? "";
  const name = /filename="?([^";]+)"?/.exec(response.headers.get("content-disposition") ?? "")?.[1] ?? "example";
  return { data: new Blob([await response.arrayBuffer()], { type: type.split(";")[0] }), name };
}
