// From a text to its translation, one sentence at a time: what utils/search/translator.py does; and what the explainer is
// told (utils/visualize/explain.py).
import { BOS, EOS, NEVER, PAD, UNK, beamSearch, largest, penalty } from "./search.js";
import { endOfFirst, hasCapitals, hasWords, isInCapitals, isLoop, isUnspaced, lost, masked, often } from "./text.js";
import { repetitions, shown, spans, splitCells, splitLong, splitSentences, standIns } from "./text.js";
import { isGlued, sum, usualCase, written } from "./text.js";
import { Tokenizer } from "./tokenizer.js";
import { Wanted } from "./wanted.js";

const [BLOCKED, LONG, WORSE, SPARE, LISTED] = [3, 40, 1.25, 10, 5];
const round = (x, digits = 4) => Number(x.toFixed(digits));
const unchanged = (text) => ({ text, score: 0, tokens: [], ids: [] });
const mapped = (values, change) => new Map([...values].map(([name, value]) => [name, change(value)]));

/** Return the numbers of a tensor as arrays in arrays. */
function nested({ data, dims: [n, ...rest] }) {
  if (!rest.length) return [...data];
  const size = data.length / n;
  return Array.from({ length: n }, (_, i) => nested({ data: data.subarray(i * size, (i + 1) * size), dims: rest }));
}

export class Refusal extends Error {} // of what was asked: its message says why

export class Translator {
  constructor(model, { src, tgt }, settings) {
    Object.assign(this, { model, src, tgt, settings });
    const known = (words) => words.filter((word) => ![...src.encode(word), ...tgt.encode(word)].includes(UNK));
    const { learned, words } = standIns();
    this.standIns = known(learned.names)[0] ? learned : { numbers: known(words.numbers), names: known(words.names) };
  }

  /** Return a translator of texts with another tag; "": with none. */
  withTag(tag) {
    const tags = [...this.src.tags.filter((own) => own.startsWith("<2")), ...(tag ? [`<${tag}>`] : [])];
    const src = Object.assign(Object.create(Tokenizer.prototype), this.src, { tags });
    return Object.assign(Object.create(Translator.prototype), this, { src });
  }

