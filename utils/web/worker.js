// The translator as a web worker: it answers what pages ask a server, from the files that were exported.
import { Model } from "./search.js";
import { setRules } from "./text.js";
import { Tokenizer } from "./tokenizer.js";
import { Refusal, Translator } from "./translator.js";

const JAPANESE = /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}ー]/u;
const [translators, givenUp, { port1, port2 }] = [new Map(), new Set(), new MessageChannel()];
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
  const [module, wasmBinary] = [await readFile(inside.runtime[0]), await readFile(inside.runtime[1])];
  setRules(JSON.parse(new TextDecoder().decode(await readFile("text.json"))));
  runtime = await import(URL.createObjectURL(new Blob([module], { type: "text/javascript" })));
  Object.assign(runtime.env.wasm, { numThreads: 1, wasmBinary });
}

/** Return the translator of a run, read when it is first asked for, with its weights or those of a checkpoint. */
async function translatorOf(run, checkpoint = "") {
  const key = `${run}/${checkpoint}`;
  if (translators.has(key)) return translators.get(key);
  const settings = inside.settings[run];
  const nameOf = (name) => `${run}/${checkpoint && name === "weights.bin" ? `weights-${checkpoint}.bin` : name}`;
  const needed = ["encoder.onnx", "decoder.onnx", "output.onnx", "weights.bin", ...settings.tokenizers].map(nameOf);
  if (!runtime) needed.push("text.json", ...inside.runtime);
  [nRead, nAll] = [0, needed.reduce((sum, name) => sum + inside.files[name], 0)];
  if (!runtime) await begin();
  for (const [other, { model }] of checkpoint ? translators : []) {
    if (other.endsWith("/") || !translators.delete(other)) continue;
    await model.release(); // of checkpoints, one is in memory
  }
  const bytes = await Promise.all(settings.tokenizers.map((name) => readFile(nameOf(name))));
  const src = new Tokenizer(bytes[0], settings.tags);
  const tgt = bytes[1] ? new Tokenizer(bytes[1]) : src;
  const model = await Model.load(runtime, settings, (name) => readFile(nameOf(name)));
  translators.set(key, new Translator(model, { src, tgt }, settings));
  return translators.get(key);
}

/** Guess by its letters which of some languages a text is in. */
function detected(text, languages) {
  const letters = text.match(/\p{L}/gu) ?? [];
  const n = letters.filter((letter) => JAPANESE.test(letter)).length;
  const isJapanese = n > 0 && (3 * n > letters.length || /[\p{Script=Han}\p{Script=Hiragana}]\P{L}*$/u.test(text));
  return languages.find((language) => ["ja", "zh"].includes(language) === isJapanese);
}

const answers = {
  "api/runs": () => inside.served,
  async "api/translate"({ text, run: name, source, target, tag, ...options }, pause) {
    const { runs, max_chars, max_texts } = inside.served;
    const isMuch = [...text.replaceAll("\n", "")].length > max_chars || text.split("\n").length > max_texts;
    if (isMuch) throw new Refusal(`more than ${max_chars} characters or ${max_texts} lines: send them in parts`);
    const fits = (code, language) => code === "auto" || code === language;
    const isOne = (run) => (!name || name === run.name) && fits(source, run.source) && fits(target, run.target);
    const fitting = runs.filter(isOne);
    const languages =
      fitting.length > 1 ? fitting.map((run) => run.source) : runs.flatMap((run) => [run.source, run.target]);
    const language = detected(text, languages);
    const run = fitting.find((one) => one.source === language) ?? fitting[0];
    if (!run) throw new Refusal(`no run translates ${source}→${target}`);
    const own = await translatorOf(run.name);
    const start = performance.now();
    const { sentences, remarks } = await (typeof tag === "string" ? own.withTag(tag) : own).translate(text, {
      ...options,
      pause,
    });
    const seconds = (performance.now() - start) / 1000;
    if (language !== run.source) remarks.other_language = true;
    return { run: run.name, source: run.source, target: run.target, seconds, remarks, sentences };
  },
  async explain({ text, run, checkpoint, ...options }, pause) {
    const translator = await translatorOf(run ?? inside.served.runs[0].name, checkpoint);
    return translator.explain(text, { ...options, pause });
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
