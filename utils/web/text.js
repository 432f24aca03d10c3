// What utils/text does for a translator: functions of the same names (in camelCase), arguments and answers, but for one
// text at a time; places are those of JavaScript's strings. RULES, patterns and tables, are Python's: `text_rules` in
// utils/export/web.py. Cells and sentences are { text, gap }, spans { begin, end, text, value, isHard } (value: null, or
// a number times UNIT as a BigInt), stand-ins { numbers, names }; what `masked` returns has its spans in a Map by their
// stand-ins, which `unmasked` takes; `shown` takes a Map.
export const UNKNOWN = 1; // the id of <unk>
export const R = JSON.parse(globalThis.RULES, (_, value) => (value?.pattern ? pattern(value.pattern) : value)); // by modules

function pattern(source) {
  const [begin, whole] = [`^(?:${source})`, `^(?:${source})$`].map((one) => new RegExp(one, "u"));
  const all = new RegExp(source, "gu");
  const [match, fits] = [(text) => begin.exec(text), (text) => whole.exec(text)];
  const [each, finds] = [(text) => [...text.matchAll(all)], (text) => text.search(all) >= 0];
  return { source, match, fits, each, finds, replace: (text, by) => text.replace(all, by) };
}

export const hasWords = (text) => R.language.WORD.finds(text);
export const isUnspaced = (code) => R.language.UNSPACED.includes(primaryLanguage(code));
export const hasCapitals = (code) => !(primaryLanguage(code) in R.language.SCRIPTS);
export const isGlued = (before, behind) => R.glossary.GLUED.fits(last(before) + [...behind][0]);

export function primaryLanguage(code) {
  const language = code.replaceAll("_", "-").split("-")[0].toLowerCase();
  return R.data.THREE_LETTERS[language] ?? language;
}

export const sum = (values, zero = 0) => values.reduce((a, b) => a + b, zero);
const size = (text) => [...text].length; // in characters, as Python counts
const last = (text) => [...text].at(-1) ?? "";
const least = (values, cost) => values.reduce((best, value) => (cost(value) < cost(best) ? value : best));
const lstrip = (text) => R.form.LEADING.replace(text, "");
const rstrip = (text) => R.form.TRAILING.replace(text, "");
const strip = (text) => lstrip(rstrip(text));

// Forms of characters.

export function knownCharacters(tokens) {
  const [known, wide] = [new Set([" ", ...tokens.join("")]), R.form.WIDE_DIGITS];
  if (!wide.every((digit) => known.has(digit))) wide.forEach((digit) => known.delete(digit));
  return known;
}

export function knownForm(text, known) {
  const plain = R.form.INVISIBLE.replace(text.normalize("NFC"), "");
  const found = [text, plain].find((form) => isKnown(form, known));
  if (found !== undefined) return found;
  const parts = R.form.PART.each(plain).map(([part]) => part);
  return parts.map((part, i) => read(part, last(parts[i - 1] ?? ""), parts[i + 1] ?? "", known)).join("");
}

const isKnown = (text, known) => [...text].every((character) => known.has(character));

function spellings(part) {
  const { READ_AS, BASE } = R.form;
  const plain = R.sentence.SPACE.replace(part.normalize("NFKC"), " ");
  const usual = [...plain].map((character) => READ_AS[character]?.[0] ?? character).join("");
  return READ_AS[part] ?? [plain, usual, BASE[part] ?? plain];
}

function read(part, before, behind, known) {
  if (known.has(part)) return part;
  const { NUMERIC, COMBINING, LATIN, RAISED, LOWERED } = R.form;
  const form = [part, ...spellings(part)].find((one) => isKnown(one, known)) ?? part;
  if (COMBINING.match(part) && LATIN.fits(before)) return "";
  if (form === part || /^\p{Nd}+$/u.test(part)) return form;
  const goesOn = NUMERIC.match(behind) && NUMERIC.fits(last(form));
  const isPower = before && !/\p{L}/u.test(before) && !R.sentence.SPACE.fits(before);
  let apart = (NUMERIC.fits(before) && NUMERIC.match(form)) || goesOn ? `(${form})` : form;
  if (RAISED.includes(part[0])) apart = (isPower ? "^" : "") + form + (goesOn ? " " : "");
  if (LOWERED.includes(part[0])) apart = (NUMERIC.fits(before) ? "_" : "") + form + (goesOn ? " " : "");
  return isKnown(apart, known) ? apart : part;
}

// Cells of a line.

