// SentencePiece, for the models that `SentencePieceTokenizer` (utils/text/tokenizer.py) writes: a unigram model or BPE,
// any rule of normalization, unknown characters read in a form that is known:
//   new Tokenizer(model: SentencePiece's ModelProto as JSON; tags: what each text begins with)
//   encode(text) -> ids; decode(ids) -> text; tokens(ids) -> pieces; size
//   split(text) -> the pieces that `encode` gives the ids of, unknown ones as they stand in the text
// Half a character is an Error of `encode`; any error of the constructor means that the file is damaged.
import { knownCharacters, knownForm, sum, UNKNOWN } from "./text.js";

const UNREAD = -20; // log-probability of an unknown character of a text: less than that of any piece
const PENALTY = 10; // what an unknown character scores below the rarest piece
const utf8 = (bytes) => new TextDecoder("utf-8", { ignoreBOM: true }).decode(bytes);
const bytesOf = (base64) => Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));

export class Tokenizer {
  constructor({ pieces, trainerSpec, normalizerSpec }, tags = []) {
    this.tags = tags;
    this.size = pieces.length;
    this.pieces = pieces.map(({ piece }) => piece);
    this.types = pieces.map(({ type }) => type ?? "NORMAL");
    this.scores = Float32Array.from(pieces, ({ type, score }) => (type === "USER_DEFINED" ? -0.1 : (score ?? 0)));
    this.unknownScore = Math.fround(Math.min(...this.scores.filter((_, id) => this.types[id] === "NORMAL")) - PENALTY);
    this.ids = new Map(this.pieces.map((piece, id) => [piece, id]));
    const isOfTexts = (id) => ["NORMAL", "USER_DEFINED"].includes(this.types[id]);
    this.known = new Map([...this.ids].filter(([, id]) => isOfTexts(id)));
    this.longest = Math.max(...[...this.known.keys()].map((piece) => piece.length));
    this.characters = knownCharacters(this.pieces);
    this.isBpe = trainerSpec.modelType === "BPE";
    this.unknownText = trainerSpec.unkSurface ?? " ⁇ ";
    const defined = this.pieces.filter((_, id) => this.types[id] === "USER_DEFINED");
    const escaped = defined.map((piece) => piece.replace(/[^\p{L}\p{N}]/gu, "\\$&"));
    this.defined = new RegExp(`(${escaped.toSorted((a, b) => b.length - a.length).join("|") || "(?!)"})`);
    this.begins = normalizerSpec.addDummyPrefix ?? true; // with a ▁
    this.trims = normalizerSpec.removeExtraWhitespaces ?? true;
    const rules = bytesOf(normalizerSpec.precompiledCharsmap ?? "");
    if (!rules.length) return;
    const size = new DataView(rules.buffer).getUint32(0, true);
    this.trie = new Uint32Array(rules.buffer.slice(4, 4 + size));
    this.written = rules.subarray(4 + size); // what the rules write, each with a 0 behind it
  }

  tokens(ids) {
    return ids.map((id) => this.pieces[id]);
  }
  encode(text) {
    return this.pairs(text).map(([, id]) => id);
  }
  split(text) {
    return this.pairs(text).map(([piece]) => piece);
  }
  apart(text, change) {
    return text.split(this.defined).flatMap((part, i) => (i % 2 ? [part] : change(part)));
  }

  decode(ids) {
    let text = "";
    for (const id of ids.filter((one) => this.types[one] !== "CONTROL")) {
      const piece = text || !(this.begins || this.trims) ? this.pieces[id] : this.pieces[id].replace(/^▁/, "");
      text += id === UNKNOWN ? this.unknownText : piece.replaceAll("▁", " ");
    }
    return text;
  }

  pairs(text) {
    if (/\p{Cs}/u.test(text)) throw new Error(`${JSON.stringify(text)} is not UTF-8: give the text in UTF-8`);
    if (this.characters.has("'")) text = text.replace(/(?<=[A-Za-z])’(?=[A-Za-z])/g, "'");
    const normal = this.normalize(knownForm(text, this.characters));
    const pairs = this.tags.map((tag) => [tag, this.ids.get(tag)]);
    for (const piece of this.isBpe ? this.merged(normal) : this.best(normal)) {
      const id = this.known.get(piece) ?? UNKNOWN;
      if (id === UNKNOWN && pairs.at(-1)?.[1] === UNKNOWN) pairs.at(-1)[0] += piece; // those in a row are one
      else pairs.push([piece, id]);
    }
    return normal ? pairs : [];
  }

