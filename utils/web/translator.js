// From a text to its translation, one sentence at a time: what utils/search/translator.py does; and what the explainer is
// told (utils/visualize/explain.py).
import { BOS, EOS, NEVER, PAD, UNK, beamSearch, largest, penalty } from "./search.js";
import { R, endOfFirst, hasCapitals, hasWords, isInCapitals, isLoop, isUnspaced, lost, masked } from "./text.js";
import { repetitions, shown, spans, splitCells, splitLong, splitSentences, sum, unmasked } from "./text.js";
import { usualCase, withoutEmphasis, written } from "./text.js";
import { Wanted } from "./wanted.js";

const [BLOCKED, LONG, WORSE, SPARE, LISTED] = [3, 40, 1.25, 10, 5];
const round = (x, digits = 4) => Number(x.toFixed(digits));
const mapped = (values, change) => new Map([...values].map(([name, value]) => [name, change(value)]));

/** Return the numbers of a tensor as arrays in arrays; the innermost are made of a part of its data. */
function nested({ data, dims: [n, ...rest] }, innermost = (part) => [...part]) {
  if (!rest.length) return innermost(data);
  const parts = Array.from({ length: n }, (_, i) => data.subarray((data.length / n) * i, (data.length / n) * (i + 1)));
  return parts.map((part) => nested({ data: part, dims: rest }, innermost));
}

export class Refusal extends Error {} // of what was asked: its message says why

export class Translator {
  constructor(model, { src, tgt }, settings) {
    Object.assign(this, { model, src, tgt, settings, search: settings.search, nBest: 1 });
    const known = (words) => words.filter((word) => ![...src.encode(word), ...tgt.encode(word)].includes(UNK));
    const { LEARNED, WORDS } = R.protected;
    this.standIns = known(LEARNED.names)[0] ? LEARNED : { numbers: known(WORDS.numbers), names: known(WORDS.names) };
  }

  /** Return a translator with other settings, and of texts with another tag; "": with none. */
  changed({ beam_size, length_penalty, tag, ...others }) {
    const [src, search] = [Object.create(this.src), { ...this.search }];
    if (beam_size) search.beam_size = beam_size;
    if (length_penalty !== undefined) search.length_penalty = length_penalty;
    if (typeof tag === "string")
      src.tags = [...src.tags.filter((own) => own.startsWith("<2")), ...(tag && [`<${tag}>`])];
    return Object.assign(Object.create(this), { src, search }, others);
  }

  /** Translate the lines of a text, as `api/translate` answers; `pause` is awaited between steps, and may throw. */
  async translate(given, attention = false) {
    const [lines, sentences] = [[], []];
    for (const line of given.replaceAll("\r\n", "\n").split("\n")) {
      const pieces = this.read(line);
      if (!pieces.length) pieces.push({ source: "", ids: [], gap: "" });
      if (lines.length) sentences.at(-1).gap += "\n";
      for (const [i, piece] of pieces.entries()) {
        pieces[i] = await this.piece(piece);
        sentences.push(await this.sentence(pieces[i], attention));
      }
      lines.push(pieces);
    }
    return { sentences, remarks: this.remarks(lines) };
  }

  async sentence(piece, attention) {
    const { source, ids, gap } = piece;
    const weights = attention && ids.length ? await this.weights(ids, piece.candidates) : [];
    const source_tokens = ids.length ? [...this.sourceTokens(piece), "</s>"] : [];
    const unknown = ids.flatMap((id, place) => (id === UNK ? [place] : []));
    const candidates = piece.candidates.map(({ text, score, tokens }, rank) => {
      return { text, score: round(score), tokens, attention: weights[rank] ?? null };
    });
    return { source, gap, known: ids.length > 0 || !hasWords(source), source_tokens, unknown, candidates };
  }

  async piece({ ...piece }) {
    if (!piece.ids.length) return { ...piece, candidates: [{ text: piece.source, score: 0, tokens: [], ids: [] }] };
    piece.request = this.request(piece.ids);
    const found = this.chosen(piece, await this.find(piece.request));
    return this.searchLost(await this.searchWords(await this.endLoop(found)));
  }

