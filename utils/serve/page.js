import { ask, isOffline } from "../ask.js";
import { at, draw, make } from "../elements.js";

const WORDS = {
  en: {
    motto: "A Transformer, written from scratch, translates as you type.",
    speech: "日本語", direction: "Direction", run: "Run", beam: "Beam", tag: "Kind of text", none: "None", swap: "Translate the other way round",
    detect: "Detect language", any: "Best for the text", own: "As trained", greedy: "1 (greedy)",
    clear: "Clear", copy: "Copy", copied: "Copied", source: "Text", target: "Translation",
    placeholder: "Type or paste a text …", tries: "For example",
    attention: "Where the model looked", from: "Tokens of the text", into: "Tokens of the translation",
    hint: "Point at a word, tap it, or move with the arrow keys: the threads show what it was translated from, and how much of its attention went there.",
    nothing: "It looked at nothing in particular.", others: "Other ways to say it",
    score: "The number says how likely the model finds a sentence (a log-probability, adjusted for length): nearer to 0 is likelier.",
    detected: name => `${name} (detected)`,
    api: "For programs", shape: "POST /translate is compatible with LibreTranslate.",
    tooLong: (n, max) => `${n} characters exceed the limit of ${max}: please shorten the text.`,
    tooMany: (n, max) => `${n} lines exceed the limit of ${max}: please send them in parts.`,
    silent: "The server does not answer. Trying again in a moment …",
    busy: "The server is busy. Trying again in a moment …",
    slow: "The translation took too long: please shorten the text, or choose a smaller beam.",
    failed: "Something went wrong on the server; see its log.",
    broken: what => `The model cannot be used (${what}): load the page again, or copy its files again.`,
    loading: share => `Loading the model: ${share} %`, inside: "Look inside the model",
    unknown: () => "A sentence of unknown characters only is left unchanged.",
    unknown_tokens: tokens => `The model does not know: ${tokens}`,
    other_language: () => "The text does not seem to be in the language that was chosen.",
    wordless: what => `Not translated: ${what}`,
    dropped: what => `The translation does not have ${what}`,
    far: () => "The model is unsure: this is far from what it has learned from.",
    loop: () => "The model repeated itself again and again, and was stopped.",
    seconds: s => s < 1 ? `${Math.round(s * 1000)} ms` : `${s.toFixed(1)} s`,
  },
  ja: {
    motto: "一から書いた Transformer が、入力に合わせて訳します。",
    speech: "English", direction: "翻訳の向き", run: "モデル", beam: "ビーム幅", tag: "文の種類", none: "指定なし", swap: "向きを入れ替える",
    detect: "言語を検出", any: "おまかせ", own: "学習時のまま", greedy: "1（貪欲法）",
    clear: "消去", copy: "コピー", copied: "コピーしました", source: "原文", target: "訳文",
    placeholder: "文を入力してください…", tries: "例えば",
    attention: "モデルの視線（アテンション）", from: "原文のトークン", into: "訳文のトークン",
    hint: "語を指すか、触れるか、矢印キーで選ぶと、どの語から訳されたかを線で結び、アテンションの何割がそこに向いたかを示します。",
    nothing: "特に見ていた語はありません。", others: "ほかの訳し方",
    score: "数字は、モデルから見た文のもっともらしさです（長さで調整した対数確率）。0 に近いほど、もっともらしい訳です。",
    detected: name => `${name}（検出）`,
    api: "プログラムから使う", shape: "POST /translate は LibreTranslate と同じ形式です。",
    tooLong: (n, max) => `${n} 文字あります。一度に訳せるのは ${max} 文字までです。短くしてください。`,
    tooMany: (n, max) => `${n} 行あります。一度に訳せるのは ${max} 行までです。分けてください。`,
    silent: "サーバーから応答がありません。少し待ってもう一度たずねます…",
    busy: "サーバーが混み合っています。少し待ってもう一度たずねます…",
    slow: "翻訳に時間がかかりすぎました。文を短くするか、ビーム幅を狭めてください。",
    failed: "サーバーで問題が起きました。詳しくはサーバーのログをご覧ください。",
    broken: what => `モデルを使えません（${what}）。ページを読み込み直すか、ファイルをもう一度コピーしてください。`,
    loading: share => `モデルを読み込んでいます：${share} %`, inside: "モデルの中を見る",
    unknown: () => "モデルの知らない文字ばかりの文は、そのまま返します。",
    unknown_tokens: tokens => `モデルの知らない文字があります：${tokens}`,
    other_language: () => "選ばれた言語の文ではないようです。",
    wordless: what => `訳せませんでした：${what}`,
    dropped: what => `訳文に入っていません：${what}`,
    far: () => "学習した文とかけ離れているため、訳に自信がありません。",
    loop: () => "モデルが同じことばを繰り返したので、途中で止めました。",
    seconds: s => s < 1 ? `${Math.round(s * 1000)} ミリ秒` : `${s.toFixed(1)} 秒`,
  },
};
const PAUSE = 300;  // ms without a keystroke before a translation is requested
const AGAIN = 2000;  // ms before a server that did not answer is asked again
const N_BEST = 4;
const FAINT = 0.06;  // lighter threads are not drawn

