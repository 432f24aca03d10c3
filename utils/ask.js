// How a page asks: the server that sent it or, in a page that was exported, a worker which translates in the browser.
const inside = JSON.parse(document.getElementById("inside")?.textContent ?? "null"); // what the worker is to know
const questions = new Map(); // what takes the answer of each, by their numbers
let worker = null,
  nQuestions = 0;

/** Where a file is: beside the page, or inside it, where a page of the disk cannot give its worker an address of it. */
async function placeOf(name) {
  const packed = document.getElementById(name);
  if (!packed) return new URL(name, document.baseURI).href;
  const { body } = await fetch(`data:application/gzip;base64,${packed.textContent}`);
  return new Response(body.pipeThrough(new DecompressionStream("gzip"))).blob();
}

/** Start a worker from a text, so that what the page allows is what the worker may do. */
async function started() {
  inside.places ??= new Map(
    await Promise.all(Object.keys(inside.files).map(async (name) => [name, await placeOf(name)])),
  );
  const own = inside.places.get("worker.js"),
    script = own instanceof Blob ? own : await (await fetch(own)).blob();
  const made = new Worker(URL.createObjectURL(new Blob([script], { type: "text/javascript" })));
  made.onmessage = ({ data: { id, share, ...answered } }) => {
    if (id) questions.get(id)?.(answered);
    else dispatchEvent(new CustomEvent("loading", { detail: share }));
  };
  made.onerror = ({ message }) => {
    // such as having no memory: the next question gets another worker
    made.terminate();
    worker = null;
    for (const answer of questions.values()) answer({ status: 500, answer: { error: message } });
  };
  made.postMessage(inside);
  return made;
}

async function askWorker(path, body, signal) {
  const id = ++nQuestions;
  let own;
  try {
    own = await (worker ??= started());
  } catch (error) {
    worker = null;
    return { status: 500, answer: { error: error.message } };
  }
  return new Promise((resolve, reject) => {
    questions.set(id, resolve);
    signal?.addEventListener("abort", () => {
      own.postMessage({ id });
      reject(signal.reason);
    });
    own.postMessage({ id, path, body });
  }).finally(() => questions.delete(id));
}

async function askServer(path, body, signal) {
  const headers = { "Content-Type": "application/json" };
  const response = await fetch(path, body && { method: "POST", headers, body: JSON.stringify(body), signal });
  const answer = await response.json().catch(() => null);
  const status = answer || !response.ok ? response.status : 0;
  return { status, answer, wait: 1000 * response.headers.get("Retry-After") };
}

export const isOffline = inside !== null;
/** Ask, and return the status and the answer, which of a refusal is { error }. */
export const ask = isOffline ? askWorker : askServer;
