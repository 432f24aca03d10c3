// A network of three ONNX graphs, and beam search with it: what utils/search/beam.py does, for one sentence.
export const [PAD, UNK, BOS, EOS] = [0, 1, 2, 3];
export const NEVER = -Infinity;
export const GRAPHS = ["encoder", "decoder", "output"];
const { fround } = Math;

export class Model {
  /** Make the sessions of a run from its files, which `read` returns by their names. */
  static async load(runtime, settings, read) {
    const model = Object.assign(new Model(), { runtime, settings });
    const externalData = [{ path: "weights.bin", data: await read("weights.bin") }];
    // the weights become floats once, as they are read: with integers inside, results would differ from translate.py's
    const options = { externalData, executionProviders: ["wasm"], extra: { session: { disable_quant_qdq: "1" } } };
    for (const name of GRAPHS) model[name] = await runtime.InferenceSession.create(await read(`${name}.onnx`), options);
    return model;
  }

  release() {
    return Promise.all(GRAPHS.map((graph) => this[graph].release()));
  }

  floats(data, ...dims) {
    return new this.runtime.Tensor("float32", Float32Array.from(data), dims);
  }

  ids(data, ...dims) {
    return new this.runtime.Tensor("int64", BigInt64Array.from(data, BigInt), dims);
  }

  /** Read a source, ids without </s>; a head whose factor is 0 is silent, and a token that is 0 is not seen. */
  async start(source, heads = {}) {
    const { Le, Ld, H, K } = this.settings;
    const factors = (given, n) => this.floats(given ? given.flat() : Array(n * H).fill(1), n, H);
    const src = this.ids([...source, EOS], 1, source.length + 1);
    const read = await this.encoder.run({ src, heads: factors(heads.encoder, Le) });
    const factor = { self_heads: factors(heads.self, Ld), cross_heads: factors(heads.cross, Ld) };
    const past = this.floats([], Ld, 2, 1, H, 0, K);
    return { fixed: { src, source: read.source, ...factor }, past, attention: read.attention };
  }

  /** Append tokens, as many to each row; `rows` are those of the state which they continue. */
  async step(state, tokens, rows, outputs = []) {
    const tgt = this.ids(tokens, 1, rows.length, tokens.length / rows.length);
    const feeds = { tgt, ...state.fixed, past: state.past, rows: this.ids(rows, 1, rows.length) };
    const made = await this.decoder.run(feeds, ["states", "present", ...outputs]);
    return { ...made, state: { ...state, past: made.present } };
  }

  /** Return the log-probabilities of the next token, of the last layer or of each: (L, R, T, V). */
  async logProbs(states, ofEach = false) {
    const [n, ...dims] = states.dims;
    const last = ofEach ? states : this.floats(states.data.subarray((states.data.length / n) * (n - 1)), 1, ...dims);
    return (await this.output.run({ states: last })).log_probs;
  }
}

/** What the log-probability of a translation is divided by; its length is that with </s>. */
export function penalty({ normalization, length_penalty }, length) {
  return (normalization === "gnmt" ? (5 + length) / 6 : length) ** length_penalty;
}

/** Return the k largest of the values of some rows, largest first, as { score, row, token }. */
export function largest(values, k, size = values.length) {
  const best = [];
  for (let place = 0, least = NEVER; place < values.length; place++) {
    const score = values[place];
    if (!(score > least)) continue;
    best.push({ score, row: Math.floor(place / size), token: place % size });
    best.sort((a, b) => b.score - a.score).splice(k);
    if (best.length === k) least = best[k - 1].score;
  }
  return best;
}

/** Rule out what may not follow a row's tokens: as utils/search/constraint.py. */
function constrain(logProbs, ids, { min_length, longest, prefix, forbidden = [] }, ngram) {
  const t = ids.length;
  const forced = prefix[t];
  const [end, likely] = [logProbs[EOS], logProbs[forced]];
  logProbs.fill(NEVER, 0, EOS);
  for (const [position, token] of forbidden) if (position === t) logProbs[token] = NEVER;
  for (let i = 0; ngram && i + ngram <= t; i++) {
    const isSame = ids.slice(i, i + ngram - 1).every((id, j) => id === ids[t - ngram + 1 + j]);
    if (isSame) logProbs[ids[i + ngram - 1]] = NEVER;
  }
  if (min_length > t) logProbs[EOS] = NEVER;
  if (ngram && logProbs.every((logProb) => logProb === NEVER)) logProbs[EOS] = end;
  if (forced !== undefined) logProbs.fill(NEVER)[forced] = likely;
  if (longest <= t + 1) logProbs.fill(NEVER)[EOS] = end;
}

/**
 * Return up to `beam_size` translations, best first: ids without </s>, and scores.
 *
 * A prefix ends where </s> is at least as likely as the last of the best continuations. The search is over when none
 * can still overtake the best `nBest` translations. `request`: source, min_length, max_length, prefix, wanted; `pause`
 * is awaited before each step, and may throw; `onStep` is called with what each step chose among; `state` is that of
 * the source which was read.
 */
export async function beamSearch(model, request, config, { nBest = Infinity, onStep, pause, state } = {}) {
  const { source, prefix = [], max_length, wanted } = request;
  const width = config.beam_size + (wanted?.size ?? 0);
  const longest = Math.max(max_length, prefix.length + 1);
  const penalties = Float32Array.from({ length: longest }, (_, i) => penalty(config, i + 1));
  let [beam, finished] = [[{ ids: [], score: 0, row: 0 }], []];
  state ??= await model.start(source);
  for (let t = 0; ; t++) {
    await pause?.();
    const lasts = beam.map(({ ids }) => ids.at(-1) ?? BOS);
    const rows = beam.map(({ row }) => row);
    const made = await model.step(state, lasts, rows);
    const total = (await model.logProbs(made.states)).data;
    const vocab = total.length / beam.length;
    const ends = beam.map(({ ids, score }, row) => {
      const own = total.subarray(row * vocab, (row + 1) * vocab);
      constrain(own, ids, { ...request, prefix, longest }, config.no_repeat_ngram);
      for (let i = 0; i < vocab; i++) own[i] += score;
      const end = own[EOS];
      own[EOS] = NEVER;
      return end;
    });
    const mustEnd = longest <= t + 1 && !finished.length;
    const kept = wanted?.choose(total, ends, beam, config.beam_size, mustEnd) ?? largest(total, width, vocab);
    while (kept.length < width) kept.push({ score: NEVER, row: 0, token: EOS }); // fillers, which can never win
    const ended = ends.map((end) => (end < kept[width - 1].score ? NEVER : fround(end / penalties[t])));
    finished.push(...ended.map((score, row) => ({ ids: beam[row].ids, score })).filter(({ score }) => score > NEVER));
    finished = finished.sort((a, b) => b.score - a.score).slice(0, width);
    // over the lengths to come, the penalty is largest at one end or the other
    const hope = fround(kept[0].score / Math.max(penalties[Math.min(t + 1, longest - 1)], penalties[longest - 1]));
    onStep?.({ total, ends, ended, kept, hope, vocab });
    const isGreedy = width === 1 && !onStep && !wanted && finished.length; // what ends first is its translation
    if (isGreedy || (finished[Math.min(nBest, width) - 1]?.score ?? NEVER) >= hope || longest <= t + 1) break;
    beam = kept.map((one) => ({ ...one, ids: [...beam[one.row].ids, one.token] }));
    state = made.state;
  }
  if (!finished.length) throw new Error("the network's probabilities are not finite numbers: export it again");
  return finished;
}