const text = at("text");
let speech = (navigator.language || "en").toLowerCase().startsWith("ja") ? "ja" : "en";
let served = { runs: [], max_chars: Infinity, max_beam: 16 };
let asked = 0;  // number of the latest request: older answers are not shown
let asking = new AbortController();
let timer = 0;
let shown = null;  // the answer on the page
let trouble = null;  // function that returns the error message in the current language
let picked = [];  // index of the chosen candidate of each sentence
const preferred = new Map();  // the candidate that was chosen for a sentence: an edit elsewhere keeps it
let current = 0;  // number of the sentence whose attention and candidates are shown
let pinned = null;  // the token that stays chosen while the pointer is elsewhere
let pointed = null;  // the token whose threads are shown

const words = () => WORDS[speech];

function languageName(code) {
  try {
    return new Intl.DisplayNames([speech], { type: "language" }).of(code);
  } catch {
    return code;
  }
}

// ---- choosing --------------------------------------------------------------------------------------------------

const directionOf = run => `${run.source}→${run.target}`;
const directionName = run => `${languageName(run.source)} → ${languageName(run.target)}`;
const runsOfDirection = () => served.runs.filter(run => ["", directionOf(run)].includes(at("direction").value));

function fill(select, options, value) {
  select.replaceChildren(...options.map(([option, label]) => make("option", { value: option, textContent: label })));
  select.value = options.some(([option]) => option === value) ? value : options[0][0];
}

function fillChoices() {
  if (!served.runs.length) return;
  const directions = new Map(served.runs.map(run => [directionOf(run), directionName(run)]));
  fill(at("direction"), [...(directions.size > 1 ? [["", words().detect]] : []), ...directions], at("direction").value);
  const runs = runsOfDirection();
  fill(at("run"), [["", words().any], ...runs.map(run => [run.name, directions.size > 1 ? `${run.name} (${directionName(run)})` : run.name])], at("run").value);
  const beams = [1, 2, 4, 8, 16].filter(beam => beam <= served.max_beam);
  fill(at("beam"), [["", words().own], ...beams.map(beam => [`${beam}`, beam === 1 ? words().greedy : `${beam}`])], at("beam").value);
  fillTags();
  at("swap").disabled = !wayBack();
}

/** The kinds of text that the run has tags for; none while the language is to be detected, and with it the run. */
function fillTags() {
  const run = served.runs.find(({ name }) => name === at("run").value) || (at("direction").value && present());
  const choices = run && run.tags.length ? [["-", words().none], ...run.tags.map(tag => [tag, tag])] : [];
  fill(at("tag"), [["", words().own], ...choices], at("tag").value);
  at("tag").parentElement.hidden = !choices.length;
}