export function splitCells(text) {
  const { LINE, ROW, BORDER, BORDER_IN_ROW, MARKERS, TAIL, AROUND } = R.structure;
  const cells = [{ text: "", gap: "" }];
  for (const [line] of LINE.each(text)) {
    const borders = (ROW.fits(line) ? BORDER_IN_ROW : BORDER).each(line).filter((border) => border[1]);
    const ends = [...borders.flatMap(({ 0: border, index }) => [index, index + border.length]), line.length];
    for (const [i, end] of ends.entries()) {
      const part = line.slice(ends[i - 1] ?? 0, end);
      const rest = MARKERS.replace(part, "");
      const ofPart = /\p{L}/u.test(rest) ? TAIL.replace(rest, "") : "";
      const [, open = "", inside = ofPart, close = ""] = AROUND.fits(ofPart) ?? [];
      cells.at(-1).gap += ofPart ? part.slice(0, part.length - rest.length) + open : part;
      if (ofPart) cells.push({ text: inside, gap: close + rest.slice(ofPart.length) });
    }
  }
  return cells.filter((cell) => cell.text || cell.gap);
}

// Sentences.

export function splitSentences(text, whole = []) {
  const sentences = [];
  const ends = endsOf(text).filter((end) => !whole.some(([begin, after]) => begin < end && end < after));
  let begin = text.length - lstrip(text).length;
  for (const end of [...ends, text.length]) {
    const part = rstrip(text.slice(begin, end));
    if (!part) continue;
    const behind = begin + part.length;
    begin = text.length - lstrip(text.slice(behind)).length;
    sentences.push({ text: part, gap: text.slice(behind, begin) });
  }
  return sentences;
}

export function splitLong(sentence, fits) {
  const characters = [...sentence];
  const n = characters.length;
  if (n < 2 || fits(sentence)) return [sentence];
  const edge = Math.floor(n / 5); // nearer to it, a part would be too short to be understood
  const places = (of) => of.each(sentence).map(({ index }) => size(sentence.slice(0, index)) + 1);
  const inside = (of) => places(of).filter((place) => place > edge && place <= n - edge);
  const found = [R.sentence.COMMA, R.sentence.SPACE].map(inside).find((some) => some.length) ?? [Math.floor(n / 2)];
  const middle = least(found, (place) => Math.abs(2 * place - n));
  const halves = [characters.slice(0, middle), characters.slice(middle)].map((half) => strip(half.join("")));
  return halves.flatMap((half) => splitLong(half, fits));
}

function endsOf(text) {
  const [ends, closing] = [[], closings(text)];
  const places = (of) => new Map(of.each(text).map((match) => [match.index, match]));
  const [breaks, stops] = [places(R.sentence.BREAK), places(R.sentence.END)];
  for (let i = 0, begin = 0, after; i < text.length; i = after) {
    const [line, quoted, marks] = [breaks.get(i), closing.get(i), stops.get(i)];
    after = quoted ? quoted + 1 : i + (line ?? marks ?? " ")[0].length;
    // of brackets, only what they end with may end a sentence
    const isQuotation = quoted && R.sentence.STOP.finds(text.slice(i, quoted)) && isEndOfQuotation(text.slice(after));
    if (line || isQuotation || (marks && isEnd(marks[1], text.slice(begin, i), text.slice(after)))) {
      ends.push(line ? i : after);
      begin = after;
    }
  }
  return ends;
}

function closings(text) {
  const [closing, { BRACKETS }] = [new Map(), R.sentence];
  let [openAt, straight] = [[], -1];
  for (const [i, character] of text.split("").entries()) {
    const match = openAt.findLastIndex((place) => BRACKETS[text[place]] === character);
    if (/[\n\r]/.test(character)) [openAt, straight] = [[], -1];
    else if (character in BRACKETS) openAt.push(i);
    else if (character === '"') {
      if (straight >= 0) closing.set(straight, i);
      straight = straight < 0 ? i : -1;
    } else if (match >= 0) closing.set(openAt.splice(match)[0], i);
  }
  return closing;
}

const opens = (rest) => rest[0] in R.sentence.BRACKETS || rest[0] === '"';
const isSmall = (rest) => /^\p{Lowercase}/u.test(lstrip(rest));

function isEndOfQuotation(rest) {
  if (!rest || opens(rest)) return true;
  if (R.sentence.SPACE.match(rest)) return !isSmall(rest);
  return R.sentence.JAPANESE.match(rest) && !R.sentence.PARTICLE.match(rest);
}

