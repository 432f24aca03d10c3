// The translator as a web worker: it answers what pages ask a server, from the files that were exported.
import { Model } from "./search.js";
import { detect, primaryLanguage } from "./text.js";
import { Tokenizer } from "./tokenizer.js";
import { Refusal, Translator } from "./translator.js";

const [tokenizers, translators, givenUp] = [new Map(), new Map(), new Set()];
const { port1, port2 } = new MessageChannel();
let [inside, runtime, nRead, nAll] = [];
let queue = Promise.resolve(); // what is answered one after the other

/** Read a file, and tell how much has come of all that is needed. */
async function readFile(name) {
  const place = inside.places.get(name);
  const response = place instanceof Blob ? new Response(place) : await fetch(place);
  if (!response.ok) throw new Error(`${name}: ${response.status} ${response.statusText}`);
  const [parts, reader] = [[], response.body.getReader()];
  for (let part; !(part = await reader.read()).done; nRead += part.value.length) {
    parts.push(part.value);
    postMessage({ share: Math.min(1, nRead / nAll) });
  }
  const bytes = new Uint8Array(await new Blob(parts).arrayBuffer());
  const size = inside.files[name];
  if (bytes.length !== size) throw new Error(`${name} has ${bytes.length} bytes, not ${size}`);
  return bytes;
}

async function begin() {
  const [module, wasmBinary] = await Promise.all(inside.runtime.map(readFile));
  runtime = await import(URL.createObjectURL(new Blob([module], { type: "text/javascript" })));
  Object.assign(runtime.env.wasm, { numThreads: 1, wasmBinary });
}

/** Return the tokenizers of a run, by which it is chosen, too. */
async function tokenizersOf(run) {
  if (!tokenizers.has(run)) {
    const { tokenizers: names, tags } = inside.settings[run];
    const read = async (name) => JSON.parse(new TextDecoder().decode(await readFile(`${run}/${name}`)));
    const [source, target] = await Promise.all(names.map(read));
    const src = new Tokenizer(source, tags);
    tokenizers.set(run, { src, tgt: target ? new Tokenizer(target) : src });
  }
  return tokenizers.get(run);
}

/** Return the translator of a run, read when it is first asked for, with its weights or those of a checkpoint. */
async function translatorOf(run, checkpoint = "") {
  const key = `${run}/${checkpoint}`;
  if (translators.has(key)) return translators.get(key);
  const settings = inside.settings[run];
  const nameOf = (name) => `${run}/${checkpoint && name === "weights.bin" ? `weights-${checkpoint}.bin` : name}`;
  const needed = ["encoder.onnx", "decoder.onnx", "output.onnx", "weights.bin", ...settings.tokenizers].map(nameOf);
  if (!runtime) needed.push(...inside.runtime);
  [nRead, nAll] = [0, needed.reduce((sum, name) => sum + inside.files[name], 0)];
  if (!runtime) await begin();
  for (const [other, { model }] of checkpoint ? translators : []) {
    if (other.endsWith("/") || !translators.delete(other)) continue;
    await model.release(); // of checkpoints, one is in memory
  }
  const both = await tokenizersOf(run);
  const model = await Model.load(runtime, settings, (name) => readFile(nameOf(name)));
  translators.set(key, new Translator(model, both, settings));
  return translators.get(key);
}

/** Return the run that is to read a text, and the language if it was detected: as utils/serve/service.py chooses. */
async function choose(text, { run: name, source, target }) {
  const fits = (code, language) => code === "auto" || primaryLanguage(code) === language;
  const isOne = (run) => (!name || name === run.name) && fits(source, run.source) && fits(target, run.target);
  let fitting = inside.served.runs.filter(isOne);
  const detected = source === "auto" && !name ? detect(text, [...new Set(fitting.map((run) => run.source))]) : null;
  if (detected !== null) fitting = fitting.filter((run) => run.source === detected);
  fitting = fitting.filter((run) => run.target === fitting[0].target);
  if (!fitting.length) throw new Refusal(`no run translates this text ${source}→${target}`);
  if (fitting.length === 1) return { run: fitting[0], detected };
  const pairs = await Promise.all(fitting.map((run) => tokenizersOf(run.name)));
  const likely = pairs.map(({ src, tgt }) => src.logProb(text, src === tgt ? 1 / 2 : 1));
  const best = Math.max(...likely);
  return { run: fitting.find((run, i) => likely[i] >= best * inside.settings[run.name].near), detected };
}

const answers = {
  "api/runs": () => inside.served,
  async "api/translate"({ text, run: name, source, target, beam, tag, n_best: nBest = 1, attention }, pause) {
    const { max_chars, max_texts } = inside.served;
    const isMuch = [...text.replaceAll("\n", "")].length > max_chars || text.split("\n").length > max_texts;
    if (isMuch) throw new Refusal(`more than ${max_chars} characters or ${max_texts} lines: send them in parts`);
    const { run, detected } = await choose(text, { run: name, source, target });
    const own = await translatorOf(run.name);
    const start = performance.now();
    const beam_size = beam || Math.max(own.search.beam_size, nBest);
    const { sentences, remarks } = await own.changed({ beam_size, tag, nBest, pause }).translate(text, attention);
    const seconds = (performance.now() - start) / 1000;
    if (!detected && detect(text, [run.source, run.target]) !== run.source) remarks.other_language = true;
    return { run: run.name, source: run.source, target: run.target, seconds, remarks, sentences };
  },
  async explain({ text, run, checkpoint, beam: beam_size, length_penalty, ...changes }, pause) {
    const translator = await translatorOf(run ?? inside.served.runs[0].name, checkpoint);
    return translator.changed({ beam_size, length_penalty, pause }).explain(text, changes);
  },
};

async function answer({ id, path, body }) {
  const pause = async () => {
    // meanwhile, messages are read
    await new Promise((resolve) => {
      port1.onmessage = resolve;
      port2.postMessage(null);
    });
    if (givenUp.delete(id)) throw new Refusal("given up");
  };
  try {
    await pause();
    postMessage({ id, status: 200, answer: await answers[path](body, pause) });
  } catch (error) {
    postMessage({ id, status: error instanceof Refusal ? 400 : 500, answer: { error: error.message ?? `${error}` } });
  }
}

onmessage = ({ data }) => {
  if (data.files) inside = data;
  if (data.files) queue = queue.then(() => translatorOf(data.served.runs[0].name)).catch(() => {}); // asked, it says why
  else if (data.path === "api/runs") answer(data);
  else if (data.path) queue = queue.then(() => answer(data));
  else givenUp.add(data.id);
};