/** The run whose direction is chosen, or was detected last. */
function present() {
  const direction = at("direction").value;
  if (direction) return served.runs.find(run => directionOf(run) === direction);
  return (shown && served.runs.find(run => run.name === shown.run)) || served.runs[0];
}

function wayBack() {
  const there = present();
  return there && served.runs.find(run => run.source === there.target && run.target === there.source);
}

function nameSides() {
  const direction = at("direction").value, run = direction || shown ? present() : null;
  const name = run ? languageName(run.source) : words().source;
  at("source-name").textContent = run && !direction && at("direction").length > 1 ? words().detected(name) : name;
  at("target-name").textContent = run ? languageName(run.target) : words().target;
  text.lang = run ? run.source : "";
  at("translation").lang = run ? run.target : "";
}

function showTries() {
  const runs = new Map(runsOfDirection().map(run => [run.source, run]));
  const sentences = [...runs.values()].flatMap(run => run.examples.slice(0, runs.size > 1 ? 2 : 3).map(said => [run.source, said]));
  at("tries").hidden = !sentences.length || text.value.trim() !== "";
  at("tries").replaceChildren(
    make("span", { textContent: words().tries }),
    ...sentences.map(([lang, said]) => make("button", { type: "button", lang, textContent: said, onclick: () => { text.value = said; text.focus(); begin(0); } })),
  );
}

// ---- asking ----------------------------------------------------------------------------------------------------

/** Request a translation once nothing has happened for some milliseconds. */
function begin(pause = PAUSE) {
  clearTimeout(timer);
  asking.abort();
  asked += 1;
  grow();
  showTries();
  const n = [...text.value.replaceAll("\n", "")].length;  // as the server counts
  at("count").textContent = text.value ? `${n.toLocaleString(speech)} / ${served.max_chars.toLocaleString(speech)}` : "";
  at("clear").hidden = !text.value;
  if (!text.value.trim()) {
    forget();
    return;
  }
  at("translation").classList.toggle("stale", shown !== null);
  const lines = text.value.split("\n").length;
  for (const [count, max, word] of [[n, served.max_chars, "tooLong"], [lines, served.max_texts, "tooMany"]]) {
    if (count > max) {
      at("answer").classList.remove("working");
      complain(() => words()[word](count.toLocaleString(speech), max.toLocaleString(speech)));
      return;
    }
  }
  timer = setTimeout(translate, pause, asked);
}

async function translate(number) {
  const beam = at("beam").value ? Number(at("beam").value) : null, tag = at("tag").value;
  const [source, target] = (at("direction").value || "auto→auto").split("→");
  const question = { text: text.value, run: at("run").value || null, source, target, beam, n_best: Math.min(N_BEST, beam || N_BEST), attention: true, tag: tag === "-" ? "" : tag || null,
    api_key: new URLSearchParams(location.hash.slice(1)).get("api_key") };  // of /#api_key=KEY, which is not sent before
  asking = new AbortController();
  at("answer").classList.add("working");
  let answer, status = 0, wait = AGAIN;
  try {
    ({ answer, status, wait } = await ask("api/translate", question, asking.signal));
  } catch (error) {
    if (error.name === "AbortError") return;
  }
  if (number !== asked) return;
  if (status === 0 || status === 429 || status === 503) {
    complain(() => status ? words().busy : words().silent);
    timer = setTimeout(translate, wait || AGAIN, number);
    return;
  }
  at("answer").classList.remove("working");
  if (status === 200) show(answer);
  else complain(() => status === 504 ? words().slow : status < 500 && answer ? answer.error : isOffline ? words().broken(answer.error) : words().failed);
}

function complain(message) {
  trouble = message;
  const said = trouble ? trouble() : "";
  if (at("trouble").textContent !== said) at("trouble").textContent = said;
}

// ---- showing ---------------------------------------------------------------------------------------------------

