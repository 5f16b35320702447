// Calls of the server's API. Errors keep the server's message and code.

export const UNAUTHORIZED = 401;

export class ApiError extends Error {
  constructor(message, code, status) {
    super(message);
    this.code = code;
    this.status = status;
  }
}

const BROKEN = "The server's answer broke off, or is not an answer of LLN.";

let key = null; // the latest key from the user, until the server rejects it
let refused = () => {};

export const useKey = (given) => (key = given);

// The listener is called when the server requires a key or rejects ours.
export const onRefusedKey = (listener) => (refused = listener);

async function ask(path, { headers, ...options }) {
  const sentWith = key;
  let response;
  try {
    response = await fetch(path, { ...options, headers: { ...headers, ...(sentWith ? { authorization: `Bearer ${sentWith}` } : {}) } });
  } catch (failure) {
    if (failure.name === "AbortError") throw failure;
    throw new ApiError("The server cannot be reached. Is it still running?", "unreachable", 0);
  }
  const document = await response.json().catch(() => null);
  if (response.ok && document !== null) return document;
  const error = document?.error ?? {};
  const failure = new ApiError(
    error.message ?? (response.ok ? BROKEN : `The server answered with status ${response.status}.`),
    error.code ?? "unknown",
    response.status,
  );
  if (failure.status !== UNAUTHORIZED) throw failure;
  // The request was sent before the user gave the current key, so try again with it.
  if (key && key !== sentWith) return ask(path, { headers, ...options });
  if (key === sentWith) refused(failure);
  throw failure;
}

export const get = (path, signal) => ask(path, { signal });

const send = (method) => (path, body, signal) =>
  ask(path, {
    method,
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });

export const post = send("POST");
export const patch = send("PATCH");

export function floats(base64) {
  const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  return new Float32Array(bytes.buffer);
}
