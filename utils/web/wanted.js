// A search for translations that have some terms, here stand-ins: `Wanted` of utils/search/glossary.py, and how the rows
// of a beam are chosen then (`_Banks` in utils/search/beam.py), for one sentence. A progress is { counts, begun }: how
// often a row has each term, and [term, rest] of those that it may end with a part of.
import { BOS, EOS, NEVER, largest } from "./search.js";
import { isGlued, sum } from "./text.js";

export class Wanted {
  /** `terms` as often as each is wanted; `encode` and `pieces` are those of the target's tokenizer. */
  constructor(terms, { encode, pieces }) {
    const names = [...new Set(terms)];
    const spellings = names.map((name) => {
      // otherwise behind a space than directly behind something else
      const [ids, bracket, behind] = [name, "(", `(${name}`].map(encode);
      const rest = bracket.every((id, i) => id === behind[i]) ? behind.slice(bracket.length) : [];
      return rest.length && `${rest}` !== `${ids}` ? [ids, rest] : [ids];
    });
    this.spellings = spellings.flatMap((of, i) => of.map((ids) => [i, ids]));
    this.lengths = spellings.map((of) => Math.min(...of.map((ids) => ids.length)));
    this.tokens = [...new Set(spellings.flat(2))];
    this.times = names.map((name) => terms.filter((term) => term === name).length);
    this.start = { counts: names.map(() => 0), begun: [] };
    this.isGlued = (before, token) => isGlued(pieces[before], pieces[token]);
    this.size = this.left(this.start);
  }

  /** Return how far a row that ends with the token `last` has come with another behind it. */
  after(progress, last, token) {
    const { counts, begun } = progress;
    if (!begun.length && !this.tokens.includes(token)) return progress;
    const [isApart, goOn] = [!this.isGlued(last, token), ([, ids]) => ids[0] === token];
    const found = isApart ? begun.filter(([, rest]) => !rest.length).map(([i]) => i) : [];
    const next = [...begun, ...(isApart ? this.spellings : [])].filter(goOn).map(([i, ids]) => [i, ids.slice(1)]);
    return {
      counts: counts.map((n, i) => n + found.filter((other) => other === i).length),
      begun: [...new Map(next.map((one) => [`${one}`, one])).values()],
    };
  }

  missing = ({ counts }) => this.times.map((n, i) => Math.max(0, n - counts[i]));

  /** Return how many tokens of terms are missing; of what is begun, only the term that is furthest counts. */
  left(progress) {
    const missing = this.missing(progress);
    const said = progress.begun.filter(([i]) => missing[i]).map(([i, rest]) => this.lengths[i] - rest.length);
    return sum(missing.map((n, i) => n * this.lengths[i])) - Math.max(0, ...said);
  }

  /** Return the prefixes to keep, those that lack as many tokens competing; rule out of `ends` what may not end yet. */
  choose(total, ends, beam, width, mustEnd) {
    const [banks, vocab] = [[], total.length / beam.length];
    const lacking = beam.map(({ ids, progress = this.start }, row) => {
      const [own, last] = [total.subarray(row * vocab, (row + 1) * vocab), ids.at(-1) ?? BOS];
      for (const token of new Set([...largest(own, width).map(({ place }) => place), ...this.tokens])) {
        if (!(own[token] > NEVER)) continue;
        const then = this.after(progress, last, token);
        (banks[this.left(then)] ??= []).push({ score: own[token], row, token, progress: then });
      }
      return sum(this.missing(this.after(progress, last, EOS)));
    });
    const better = (a, b) => b.score - a.score || b.row - a.row || b.token - a.token;
    const ranked = banks.flatMap((bank, left) => bank.sort(better).map((one, rank) => ({ ...one, rank, left })));
    // the best of each bank, then the second best of each, and so on
    const inTurn = ranked.sort((a, b) => a.rank - b.rank || a.left - b.left);
    const kept = inTurn.slice(0, width + this.size).sort(better);
    const complete = kept.findLast(({ left }) => !left);
    const least = complete && kept.length === width + this.size ? complete.score : NEVER;
    const most = mustEnd ? Math.min(...lacking) : 0;
    for (const [row, n] of lacking.entries()) if (n > most || ends[row] < least) ends[row] = NEVER;
    return kept;
  }
}