function forget() {
  shown = null;
  at("answer").classList.remove("working");
  at("translation").classList.remove("stale");
  at("translation").replaceChildren();
  at("time").textContent = "";
  at("copy").hidden = true;
  complain(null);
  nameSides();
  showSentence();
  fillChoices();
}

function show(answer) {
  shown = answer;
  picked = answer.sentences.map(({ source, candidates }) => Math.max(0, candidates.findIndex(other => other.text === preferred.get(source))));
  at("translation").classList.remove("stale");
  const said = Object.entries(answer.remarks);
  if (!answer.remarks.unknown && answer.sentences.some(sentence => !sentence.known)) said.push(["unknown", true]);
  const remarks = () => said.map(([name, remark]) => words()[name]([].concat(remark).join(" "))).join(" ");
  complain(said.length ? remarks : null);
  at("time").textContent = `${words().seconds(answer.seconds)} · ${answer.run}`;
  at("copy").hidden = false;
  if (at("explain")) at("explain").href = `explain.html#${new URLSearchParams({ q: text.value, run: answer.run })}`;
  nameSides();
  at("swap").disabled = !wayBack();
  current = presentSentence();
  showSentence();
}

const candidate = i => shown.sentences[i].candidates[Math.min(picked[i], shown.sentences[i].candidates.length - 1)];
const translation = () => shown ? shown.sentences.map(({ gap }, i) => candidate(i).text + gap).join("") : "";

/** Show the sentences; of several, the one that attention and candidates belong to is marked, and a click chooses. */
function showTranslation() {
  at("translation").replaceChildren(...shown.sentences.flatMap(({ source, gap }, i) => {
    const span = make("span", { textContent: candidate(i).text });
    span.classList.toggle("current", i === current && shown.sentences.filter(other => other.source).length > 1);
    span.onclick = () => { if (source) { current = i; showSentence(); } };
    return [span, gap];
  }));
}

/** The sentence that the caret is in, or the last one before it. */
function presentSentence() {
  let start = 0, last = null;
  shown.sentences.forEach(({ source }, i) => {
    start = Math.max(start, text.value.toLowerCase().indexOf(source.toLowerCase(), start));
    if (source && (last === null || start <= text.selectionStart)) last = i;
    start += source.length;
  });
  return last ?? 0;
}

function showSentence() {
  pinned = null;
  const sentence = shown && shown.sentences[current];
  if (shown) showTranslation();
  const others = sentence ? sentence.candidates : [];
  at("choice").hidden = others.length < 2;
  at("others").replaceChildren(...others.map((other, i) => {
    const button = make("button", { type: "button", ariaPressed: `${i === picked[current]}` },
      make("span", { className: "said", lang: shown.target, textContent: other.text }),
      make("span", { className: "score", textContent: other.score.toFixed(2).replace("-", "−") }));
    button.onclick = () => {
      picked[current] = i;
      preferred.set(sentence.source, other.text);
      showSentence();
      at("others").querySelectorAll("button")[i].focus();
    };
    return make("li", {}, button);
  }));
  const weights = sentence && sentence.source_tokens.length ? candidate(current).attention : null;
  at("attention").hidden = !weights || !weights.length;
  if (at("attention").hidden) return;
  showTokens(at("from"), sentence.source_tokens, shown.source);
  for (const i of sentence.unknown) buttonsOf(at("from"))[i].classList.add("unread");
  showTokens(at("into"), candidate(current).tokens, shown.target);
  point(null);
}