  /** Return the log-probability of a text by its pieces alone; `share`: of what was learned from, in its language. */
  logProb(text, share) {
    const of = (id) => (this.isBpe ? -Math.log(this.size) : this.scores[id]) - Math.log(share);
    const read = this.pairs(text).slice(this.tags.length);
    return sum(read.map(([piece, id]) => (id === UNKNOWN ? UNREAD * [...piece].length : of(id))));
  }

  normalize(text) {
    let [normal, isBehindSpace] = ["", this.trims];
    for (const part of this.apart(text, (other) => this.rewritten(other))) {
      const added = isBehindSpace ? part.replace(/^ +/, "") : part;
      if (added) isBehindSpace = this.trims && added.endsWith(" ");
      normal += added;
    }
    normal = text && ((this.begins ? "▁" : "") + normal).replaceAll(" ", "▁");
    return this.trims ? normal.replace(/▁+$/, "") : normal;
  }

  /** Return what the rules of normalization, a double array of beginnings (Darts), make of the parts of a text. */
  rewritten(text) {
    if (!this.trie) return [...text];
    const [bytes, parts] = [new TextEncoder().encode(text), []];
    const offset = (unit) => (unit >>> 10) << ((unit & 512) >> 6);
    for (let begin = 0, end; begin < bytes.length; begin = end) {
      for (end = begin + 1; (bytes[end] & 192) === 128;) end++; // of a character
      let [part, node] = [bytes.subarray(begin, end), offset(this.trie[0])];
      for (let i = begin; i < bytes.length; i++) {
        const unit = this.trie[(node ^= bytes[i])];
        if ((unit & 0x800000ff) !== bytes[i]) break;
        node ^= offset(unit);
        const value = this.trie[node] & 0x7fffffff;
        if (unit & 256) [end, part] = [i + 1, this.written.subarray(value, this.written.indexOf(0, value))];
      }
      parts.push(utf8(part));
    }
    return parts;
  }

  /** Return the likeliest pieces of a unigram model (Viterbi), in SentencePiece's arithmetic of 32 bits. */
  best(text) {
    const [scores, begins, pieces] = [[0], [], []];
    for (let begin = 0, next; begin < text.length; begin = next) {
      next = begin + (text.codePointAt(begin) > 0xffff ? 2 : 1);
      for (let end = next; end <= Math.min(begin + this.longest, text.length) || end === next; end++) {
        const id = this.known.get(text.slice(begin, end)) ?? (end === next ? UNKNOWN : -1);
        const score = Math.fround(scores[begin] + (id === UNKNOWN ? this.unknownScore : this.scores[id]));
        if (id >= 0 && !(score <= scores[end])) [scores[end], begins[end]] = [score, begin];
      }
    }
    for (let end = text.length; end > 0; end = begins[end]) pieces.push(text.slice(begins[end], end));
    return pieces.reverse();
  }

  /** Merge neighbours into pieces, the best of the pairs first, and of those the leftmost. */
  merged(text) {
    const parts = this.apart(text, (other) => [...other]);
    const isFixed = (part) => this.types[this.known.get(part)] === "USER_DEFINED";
    const scoreOf = (i) => {
      const id = isFixed(parts[i]) || isFixed(parts[i + 1]) ? undefined : this.known.get(parts[i] + parts[i + 1]);
      return this.scores[id] ?? -Infinity;
    };
    const scores = parts.map((_, i) => scoreOf(i));
    for (;;) {
      const i = scores.reduce((best, score, place) => (score > scores[best] ? place : best), 0);
      if (!(scores[i] > -Infinity)) return parts;
      parts.splice(i, 2, parts[i] + parts[i + 1]);
      scores.splice(i, 1);
      for (const place of [i - 1, i].filter((one) => one >= 0)) scores[place] = scoreOf(place);
    }
  }
}