  request(source) {
    const [n, { min_ratio, max_ratio, min_length, max_length }] = [source.length + 1, this.search];
    const most = Math.min(max_ratio * n + SPARE, max_length + 1, this.settings.longest);
    const least = Math.min(Math.max(min_ratio * n, min_length), most - 1);
    return { source, min_length: Math.trunc(least), max_length: Math.trunc(most) };
  }

  async find(request, nBest = this.nBest) {
    const found = await beamSearch(this.model, request, this.search, { nBest, pause: this.pause });
    return found.slice(0, nBest).map((hypothesis) => this.candidate(hypothesis));
  }

  candidate({ ids, score }) {
    return { ids, score, text: this.tgt.decode(ids), tokens: this.tgt.tokens(ids) };
  }

  /** A loop is searched for again with no n-gram twice; what is one then, too, is cut where it repeats itself. */
  async endLoop(piece) {
    if (!isLoop(piece.candidates[0].text, piece.source)) return piece;
    if (repetitions(piece.source) <= R.loop.OFTEN) {
      const beam_size = Math.min(this.nBest, this.search.beam_size);
      const blocked = this.changed({ search: { ...this.search, no_repeat_ngram: BLOCKED, beam_size } });
      piece = { ...this.chosen(piece, await blocked.find(piece.request)), loop: "searched again" };
    }
    const [{ ids, score }, ...others] = piece.candidates;
    const texts = [...ids, EOS].map((_, n) => this.tgt.decode(ids.slice(0, n)));
    const end = endOfFirst(texts.at(-1), piece.source);
    if (end === null) return piece;
    const lengths = texts.map((text) => (text.length <= end ? text.trimEnd().length : 0));
    const n = lengths.indexOf(Math.max(...lengths));
    if (n === ids.length) return piece;
    const cut = this.chosen(piece, [this.candidate({ ids: ids.slice(0, n), score })]);
    return { ...cut, candidates: [...cut.candidates, ...others], loop: "cut" };
  }

  /** Search for longer translations of what has become empty or signs alone, and keep those with words. */
  async searchWords(piece) {
    const [[{ text, ids }], { request }] = [piece.candidates, piece];
    if (hasWords(text)) return piece;
    const longer = { ...request, min_length: Math.min(ids.length + 1, request.max_length - 1) };
    const { candidates } = this.chosen(piece, await this.find(longer, Infinity));
    const withWords = candidates.filter((other) => hasWords(other.text)).slice(0, this.nBest);
    return withWords.length ? { ...piece, candidates: withWords } : piece;
  }

  /** Translate again, with stand-ins for all numbers, what has lost one of them; keep what has lost less. */
  async searchLost(piece) {
    const isHard = piece.lost.some((span) => span.isHard);
    if (!isHard && !(piece.lost.length && piece.ids.length < LONG)) return piece;
    const whole = this.masked(piece.source, true, piece.masked.inCapitals);
    if (!whole.spans.size) return piece;
    const ids = this.src.encode(whole.text).slice(0, this.settings.window - 1);
    const wanted = new Wanted(this.standInsIn(whole.text), this.tgt);
    const found = await this.find({ ...this.request(ids), wanted });
    const next = this.chosen({ ...piece, ids, masked: whole, loop: "" }, found);
    const [now, before] = [next, piece].map(({ candidates }) => this.perplexity([candidates[0]]));
    const isBetter = next.lost.length < piece.lost.length && !isLoop(next.candidates[0].text, piece.source);
    return isBetter && (isHard || now < WORSE * before) ? next : piece;
  }

  /** Return a piece with its candidates, without stand-ins, and what the best of them has lost. */
  chosen(piece, found) {
    const { tgt_lang, src_lang } = this.settings;
    const { source, masked: read } = piece;
    const words = mapped(read.spans, (span) => written(span, tgt_lang));
    const write = (text) => (read.inCapitals && hasCapitals(tgt_lang) ? text.toUpperCase() : text);
    const candidates = found.map(({ text, tokens, ...candidate }) => {
      return { ...candidate, text: unmasked(read, write(text), tgt_lang), tokens: shown(tokens, words) };
    });
    return { ...piece, candidates, lost: lost(source, candidates[0].text, [src_lang, tgt_lang]) };
  }