function isEnd(marks, before, rest) {
  if (!rest || /[。｡]/.test(marks)) return true;
  if (R.sentence.SPACE.match(rest)) return !isSmall(rest) && !(/^[.．]$/.test(marks) && isAbbreviation(before, rest));
  return /[．！？.!?]/.test(marks) && /[^\0-\x7f]$/.test(before) && (opens(rest) || R.sentence.LETTER.match(rest));
}

function isAbbreviation(before, rest) {
  const { LONGEST, LAST_WORD, ORDINAL, ABBREVIATION } = R.sentence;
  const backwards = Array.from(before.slice(-2 * LONGEST)).reverse();
  const [found] = LAST_WORD.match(backwards.slice(0, LONGEST - 1).join(""));
  const word = [...found].reverse().join("");
  if (R.form.DIGITS.fits(word)) return word === strip(before) || ORDINAL.match(rest);
  return ABBREVIATION.match(`${word}\0${rest}`);
}

// Spans that a translation must keep.

const PLACES = 20; // behind the point of a number
const UNIT = 10n ** BigInt(PLACES);

function decimal(text) {
  const [whole, part = ""] = String(text).split(".");
  return BigInt(whole + part.padEnd(PLACES, "0").slice(0, PLACES));
}

function plainly(value) {
  const digits = String(value).padStart(PLACES + 1, "0");
  return `${digits.slice(0, -PLACES)}.${digits.slice(-PLACES)}`.replace(/\.?0*$/, "");
}

const spanOf = ({ 0: s, index: begin }) => ({ begin, end: begin + s.length, text: s, value: null, isHard: true });

export function spans(text, language, lenient = false) {
  const [{ ANY_VERBATIM, YEAR }, { ENGLISH, ANY_JAPANESE, JAPANESE }] = [R.protected, R.number];
  const found = ANY_VERBATIM.each(text).map(spanOf);
  const numbers = { en: ENGLISH, ja: lenient ? ANY_JAPANESE : JAPANESE }[primaryLanguage(language)];
  for (const number of (numbers?.each(text) ?? []).map(spanOf)) {
    if (found.some(({ begin, end }) => begin < number.end && number.begin < end)) continue;
    const value = valueOf(number.text);
    const isUsual = /^[A-Za-z]/.test(number.text) || R.form.DIGITS.fits(narrow(number.text));
    found.push({ ...number, value, isHard: value > decimal(YEAR) || !isUsual });
  }
  return found.toSorted((a, b) => a.begin - b.begin);
}

const narrow = (text) => text.replace(/[０-９．，]/g, (c) => String.fromCharCode(R.number.WIDE[c.charCodeAt(0)]));

function valueOf(text) {
  const { WORDS, UNITS, SCALES, SMALL } = R.number;
  let [total, units, said] = [0n, [], []]; // since the last scale, and since the last unit
  const all = (numbers, none) => (numbers.length ? sum(numbers, 0n) : none);
  for (const [word] of WORDS.each(narrow(text).replaceAll(",", "").toLowerCase())) {
    const [unit, scale] = [UNITS[word], SCALES[word]];
    if (scale) [total, units, said] = [total + all([...units, ...said], UNIT) * BigInt(scale), [], []];
    else if (unit) [units, said] = [[...units, all(said, UNIT) * BigInt(unit)], []];
    else said.push(decimal(SMALL[word] ?? (/^\d/.test(word) ? word : 0)));
  }
  return total + all([...units, ...said], 0n);
}

export function written(span, language) {
  const { HOUR_EN, HOUR_JA, SCALES } = R.number;
  const isJapanese = primaryLanguage(language) === "ja";
  if (span.value === null) {
    const [, ...hour] = (isJapanese ? HOUR_EN : HOUR_JA).match(span.text) ?? [];
    return hour.length ? (isJapanese ? hourInJapanese : hourInEnglish)(...hour) : span.text;
  }
  const [plain, number] = [narrow(span.text), plainly(span.value)];
  if (/^[\d.]+$/.test(plain)) return plain; // 0.00, too
  if (isJapanese && (number.includes(".") || number.length < 5)) return number;
  if (isJapanese) {
    const counts = [number.slice(0, -12), number.slice(-12, -8), number.slice(-8, -4), number.slice(-4)];
    return counts.map((count, i) => (Number(count) ? `${BigInt(count)}${"兆億万"[i] ?? ""}` : "")).join("");
  }
  for (const name of /[兆億万A-Za-z]/.test(plain) ? ["trillion", "billion", "million"] : []) {
    const [share, rest] = [span.value / BigInt(SCALES[name]), span.value % BigInt(SCALES[name])];
    const isShort = plainly(share).length <= 4 || !plainly(share).includes(".");
    if (share >= UNIT && !rest && isShort) return `${plainly(share)} ${name}`;
  }
  return number.replace(/^\d+/, (whole) => BigInt(whole).toLocaleString("en"));
}

