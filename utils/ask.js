// How a page asks: the server that sent it or, in a page that was exported, a worker which translates in the browser.
const inside = JSON.parse(document.getElementById("inside")?.textContent ?? "null"); // what the worker is to know
const questions = new Map(); // what takes the answer of each, by their numbers
let [worker, nQuestions] = [null, 0];

/** Where a file is: beside the page, or inside it, where a page of the disk cannot give its worker an address of it. */
async function placeOf(name) {
  const packed = document.getElementById(name);
  if (!packed) return new URL(name, document.baseURI).href;
  const { body } = await fetch(`data:application/gzip;base64,${packed.textContent}`);
  return new Response(body.pipeThrough(new DecompressionStream("gzip"))).blob();
}

/** Start a worker from a text, so that what the page allows is what the worker may do. */
async function started() {
  const placed = async (name) => [name, await placeOf(name)];
  inside.places ??= new Map(await Promise.all(Object.keys(inside.files).map(placed)));
  const script = inside.places.get("worker.js");
  const own = script instanceof Blob ? script : await (await fetch(script)).blob();
  const made = new Worker(URL.createObjectURL(new Blob([own], { type: "text/javascript" })));
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
  try {
    const own = await (worker ??= started());
    const answered = new Promise((resolve) => questions.set(id, resolve));
    signal?.addEventListener("abort", () => own.postMessage({ id }));
    own.postMessage({ id, path, body });
    return await answered;
  } catch (error) {
    worker = null;
    return { status: 500, answer: { error: error.message } };
  } finally {
    questions.delete(id);
  }
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