  masked(text, everything = false, inCapitals = false) {
    const { src_lang } = this.settings;
    const found = masked(text, src_lang, this.standIns, everything);
    inCapitals ||= isInCapitals(found.text);
    if (!inCapitals && !hasCapitals(src_lang)) return found;
    const encode = (word) => this.src.encode(word).slice(this.src.tags.length);
    return { ...found, text: (inCapitals ? usualCase : withoutEmphasis)(found.text, encode), inCapitals };
  }

  /** Return the stand-ins of a text, which none is within a word of. */
  standInsIn(text) {
    const edge = R.glossary.BOUNDARY.source;
    const words = Object.values(this.standIns).flat().join("|") || "(?!)";
    return text.match(new RegExp(`${edge}(?:${words})${edge}`, "gu")) ?? [];
  }

  isKnown(ids, text) {
    const tokens = this.src.tokens(ids);
    const isRead = (id, i) => i >= this.src.tags.length && id !== UNK && tokens[i].replace(/^▁+|▁+$/g, "").trim();
    return hasWords(text) && ids.some(isRead);
  }

  /** Return the pieces of a line: its cells are split into sentences, and those that are too long into parts. */
  read(line) {
    return splitCells(line).flatMap((cell) => this.pieces(cell));
  }

  pieces({ text, gap }) {
    const { window, src_lang, tgt_lang } = this.settings;
    const whole = this.masked(text);
    const ids = this.src.encode(whole.text);
    if (!this.isKnown(ids, text)) return [{ source: text, ids: [], gap }];
    const isSplit = this.search.by_sentence || ids.length >= window;
    const kept = isSplit ? spans(text, src_lang).map(({ begin, end }) => [begin, end]) : [];
    const sentences = isSplit ? splitSentences(text, kept) : [];
    if (ids.length < window && sentences.length < 2) return [{ source: text, ids, gap, masked: whole }];
    const fits = (part) => this.src.encode(this.masked(part).text).length < window;
    const parts = sentences.flatMap((sentence) => splitLong(sentence.text, fits));
    return parts.map((source, i) => {
      const own = this.masked(source, false, whole.inCapitals);
      const read = this.src.encode(own.text);
      const space = isUnspaced(tgt_lang) ? "" : " ";
      const known = this.isKnown(read, source) ? read.slice(0, window - 1) : [];
      return { source, ids: known, gap: i + 1 < parts.length ? space : gap, masked: own };
    });
  }

  /** Return the tokens that are read; unknown ones, and those that are protected, as they stand in the text. */
  sourceTokens({ ids, masked: read }) {
    const tokens = ids.includes(UNK) ? this.src.split(read.text).slice(0, ids.length) : this.src.tokens(ids);
    const words = mapped(read.spans, (span) => span.text);
    return shown(tokens, words);
  }

  perplexity(candidates) {
    const lengths = candidates.map(({ tokens }) => tokens.length + 1);
    const logProbs = candidates.map(({ score }, i) => score * penalty(this.search, lengths[i]));
    return Math.exp(Math.min(700, -sum(logProbs) / Math.max(1, sum(lengths))));
  }

  /** Return what the reader of a translation should know: what is true, or words. */
  remarks(lines) {
    const [most, read] = [this.search.max_perplexity, lines.map((pieces) => pieces.filter(({ ids }) => ids.length))];
    const all = read.flat();
    const isUnknown = (pieces, i) => !read[i].length && pieces.some(({ source }) => hasWords(source));
    const isFar = (pieces) => this.perplexity(pieces.map(({ candidates: [best] }) => best)) > most;
    const isWordless = ({ source, candidates: [{ text }] }) => hasWords(source) && !hasWords(text);
    const said = {
      unknown: lines.some(isUnknown),
      unknown_tokens: all.flatMap((piece) => this.sourceTokens(piece).filter((_, i) => piece.ids[i] === UNK)),
      far: most > 0 && read.some(isFar),
      loop: ["cut", "searched again"].find((done) => all.some(({ loop }) => loop === done)),
      wordless: all.filter(isWordless).map(({ source }) => source),
      dropped: all.flatMap((piece) => piece.lost.map(({ text }) => text)),
    };
    const unique = Object.entries(said).map(([name, what]) => [name, Array.isArray(what) ? [...new Set(what)] : what]);
    return Object.fromEntries(unique.filter(([, what]) => what && what.length !== 0));
  }