const hourInJapanese = (hour, minute, half) =>
  `午${/[Aa]/.test(half) ? "前" : "後"}${Number(hour)}時` + (Number(minute ?? 0) ? `${Number(minute)}分` : "");
const hourInEnglish = (half, hour, minute) =>
  Number(hour) + (minute ? `:${minute.padStart(2, "0")}` : "") + (half === "午前" ? " a.m." : " p.m.");

/** Return a translation of a masked text with the spans as its language writes them. */
export function unmasked({ spans: of, head, tail }, translation, language) {
  const beside = (word) => (/^\d/.test(word) ? "[0-9]" : "[A-Za-z]"); // what makes it another word
  const words = [...of.keys()].map((word) => `(?<!${beside(word)})${word}(?!${beside(word)})`);
  if (!words.length) return head + translation + tail;
  const text = translation.replace(new RegExp(words.join("|"), "g"), (word) => written(of.get(word), language));
  return head + text.replace(/(?<=[ap]\.m\.)\./g, "") + tail;
}

export function masked(source, language, { numbers, names }, everything = false) {
  const text = R.protected.BOLD.replace(source, (whole, stars, inside) => inside || whole);
  const found = spans(text, language).filter((span) => span.isHard || (everything && isSure(span, text)));
  if (!found.length) return { text, spans: new Map(), head: "", tail: "" };
  let [begin, end] = [0, text.length];
  const isSign = (span, beside) => span && !R.protected.SHOWN.finds(span.text) && !strip(beside);
  while (isSign(found[0], text.slice(begin, found[0]?.begin))) begin = found.shift().end;
  while (isSign(found.at(-1), text.slice(found.at(-1)?.end, end))) end = found.pop().begin;
  const inner = strip(text.slice(begin, end));
  begin = text.indexOf(inner, begin);
  end = begin + inner.length;
  const [freeNumbers, freeNames] = [numbers, names].map((words) => words.filter((word) => !text.includes(word)));
  const [placed, parts] = [new Map(), []];
  let place = begin;
  for (const span of found) {
    const isName = span.value === null && !R.protected.NUMBER_MARKS.includes(span.text);
    const word = (isName ? freeNames : freeNumbers).shift();
    if (!word) continue;
    placed.set(word, span);
    parts.push(text.slice(place, span.begin), word);
    place = span.end;
  }
  const [letters, whole] = [
    [...placed.keys()].join("").replace(/[^A-Z]/g, ""),
    parts.join("") + text.slice(place, end),
  ];
  const glued = new RegExp(`(?<=[A-Za-z])(?=[${letters}])|(?<=[${letters}])(?=[A-Za-z])`, "g");
  return { text: whole.replace(glued, " "), spans: placed, head: text.slice(0, begin), tail: text.slice(end) };
}

function isSure({ value, end }, text) {
  if (value === null || (value < decimal(R.protected.SURE) && !/[%％]/.test(text[end] ?? ""))) return false;
  return !R.protected.ERA.each(text).some((era) => era.index + era[0].length === end);
}

export function lost(text, translation, [source, target]) {
  const kept = spans(text, source).filter((span) => span.isHard || isSure(span, text));
  const values = new Set(kept.length ? spans(translation, target, true).map((span) => span.value) : []);
  const isThere = (span) => translation.includes(written(span, target).replace(/\.+$/, ""));
  const bold = R.protected.BOLD.each(text).filter(([, stars]) => stars);
  const gone = kept.filter((span) => !((span.value !== null && values.has(span.value)) || isThere(span)));
  return [...bold.map((match) => ({ ...spanOf(match), isHard: false })), ...gone];
}

export function shown(tokens, words) {
  const of = [...tokens];
  for (let begin = 0; words.size && begin < of.length; begin++) {
    for (let end = begin + 1; end <= Math.min(begin + 4, of.length); end++) {
      const text = words.get(tokens.slice(begin, end).join("").replace(/^▁+/, ""));
      if (text) of.splice(begin, end - begin, text, ...Array(end - begin - 1).fill(""));
    }
  }
  return of;
}