function showTokens(row, tokens, lang) {
  const hasWords = tokens.filter(token => token.startsWith("▁")).length > 1;  // the pieces of a word stand together
  const shapes = tokens.map((token, i) => {
    const isEnd = row.id === "from" && i === tokens.length - 1;
    const isJoined = hasWords && i > 0 && !isEnd && !token.startsWith("▁") && /^[\p{L}\p{M}\p{N}'’-]/u.test(token);
    const said = token.replace(/^▁(?=.)/, "");
    return make("button", { type: "button", lang: isEnd ? "en" : lang, tabIndex: i ? -1 : 0, className: isEnd ? "end" : isJoined ? "joined" : "", textContent: said });
  });
  const wholeWords = [];  // no line ends within a word
  for (const shape of shapes) {
    if (!shape.classList.contains("joined") || !wholeWords.length) wholeWords.push(make("span"));
    wholeWords.at(-1).append(shape);
  }
  row.replaceChildren(...wholeWords);
}

// ---- attention -------------------------------------------------------------------------------------------------

/** Weights between a token and the tokens of the other row. */
function weightsOf({ row, i }) {
  const weights = candidate(current).attention;
  return row === "into" ? weights[i] : weights.map(shares => shares[i]);
}

/** Show where a token looks, or which tokens look at it; without a token, all threads. */
function point(token) {
  if (at("attention").hidden) return; // the text under the pointer is gone
  pointed = token;
  const rows = { from: buttonsOf(at("from")), into: buttonsOf(at("into")) };
  for (const button of [...rows.from, ...rows.into]) {
    button.classList.remove("chosen");
    button.style.removeProperty("--weight");
  }
  if (token) {
    const other = rows[token.row === "from" ? "into" : "from"];
    rows[token.row][token.i].classList.add("chosen");
    weightsOf(token).forEach((weight, i) => other[i].style.setProperty("--weight", weight));
  }
  at("telling").textContent = token ? telling(token, rows) : words().hint;
  weave(token, rows);
}

function telling(token, rows) {
  const other = rows[token.row === "from" ? "into" : "from"];
  const strongest = weightsOf(token).map((weight, i) => [weight, other[i].textContent]).filter(([weight]) => weight >= FAINT);
  strongest.sort(([a], [b]) => b - a);
  const said = strongest.slice(0, 4).map(([weight, source]) => `${source} ${Math.round(100 * weight)} %`).join(" · ");
  return `${rows[token.row][token.i].textContent}  ${token.row === "from" ? "→" : "←"}  ${said || words().nothing}`;
}

/** Threads from the lower edge of source tokens to the upper edge of target tokens. */
function weave(token, rows) {
  const frame = at("woven").getBoundingClientRect();
  const from = rows.from.map(button => button.getBoundingClientRect());
  const into = rows.into.map(button => button.getBoundingClientRect());
  const threads = [];
  candidate(current).attention.forEach((weights, t) => weights.forEach((weight, s) => {
    const meant = token && (token.row === "into" ? token.i === t : token.i === s);
    if (weight < FAINT || (!meant && s === weights.length - 1)) return;
    const [x1, y1] = [from[s].left + from[s].width / 2 - frame.left, from[s].bottom - frame.top];
    const [x2, y2] = [into[t].left + into[t].width / 2 - frame.left, into[t].top - frame.top];
    threads.push(draw("path", {
      d: `M${x1} ${y1}C${x1} ${(y1 + y2) / 2} ${x2} ${(y1 + y2) / 2} ${x2} ${y2}`,
      "stroke-width": 0.8 + 3.2 * weight,
      opacity: (token ? (meant ? 1 : 0.08) : 0.75) * Math.min(1, 0.2 + weight),
    }));
  }));
  at("woven").querySelector("svg").replaceChildren(...threads);
}

const buttonsOf = row => [...row.querySelectorAll("button")];
const tokenOf = button => ({ row: button.closest(".tokens").id, i: buttonsOf(button.closest(".tokens")).indexOf(button) });

for (const row of [at("from"), at("into")]) {
  row.addEventListener("pointerover", event => event.pointerType !== "touch" && event.target.matches("button") && point(tokenOf(event.target)));
  row.addEventListener("pointerleave", () => point(pinned));
  row.addEventListener("focusin", event => {
    pinned = tokenOf(event.target);
    for (const button of buttonsOf(row)) button.tabIndex = button === event.target ? 0 : -1;
    point(pinned);
  });
  row.addEventListener("focusout", () => { pinned = null; point(null); });
  row.addEventListener("click", event => event.target.matches("button") && event.target.focus());
  row.addEventListener("keydown", event => {
    const { row: name, i } = tokenOf(event.target);
    const own = buttonsOf(row), across = buttonsOf(name === "from" ? at("into") : at("from"));
    const weights = weightsOf({ row: name, i });
    const next = {
      ArrowLeft: own[i - 1], ArrowRight: own[i + 1], Home: own[0], End: own.at(-1),
      [name === "from" ? "ArrowDown" : "ArrowUp"]: across[weights.indexOf(Math.max(...weights))],
      Escape: text,
    }[event.key];
    if (!next) return;
    event.preventDefault();
    next.focus();
  });
}
new ResizeObserver(() => point(pointed)).observe(at("woven"));

// ---- the rest --------------------------------------------------------------------------------------------------

function grow() {
  text.style.height = "auto";
  text.style.height = `${text.scrollHeight}px`;
}
addEventListener("resize", grow);

function speak() {
  document.documentElement.lang = speech;
  for (const element of document.querySelectorAll("[data-word]")) element.textContent = words()[element.dataset.word];
  for (const element of document.querySelectorAll("[data-label]")) {
    element.ariaLabel = words()[element.dataset.label];
    element.title = element.id === "swap" ? words().swap : "";
  }
  at("speech").textContent = words().speech;
  at("speech").lang = speech === "ja" ? "en" : "ja";
  text.placeholder = words().placeholder;
  at("curl").textContent = `curl ${new URL("translate", location)} -d q=駅はどこですか。 -d source=auto -d target=auto -d alternatives=2`;
  fillChoices();
  nameSides();
  showTries();
  complain(trouble);
  if (shown) {
    at("time").textContent = `${words().seconds(shown.seconds)} · ${shown.run}`;
    showSentence();
  }
}

text.addEventListener("input", event => event.isComposing || begin());
text.addEventListener("compositionend", () => begin());
document.addEventListener("selectionchange", () => {
  if (!shown || document.activeElement !== text || at("translation").classList.contains("stale")) return;
  if (presentSentence() === current) return;
  current = presentSentence();
  showSentence();
});
function turn() {
  at("run").value = "";
  fillChoices();
  nameSides();
  begin(0);
}
at("direction").onchange = turn;
at("run").onchange = () => { fillTags(); begin(0); };
at("beam").onchange = at("tag").onchange = () => begin(0);
at("swap").onclick = () => {
  const back = wayBack();
  if (shown) text.value = translation();
  at("direction").value = directionOf(back);
  turn();
};
at("clear").onclick = () => { text.value = ""; begin(0); text.focus(); };
at("copy").onclick = async () => {
  try {
    await navigator.clipboard.writeText(translation());
  } catch {  // without https, only localhost may write to the clipboard
    getSelection().selectAllChildren(at("translation"));
    return;
  }
  at("copy").textContent = words().copied;
  setTimeout(() => { at("copy").textContent = words().copy; }, 1500);
};
at("speech").onclick = () => {
  speech = speech === "ja" ? "en" : "ja";
  try {
    localStorage.setItem("speech", speech);
  } catch { /* the browser stores nothing */ }
  speak();
};

async function enter() {
  const { status, answer } = await ask("api/runs").catch(() => ({ status: 0 }));
  if (status !== 200) {
    complain(() => isOffline ? words().broken(answer.error) : words().silent);
    setTimeout(enter, AGAIN);
    return;
  }
  served = answer;
  complain(null);
  text.value ||= new URL(location).searchParams.get("q") || "";  // a link to a translation: /?q=TEXT
  speak();
  if (text.value.trim()) begin(0);
}

addEventListener("loading", ({ detail: share }) => {
  at("time").textContent = share < 1 ? words().loading(Math.floor(100 * share)) : "";
});
at("programs").hidden = isOffline;
try {
  speech = WORDS[localStorage.getItem("speech")] ? localStorage.getItem("speech") : speech;
} catch { /* the browser stores nothing */ }
speak();
enter();