  /** Translate the lines of a text, as `api/translate` answers; `pause` is awaited between steps, and may throw. */
  async translate(given, { beam, n_best = 1, attention = false, pause } = {}) {
    const search = { ...this.settings.search };
    search.beam_size = beam || Math.max(search.beam_size, n_best);
    const [lines, sentences] = [[], []];
    for (const line of given.replaceAll("\r\n", "\n").split("\n")) {
      const pieces = splitCells(line).flatMap((cell) => this.pieces(cell, search.by_sentence));
      if (!pieces.length) pieces.push({ source: "", ids: [], gap: "" });
      if (lines.length) sentences.at(-1).gap += "\n";
      for (const [i, piece] of pieces.entries()) {
        pieces[i] = await this.piece(piece, { search, nBest: n_best, pause });
        sentences.push(await this.sentence(pieces[i], attention));
      }
      lines.push(pieces);
    }
    return { sentences, remarks: this.remarks(lines, search) };
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

  async piece(piece, options) {
    if (!piece.ids.length) return { ...piece, candidates: [unchanged(piece.source)] };
    const request = this.request(piece.ids, options.search);
    piece = this.chosen(piece, await this.find(request, options));
    piece = await this.endLoop(piece, request, options);
    return this.searchLost(await this.searchWords(piece, request, options), options);
  }

  request(source, { min_ratio, max_ratio, min_length, max_length }) {
    const n = source.length + 1;
    const most = Math.min(max_ratio * n + SPARE, max_length + 1, this.settings.longest);
    const least = Math.min(Math.max(min_ratio * n, min_length), most - 1);
    return { source, min_length: Math.trunc(least), max_length: Math.trunc(most) };
  }

  async find(request, { search, nBest, pause }) {
    const found = await beamSearch(this.model, request, search, { nBest, pause });
    return found.slice(0, nBest).map((hypothesis) => this.candidate(hypothesis));
  }

  candidate({ ids, score }) {
    return { ids, score, text: this.tgt.decode(ids), tokens: this.tgt.tokens(ids) };
  }

  /** A loop is searched for again with no n-gram twice; what is one then, too, is cut where it repeats itself. */
  async endLoop(piece, request, options) {
    if (!isLoop(piece.candidates[0].text, piece.source)) return piece;
    if (repetitions(piece.source) <= often()) {
      const { beam_size } = options.search;
      const search = { ...options.search, no_repeat_ngram: BLOCKED, beam_size: Math.min(options.nBest, beam_size) };
      piece = { ...this.chosen(piece, await this.find(request, { ...options, search })), loop: "searched again" };
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
  async searchWords(piece, request, options) {
    const [{ text, ids }] = piece.candidates;
    if (hasWords(text)) return piece;
    const longer = { ...request, min_length: Math.min(ids.length + 1, request.max_length - 1) };
    const { candidates } = this.chosen(piece, await this.find(longer, { ...options, nBest: undefined }));
    const withWords = candidates.filter((other) => hasWords(other.text)).slice(0, options.nBest);
    return withWords.length ? { ...piece, candidates: withWords } : piece;
  }

  /** Translate again, with stand-ins for all numbers, what has lost one of them; keep what has lost less. */
  async searchLost(piece, options) {
    const isHard = piece.lost.some((span) => span.isHard);
    if (!isHard && !(piece.lost.length && piece.ids.length < LONG)) return piece;
    const whole = this.masked(piece.source, true, piece.masked.inCapitals);
    if (!whole.spans.size) return piece;
    const ids = this.src.encode(whole.text).slice(0, this.settings.window - 1);
    const wanted = new Wanted(this.standInsIn(whole.text), this.tgt);
    const found = await this.find({ ...this.request(ids, options.search), wanted }, options);
    const next = this.chosen({ ...piece, ids, masked: whole, loop: "" }, found);
    const [now, before] = [next, piece].map(({ candidates }) => this.perplexity([candidates[0]], options.search));
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
      return { ...candidate, text: read.unmasked(write(text), tgt_lang), tokens: shown(tokens, words) };
    });
    return { ...piece, candidates, lost: lost(source, candidates[0].text, [src_lang, tgt_lang]) };
  }

  masked(text, everything = false, inCapitals = false) {
    const found = masked(text, this.settings.src_lang, this.standIns, everything);
    if (!inCapitals && !isInCapitals(found.text)) return found;
    return Object.assign(found, { text: usualCase(found.text, (word) => this.src.encode(word)), inCapitals: true });
  }

  /** Return the stand-ins of a text, which none is within a word of. */
  standInsIn(text) {
    const words = new RegExp(Object.values(this.standIns).flat().join("|") || "(?!)", "g");
    const isWord = ({ 0: word, index }) =>
      !(index && isGlued(text[index - 1], word)) && !isGlued(word, text[index + word.length] ?? " ");
    return [...text.matchAll(words)].filter(isWord).map(([word]) => word);
  }

  isKnown(ids, text) {
    const tokens = this.src.tokens(ids);
    const isRead = (id, i) => i >= this.src.tags.length && id !== UNK && tokens[i].replace(/^▁+|▁+$/g, "").trim();
    return hasWords(text) && ids.some(isRead);
  }

  /** Split a cell into sentences, and those that are too long into parts. */
  pieces({ text, gap }, bySentence) {
    const { window, src_lang, tgt_lang } = this.settings;
    const whole = this.masked(text);
    const ids = this.src.encode(whole.text);
    if (!this.isKnown(ids, text)) return [{ source: text, ids: [], gap }];
    const isSplit = bySentence || ids.length >= window;
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
    return shown(
      tokens,
      mapped(read.spans, (span) => span.text),
    );
  }

  perplexity(candidates, search) {
    const lengths = candidates.map(({ tokens }) => tokens.length + 1);
    const logProbs = candidates.map(({ score }, i) => score * penalty(search, lengths[i]));
    return Math.exp(Math.min(700, -sum(logProbs) / Math.max(1, sum(lengths))));
  }

  /** Return what the reader of a translation should know: what is true, or words. */
  remarks(lines, search) {
    const read = lines.map((pieces) => pieces.filter(({ ids }) => ids.length));
    const all = read.flat();
    const perplexities = read.map((pieces) =>
      this.perplexity(
        pieces.map(({ candidates: [best] }) => best),
        search,
      ),
    );
    const isUnknown = (pieces, i) => !read[i].length && pieces.some(({ source }) => hasWords(source));
    const unknown = all.filter(({ ids }) => ids.includes(UNK));
    const said = {
      unknown: lines.some(isUnknown),
      unknown_tokens: unknown.flatMap((piece) => this.sourceTokens(piece).filter((_, i) => piece.ids[i] === UNK)),
      far: search.max_perplexity > 0 && perplexities.some((value) => value > search.max_perplexity),
      loop: ["cut", "searched again"].find((done) => all.some(({ loop }) => loop === done)),
      wordless: all.flatMap(({ source, candidates: [{ text }] }) =>
        hasWords(source) && !hasWords(text) ? source : [],
      ),
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
  async explain(given, { beam, length_penalty, heads = {}, hidden = [], prefix = [], forbidden = [], pause }) {
    const begin = performance.now();
    const { src_lang, tgt_lang, search: own } = this.settings;
    const search = { ...own, beam_size: beam ?? own.beam_size, length_penalty: length_penalty ?? own.length_penalty };
    const cells = splitCells(given).flatMap((cell) => this.pieces(cell, search.by_sentence));
    const [piece, ...others] = cells.filter(({ source }) => source);
    if (!piece?.ids.length) throw new Refusal("there is no word that the model knows: give a sentence");
    if (others.length) throw new Refusal(`these are ${others.length + 1} sentences: give one of them`);
    const seen = piece.ids.map((id, place) => (hidden.includes(place) ? PAD : id));
    const [steps, request] = [[], { ...this.request(seen, search), prefix, forbidden }];
    const onStep = (step) => steps.push(this.listed(step));
    const [best] = await beamSearch(this.model, request, search, { nBest: 1, onStep, pause, heads });
    const [{ text, tokens, ids, score }] = this.chosen(piece, [this.candidate(best)]).candidates;
    const state = await this.model.start(seen, heads);
    const made = await this.forced(state, [ids], ["self_attention", "cross_attention"]);
    const guesses = nested(await this.model.logProbs(made.states, true)).map(([layer]) =>
      layer.map((logProbs, t) => {
        const likeliest = [...largest(logProbs, LISTED).map(({ place }) => place), ids[t] ?? EOS];
        return likeliest.map((id) => [this.tgt.tokens([id])[0], round(Math.exp(logProbs[id])), id]);
      }),
    );
    const read = [state.attention, made.self_attention, made.cross_attention].map(nested);
    const [encoder, decoder, cross] = read.map((layers) => layers.map(([sentence]) => sentence));
    const source = { tokens: [...this.sourceTokens(piece), "</s>"], ids: [...piece.ids, EOS], lang: src_lang };
    const target = { tokens: ["<s>", ...tokens], ids: [BOS, ...ids], lang: tgt_lang };
    const said = { tokens: [...tokens, "</s>"], lang: tgt_lang };
    const penalties = steps.map((_, i) => penalty(search, i + 1));
    const tree = { steps, penalties, alpha: search.length_penalty };
    const seconds = round((performance.now() - begin) / 1000);
    return { source, target, said, text, score, beam: tree, attention: { encoder, decoder, cross }, guesses, seconds };
  }

  /** Return what a step chose among: row, token, log-probability and id of each; null: nothing. */
  listed({ total, vocab, kept, ends, ended, hope }) {
    const row = (value) => (value > NEVER ? round(value) : null);
    const entry = (score, place) => [
      Math.floor(place / vocab),
      this.tgt.tokens([place % vocab])[0],
      round(score),
      place % vocab,
    ];
    const each = (found) =>
      kept.map((_, i) => (found[i]?.value > NEVER ? entry(found[i].value, found[i].place) : null));
    const chosen = kept.map(({ score, row: of, token }) => ({ value: score, place: of * vocab + token }));
    for (const { place } of chosen) total[place] = NEVER;
    const finished = ended.flatMap((score, of) => (score > NEVER ? [[of, round(ends[of]), round(score)]] : []));
    return { kept: each(chosen), dropped: each(largest(total, kept.length)), ends: finished, hope: row(hope) };
  }
}
