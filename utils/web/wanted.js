// A search for translations that have some terms, here stand-ins: `Wanted` of utils/search/glossary.py, and how the rows
// of a beam are chosen then (`_Banks` in utils/search/beam.py), for one sentence. Each row is read anew in each step.
import { BOS, EOS, NEVER, largest } from "./search.js";
import { isGlued, sum } from "./text.js";

export class Wanted {
  /** `terms` as often as each is wanted, in tokens of a tokenizer. */
  constructor(terms, tokenizer) {
    const names = [...new Set(terms)];
    this.spellings = names.map((name) => {
      // otherwise behind a space than directly behind something else
      const [ids, bracket, behind] = [name, "(", `(${name}`].map((text) => tokenizer.encode(text));
      const rest = bracket.every((id, i) => id === behind[i]) ? behind.slice(bracket.length) : [];
      return rest.length && `${rest}` !== `${ids}` ? [ids, rest] : [ids];
    });
    this.lengths = this.spellings.map((of) => Math.min(...of.map((ids) => ids.length)));
    this.tokens = [...new Set(this.spellings.flat(2))];
    this.times = names.map((name) => terms.filter((term) => term === name).length);
    this.isGlued = (before, token) => isGlued(...tokenizer.tokens([before, token]));
    this.size = this.read([]).left;
  }

  /** Return how often a row lacks each term, and how many tokens are left of them: all but those of what is begun. */
  read(ids) {
    const [missing, begun] = [[], []];
    for (const [i, spellings] of this.spellings.entries()) {
      const ends = new Set();
      const places = (id) => ids.flatMap((other, at) => (other === id ? [at] : []));
      for (const [spelling, place] of spellings.flatMap((one) => places(one[0]).map((at) => [one, at]))) {
        const [said, end] = [ids.slice(place, place + spelling.length), place + spelling.length];
        if (said.some((id, n) => id !== spelling[n]) || this.isGlued(ids[place - 1] ?? BOS, ids[place])) continue;
        if (end >= ids.length) begun.push([i, this.lengths[i] - end + ids.length]);
        else if (!this.isGlued(ids[end - 1], ids[end])) ends.add(end);
      }
      missing.push(Math.max(0, this.times[i] - ends.size));
    }
    const furthest = Math.max(0, ...begun.map(([i, n]) => (missing[i] ? n : 0)));
    return { missing, left: sum(missing.map((n, i) => n * this.lengths[i])) - furthest };
  }

  /** Return the prefixes to keep, those that lack as many tokens competing; rule out of `ends` what may not end yet. */
  choose(total, ends, beam, width, mustEnd) {
    const [banks, vocab] = [[], total.length / beam.length];
    const lacking = beam.map(({ ids }, row) => {
      const own = total.subarray(row * vocab, (row + 1) * vocab);
      for (const token of new Set([...largest(own, width).map((one) => one.token), ...this.tokens])) {
        if (own[token] > NEVER) (banks[this.read([...ids, token]).left] ??= []).push({ score: own[token], row, token });
      }
      return sum(this.read([...ids, EOS]).missing);
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