// The language of a text.

/** Return the likeliest of some languages; undefined if none fits the letters. */
export function detect(text, languages) {
  const { ANY_LETTER, ADDRESS, MARKUP, MOSTLY, UNSPACED, LETTERS, OTHER, SCRIPTS_OF } = R.language;
  const bare = ADDRESS.replace(MARKUP.replace(text, " "), " ");
  const plain = ANY_LETTER.finds(bare) ? bare : text;
  const letters = ANY_LETTER.each(plain).join("");
  const n = size(letters);
  if (!n) return languages[0];
  const counts = Object.fromEntries(Object.entries(LETTERS).map(([script, of]) => [script, of.each(letters).length]));
  counts[OTHER] = n + counts.zh - sum(Object.values(counts));
  const unspaced = unspacedLanguage(plain, n, counts);
  const ofIts = languages.filter((code) => primaryLanguage(code) === unspaced);
  if (unspaced) return ofIts[0] ?? languages.find(isUnspaced);
  const scripts = Object.keys(counts).filter((script) => counts[script] > MOSTLY * n && !UNSPACED.includes(script));
  const has = (code) => SCRIPTS_OF[primaryLanguage(code)] ?? SCRIPTS_OF[""];
  return languages.find((code) => !isUnspaced(code) && scripts.every((script) => has(code).includes(script)));
}

function unspacedLanguage(plain, n, { ja, zh }) {
  const { MOSTLY, MIN_KANA, LETTERS_AS_ONE, WORDS_PER_JOINT, LATIN_WORD, JAPANESE_END, JOINT } = R.language;
  const isMuch = ja - zh > MIN_KANA * n;
  if (ja > MOSTLY * n) return isMuch ? "ja" : "zh";
  const isAtEnd = isMuch && (LETTERS_AS_ONE * ja > n - ja || JAPANESE_END.finds(plain));
  const isJoined = JOINT.each(plain).length * WORDS_PER_JOINT > LATIN_WORD.each(plain).length;
  return ja > zh && (isAtEnd || isJoined) ? "ja" : "";
}

// Sentences in capitals.

const isUpper = (text) => /\p{Uppercase}/u.test(text) && !/[\p{Lowercase}\p{Lt}]/u.test(text);

export function isInCapitals(text) {
  const { SUSPECT, LETTERS, WORDS, LONG, LONG_WORDS } = R.capitals;
  if (!SUSPECT.finds(text)) return false;
  const words = LETTERS.each(text).map(([word]) => word);
  const count = (n) => words.filter((word) => size(word) >= n).length;
  return (count(2) >= WORDS || count(LONG) >= LONG_WORDS) && [...words.join("")].every(isUpper);
}

export function usualCase(text, encode) {
  const cost = (form) => {
    const ids = encode(form);
    const n = ids.filter((id) => id === UNKNOWN).length;
    return 2e6 * n + (n && !isUpper(form) ? 1e6 : 0) + ids.length; // by the first of these, then the second, the third
  };
  const usual = (word) => {
    const [small, [first]] = [word.toLowerCase(), word];
    return isUpper(word) ? least([small, first + small.slice(first.toLowerCase().length), word], cost) : word;
  };
  return R.capitals.FIRST.replace(R.capitals.WORD.replace(text, usual), (first) => first.toUpperCase());
}

export const withoutEmphasis = (text, encode) =>
  R.capitals.EMPHASIS.replace(text, (word, ...rest) => {
    const small = rest.at(-2) ? word.toLowerCase() : word[0] + word.slice(1).toLowerCase();
    return 2 * encode(small).length < encode(word).length ? small : word;
  });

// Loops.

const times = ([whole, part]) => whole.length / part.length;
const rows = (text, extra) =>
  R.loop.REPEATED.each(text).filter(([whole, part]) => size(whole) - size(part) >= extra && !R.loop.ZEROS.fits(part));
export const repetitions = (text, extra = 1) => Math.max(1, ...rows(text, extra).map(times));
export const isLoop = (text, source) => repetitions(text, R.loop.EXTRA) > Math.max(R.loop.OFTEN, repetitions(source));

export function endOfFirst(text, source) {
  const n = repetitions(source);
  const row = rows(text, R.loop.EXTRA).find((one) => times(one) > Math.max(R.loop.OFTEN, n));
  return row ? row.index + row[1].length * n : null;
}