  /** Return the mean weights of the last layer's heads over the source, for each token of each candidate. */
  async weights(source, candidates) {
    const targets = candidates.map(({ ids }) => ids);
    const { cross_attention } = await this.forced(await this.model.start(source), targets, ["cross_attention"]);
    const rows = nested(cross_attention).at(-1);
    const mean = (heads, t) => heads[0][t].map((_, s) => round(sum(heads.map((head) => head[t][s])) / heads.length, 3));
    return targets.map((ids, row) => ids.map((_, t) => mean(rows[row], t)));
  }

  /** Read targets, and return what the decoder makes of them. */
  forced(state, targets, outputs) {
    const longest = Math.max(...targets.map(({ length }) => length));
    const tokens = targets.flatMap((ids) => [BOS, ...ids, ...Array(longest - ids.length).fill(PAD)]);
    return this.model.step(state, tokens, Array(targets.length).fill(0), outputs);
  }

  /** Translate one sentence, and return all that the explainer shows: tokens, attention, guesses and the beam. */
  async explain(given, { heads = {}, hidden = [], prefix = [], forbidden = [] }) {
    const [begin, { src_lang, tgt_lang }] = [performance.now(), this.settings];
    const [piece, ...others] = this.read(given).filter(({ source }) => source);
    if (!piece?.ids.length) throw new Refusal("there is no word that the model knows: give a sentence");
    if (others.length) throw new Refusal(`these are ${others.length + 1} sentences: give one of them`);
    const seen = piece.ids.map((id, place) => (hidden.includes(place) ? PAD : id));
    const [steps, request] = [[], { ...this.request(seen), prefix, forbidden }];
    const onStep = (step) => steps.push(this.listed(step));
    const state = await this.model.start(seen, heads);
    const [best] = await beamSearch(this.model, request, this.search, { nBest: 1, onStep, pause: this.pause, state });
    const [{ text, tokens, ids, score }] = this.chosen(piece, [this.candidate(best)]).candidates;
    const made = await this.forced(state, [ids], ["self_attention", "cross_attention"]);
    const guesses = nested(await this.model.logProbs(made.states, true), (row) => row).map(([layer]) =>
      layer.map((logProbs, t) => {
        const likeliest = [...largest(logProbs, LISTED).map(({ token }) => token), ids[t] ?? EOS];
        return likeliest.map((id) => [this.tgt.tokens([id])[0], round(Math.exp(logProbs[id])), id]);
      }),
    );
    const read = [state.attention, made.self_attention, made.cross_attention].map((tensor) => nested(tensor));
    const [encoder, decoder, cross] = read.map((layers) => layers.map(([sentence]) => sentence));
    const source = { tokens: [...this.sourceTokens(piece), "</s>"], ids: [...piece.ids, EOS], lang: src_lang };
    const target = { tokens: ["<s>", ...tokens], ids: [BOS, ...ids], lang: tgt_lang };
    const said = { tokens: [...tokens, "</s>"], lang: tgt_lang };
    const penalties = steps.map((_, i) => penalty(this.search, i + 1));
    const beam = { steps, penalties, alpha: this.search.length_penalty };
    const seconds = round((performance.now() - begin) / 1000);
    return { source, target, said, text, score, beam, attention: { encoder, decoder, cross }, guesses, seconds };
  }

  /** Return what a step chose among: row, token, log-probability and id of each; null: nothing. */
  listed({ total, vocab, kept, ends, ended, hope }) {
    const told = (value) => (value > NEVER ? round(value) : null);
    const entry = ({ score, row, token }) =>
      score > NEVER ? [row, this.tgt.tokens([token])[0], round(score), token] : null;
    for (const { row, token } of kept) total[row * vocab + token] = NEVER;
    const next = largest(total, kept.length, vocab);
    const dropped = kept.map((_, i) => (next[i] ? entry(next[i]) : null));
    const finished = ended.flatMap((score, row) => (score > NEVER ? [[row, round(ends[row]), round(score)]] : []));
    return { kept: kept.map(entry), dropped, ends: finished, hope: told(hope) };
  }
}
