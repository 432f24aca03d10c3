import { ask } from "../ask.js";
import { at, make } from "../elements.js";
import { showBeam } from "../visualize/beam.js";
import { arrows, button, drawAnew, fill, fixed, heatmap, inJapanese, paint, percent } from "../visualize/page.js";
import { plain, plot, radios, say, showGuesses, speak, tell, withNewWords } from "../visualize/page.js";

const WORDS = `
title | Inside the translator, live | 翻訳モデルの中を見る
now | Now | いま
before | Before | もと
tokens | Tokens | トークン
guesses | Guesses | 各層の予測
beam | Beam | ビーム
length_penalty | Length penalty α | 長さペナルティー α
checkpoint | Training | 学習の段階
attention | Attention | アテンション
force | forces it | 強制
forbid | forbids it | 禁止
reset | Take everything back | すべて元に戻す
take_back | Take back: $1 | 取り消す：$1
loading | Loading the model … | モデルを読み込んでいます…
scored | score $1 · $2 s | スコア $1 · $2 秒
muted | $1, layer $2, head $3 muted | $1、第$2層、ヘッド$3を停止
hidden | “$2” hidden | 「$2」を隠す
forced | begins with “$1” | 「$1」で始める
forbidden | no “$3” as token $1 | $1番目の「$3」を禁止
nth_head | head $1 | ヘッド$1
mute | Mute this head | このヘッドを止める
unmute | Let this head speak | このヘッドを戻す
moved | its weights moved by $1 | 重みの変化 $1
was | before: $1 | もと：$1
sure | probability $1 | 確率 $1
number | number $1 | 番号$1
no_end | The end cannot be forced: forbid it, and the translation goes on. | 文末は強制できません。禁止すると、訳が続きます。
of_tokens | What the decoder says, and how surely. Framed: other than before. Delete forbids a token. | デコーダーの訳語と、その確率。枠はもとと違うところ。Deleteで禁止。
of_attention | Layers are rows, heads columns: point at one to see it, click it or press Enter to mute it. Bars: how much its weights moved. | 行が層、列がヘッド。指すと図が現れ、クリックかEnterで止められます。棒は重みの変化。
of_guesses | What each layer would say by itself (the logit lens). Bold: what was written; framed: other than before. Delete forbids a token. | 各層がそこで終わっていたら何を予測するか（ロジットレンズ）。太字は実際の訳語、枠はもとと違うところ。Deleteで禁止。
`;
const filled = (text) => (text.includes("$") ? (...parts) => text.replace(/\$(\d)/g, (_, i) => parts[i - 1]) : text);
const rows = WORDS.match(/.+/g).map((line) => line.split(" | "));
const wordsIn = (column) => Object.fromEntries(rows.map((row) => [row[0], filled(row[column])]));
speak(wordsIn(1), wordsIn(2));

const [PAUSE_MS, END, KINDS] = [100, "</s>", ["encoder", "decoder", "cross"]];
const address = new URLSearchParams(location.hash.slice(1));
const state = { show: address.get("show"), kind: address.get("kind"), layer: -1, head: 0, does: "force" };
// changes of what the run does by itself, and of what is asked for, each [what, ...]
let [runs, changes, asking, timer, before, now, known] = [[], [], new AbortController()];

const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);
const without = (item) => changes.filter((other) => !same(other, item));
const has = (item) => changes.some((other) => same(other, item));
const of = (what) => changes.filter(([name]) => name === what).map(([, ...rest]) => rest);
const others = (what) => changes.filter(([name]) => name !== what);
const spell = (tokens) => tokens.join("").replaceAll("▁", " ").trim();
const run = () => runs.find(({ name }) => name === at("run").value);
const head = (layer, i) => ["muted", state.kind, layer, i];

/** Write into the address what is shown, so that a link leads here. */
function writeAddress() {
  const fields = { q: at("text").value, show: state.show, kind: state.kind, run: at("run").value };
  if (changes.length) fields.with = JSON.stringify(changes);
  const link = (lang) => `#${new URLSearchParams(lang ? { ...fields, lang } : fields)}`;
  history.replaceState(null, "", link(address.get("lang")));
  at("language").href = link(inJapanese ? "en" : "ja");
}

async function answerTo(body) {
  const { status, answer } = await ask("explain", body, asking.signal);
  if (status !== 200) throw new Error(answer.error);
  return answer;
}

/** Return the question about a text with the changes; heads are those of an answer. */
function changed(base, { attention }) {
  const factors = (kind) => attention[kind].map((heads, i) => heads.map((_, j) => +!has(["muted", kind, i, j])));
  const settings = ["beam", "length_penalty", "checkpoint"].flatMap((name) => of(name).map(([value]) => [name, value]));
  return {
    ...base,
    ...Object.fromEntries(settings),
    heads: { encoder: factors("encoder"), self: factors("decoder"), cross: factors("cross") },
    hidden: of("hidden").map(([place]) => place),
    prefix: of("forced").flatMap(([, ids]) => ids),
    forbidden: of("forbidden").map(([place, id]) => [place - 1, id]),
  };
}

/** Ask what the network does now and, unless it is known, what it does without the changes; the last question counts. */
async function question() {
  const base = { text: at("text").value.trim(), run: at("run").value };
  asking.abort();
  const { signal } = (asking = new AbortController());
  writeAddress();
  at("tries").hidden = base.text !== "";
  document.body.classList.toggle("working", base.text !== "");
  if (!base.text) return;
  try {
    const first = same(known, base) ? before : await answerTo(base);
    const second = changes.length ? await answerTo(changed(base, first)) : first;
    if (signal.aborted) return;
    [before, now, known] = [first, second, base];
    at("trouble").textContent = "";
    showAll();
  } catch (error) {
    if (signal.aborted) return;
    at("trouble").textContent = error.message;
  }
  document.body.classList.remove("working");
}

function begin(pause) {
  clearTimeout(timer);
  timer = setTimeout(question, pause);
}

function change(to) {
  changes = to;
  if (before) showChanges();
  begin(30);
}
const toggle = (item) => change(has(item) ? without(item) : [...changes, item]);

/** Force a token behind what stands before it, or forbid it there; what is done already is taken back. */
function act(path, does) {
  const [id, token] = path.at(-1);
  const forbidden = ["forbidden", path.length, id, plain(token)];
  const forced = ["forced", spell(path.map(([, other]) => other)), path.map(([other]) => other)];
  if (does === "forbid") {
    if (of("forced")[0]?.[1][path.length - 1] === id) changes = others("forced");
    toggle(forbidden);
  } else if (token === END) tell(say.no_end);
  else change(has(forced) ? without(forced) : [...others("forced"), forced].filter((item) => !same(item, forbidden)));
}

function acting(made, path) {
  const onkeydown = ({ key }) => key === "Delete" && act(path, "forbid");
  return Object.assign(made, { onclick: () => act(path, state.does), onkeydown });
}

/** Draw anew what may hold the focus, and put it where it was. */
function refocused(place, redraw) {
  const inside = () => [...place.querySelectorAll("button, canvas")];
  const index = inside().indexOf(document.activeElement);
  redraw();
  const next = index < 0 ? null : (inside()[index] ?? at("text"));
  next?.focus({ preventScroll: true });
  if (next?.matches("button")) next.tabIndex = 0;
}

const actButton = (textContent, onclick, properties) =>
  make("button", { type: "button", className: "act", textContent, onclick, ...properties });

function showChanges() {
  const muted = (kind, layer, i) => say.muted(say[kind], layer + 1, i + 1);
  const said = { muted, hidden: say.hidden, forced: say.forced, forbidden: say.forbidden };
  const chips = changes.map((item) => {
    const [what, ...rest] = item;
    const text = said[what]?.(...rest) ?? `${say[what]} ${rest}`;
    return actButton(text, () => change(without(item)), { ariaLabel: say.take_back(text) });
  });
  if (chips.length) chips.unshift(actButton(say.reset, () => change([]), { id: "reset" }));
  refocused(at("changes"), () => at("changes").replaceChildren(...chips));
  const steps = run().checkpoints ?? [];
  at("checkpoint").max = steps.length - 1;
  at("checkpoint").parentElement.hidden = steps.length < 2;
  showSetting("beam", before.beam.steps[0].kept.length);
  showSetting("length_penalty", before.beam.alpha);
  showSetting("checkpoint", steps.at(-1), steps);
}

/** Show what a slider is at, and change it where it is moved: to a number, or to one of some values. */
function showSetting(name, own, values) {
  const [input, value] = [at(name), of(name)[0]?.[0] ?? own];
  input.value = values ? values.indexOf(value) : value;
  input.nextElementSibling.textContent = value;
  input.setAttribute("aria-valuetext", value);
  input.oninput = () => {
    const chosen = values ? values[input.value] : Number(input.value);
    change([...others(name), ...(chosen === own ? [] : [[name, chosen]])]);
  };
}

function showSource() {
  const { tokens, ids, lang } = before.source;
  const made = tokens.map((token, place) => {
    const item = ["hidden", place, plain(token)];
    const chip = button(token, lang, [plain(token), say.number(ids[place])], ids[place]);
    return Object.assign(chip, { ariaPressed: has(item), onclick: () => toggle(item) });
  });
  refocused(at("reads"), () => fill(at("reads"), ...made));
}

/** Show what is now and, where something was changed, what was before beside it. */
function panels(place, draw) {
  const answers = now === before ? [now] : [now, before];
  const made = answers.map(() => make("div", { className: "panel" }));
  if (answers[1]) made.forEach((panel, i) => panel.append(make("h3", { textContent: [say.now, say.before][i] })));
  place.append(make("div", { className: "panels" }, ...made));
  answers.forEach((answer, i) => draw(made[i], answer, answers[1 - i] ?? answer));
}

/** Frame a button that shows something else than in the other answer; told is what that showed. */
function frame(made, isOther, told = "") {
  made.classList.toggle("changed", isOther);
  if (isOther && told) made.dataset.tell += say.comma + say.was(plain(told));
}

/** Return which position of the other translation a position is compared with: of what is equal behind, the same. */
function twins(ours, theirs) {
  let n = 0;
  while (n < ours.length && ours.at(-1 - n) === theirs.at(-1 - n)) n += 1;
  return (t) => (t < ours.length - n ? t : t + theirs.length - ours.length);
}

/** The tokens of a translation up to one that is said at a position instead of its own. */
function pathTo({ target }, t, id, token) {
  return [...target.ids.slice(1, t + 1).map((other, i) => [other, target.tokens[i + 1]]), [id, token]];
}

const views = {
  tokens(panel, { said, guesses, target, source }, other) {
    const row = make("div", { className: "tokens" });
    const twin = twins(said.tokens, other.said.tokens);
    const made = said.tokens.map((token, t) => {
      const [, p, id] = guesses.at(-1)[t].at(-1);
      const chip = button(token, said.lang, [plain(token), say.number(id), say.sure(percent(p))], percent(p));
      frame(chip, token !== other.said.tokens[twin(t)], other.said.tokens[twin(t)]);
      return acting(chip, pathTo({ target, source }, t, id, token));
    });
    panel.append(row);
    fill(row, ...made);
    arrows(row);
  },
  guesses(panel, answer, other) {
    const [table, layers] = [make("table", { className: "guesses" }), answer.guesses];
    const twin = twins(answer.said.tokens, other.said.tokens);
    panel.append(make("div", { className: "scroll" }, table));
    showGuesses(table, layers, answer.said);
    table.querySelectorAll("button").forEach((made, i) => {
      const [t, layer] = [Math.floor(i / layers.length), i % layers.length];
      const [[token, , id], was] = [layers[layer][t][0], other.guesses[layer][twin(t)]?.[0][0]];
      frame(made, token !== was, was);
      acting(made, pathTo(answer, t, id, token));
    });
    arrows(table, layers.length);
  },
  beam(panel, answer, other) {
    const parts = [make("div", { className: "beam" }), make("p"), make("ol", { className: "finished" })];
    const [spelled, key] = [new Set(), (path) => path.map(([, token]) => token).join(" ")];
    showBeam(parts, other.beam, "", spell, (_, path) => spelled.add(key(path)));
    showBeam(parts, answer.beam, answer.said.lang, spell, (made, path) => {
      const tokens = path.map(([, token, , id = answer.source.ids.at(-1)]) => [id, token]);
      frame(acting(made, tokens), !spelled.has(key(path)));
    });
    panel.append(make("div", { className: "scroll" }, parts[0]), ...parts.slice(1));
    arrows(parts[0]);
  },
};

/** Return by how much the weights of a head moved, 0 to 1; undefined where the translation has another length. */
function moved(ours, theirs) {
  if (ours.length !== theirs.length || ours[0].length !== theirs[0].length) return undefined;
  const sums = ours.map((row, t) => row.reduce((sum, weight, s) => sum + Math.abs(weight - theirs[t][s]), 0));
  return sums.reduce((sum, part) => sum + part, 0) / 2 / sums.length;
}

/** Show the weights of the chosen head. */
function showHead(place) {
  const { kind, layer, head: i } = state;
  const names = [say[kind], say.of_layer(layer + 1), say.nth_head(i + 1)];
  const mute = actButton(has(head(layer, i)) ? say.unmute : say.mute, () => toggle(head(layer, i)));
  place.replaceChildren(make("h2", { textContent: names.join(say.comma) }), mute);
  panels(place, (panel, { source, target, said, attention }) => {
    const [down, across] = [kind === "encoder" ? source : said, kind === "decoder" ? target : source];
    const drawn = make("div", { className: "plot" });
    const describe = (t, s) => [plain(down.tokens[t]), plain(across.tokens[s])];
    panel.append(make("div", { className: "map" }, drawn));
    plot(drawn, heatmap(attention[kind][layer][i], describe, "", 1), down, across);
  });
}

/** Show all heads of a kind, of which one is chosen, and each may be muted. */
function showHeads(view) {
  const [grid, map, layers] = [make("div", { className: "heads" }), make("div"), now.attention[state.kind]];
  state.layer = (state.layer < 0 ? layers.length : Math.min(state.layer + 1, layers.length)) - 1;
  state.head = Math.min(state.head, layers[0].length - 1);
  const choose = (layer, i) => {
    Object.assign(state, { layer, head: i });
    for (const made of grid.children) made.toggleAttribute("aria-current", made.dataset.place === `${layer} ${i}`);
    showHead(map);
  };
  const headButton = (weights, layer, i) => {
    const [canvas, bar] = [make("canvas"), make("i")];
    const share = moved(weights, before.attention[state.kind][layer][i]);
    const told = [say.of_layer(layer + 1), say.nth_head(i + 1), ...(share ? [say.moved(percent(share))] : [])];
    const labels = { ariaLabel: [say[state.kind], ...told].join(say.comma), ariaPressed: has(head(layer, i)) };
    const made = make("button", { type: "button", tabIndex: -1, ...labels }, canvas, `${i + 1}`, bar);
    Object.assign(made.dataset, { place: `${layer} ${i}`, tell: told.join(say.comma) });
    paint(canvas, weights, (weight) => weight ** 0.6);
    bar.style.setProperty("--share", percent(share ?? 0).replace(" ", ""));
    made.onpointerenter = ({ pointerType }) => pointerType === "mouse" && choose(layer, i);
    made.onfocus = () => made.matches(":focus-visible") && choose(layer, i);
    // a finger's first touch shows the head, its second mutes it
    made.onclick = () => (made.hasAttribute("aria-current") ? toggle(head(layer, i)) : choose(layer, i));
    return made;
  };
  const rowButton = (heads, layer) => {
    const places = heads.map((_, i) => head(layer, i));
    const rest = () => changes.filter((item) => !places.some((place) => same(place, item))); // also of a click before
    const mute = () => change([...rest(), ...(places.every(has) ? [] : places)]);
    const properties = { className: "row", tabIndex: -1, ariaPressed: places.every(has) };
    return actButton(say.of_layer(layer + 1), mute, properties);
  };
  grid.style.setProperty("--heads", layers[0].length);
  view.append(make("div", { className: "scroll" }, grid), map);
  const row = (heads, layer) => [rowButton(heads, layer), ...heads.map((weights, i) => headButton(weights, layer, i))];
  fill(grid, ...layers.flatMap(row));
  arrows(grid, layers[0].length + 1);
  choose(state.layer, state.head);
}

function showView() {
  writeAddress();
  const { steps, alpha } = now.beam;
  at("note").textContent = state.show === "beam" ? say.beams(steps[0].kept.length, alpha) : say[`of_${state.show}`];
  at("acts").hidden = state.show === "attention";
  at("kinds").parentElement.hidden = state.show !== "attention";
  refocused(at("view"), () => {
    at("view").replaceChildren();
    if (state.show === "attention") showHeads(at("view"));
    else panels(at("view"), views[state.show]);
  });
}

function showAll() {
  const show = (name, answer, other) => {
    at(name).replaceChildren(...withNewWords(answer.text, other.text));
    at(name).lang = answer.said.lang;
    at(name).nextElementSibling.textContent = say.scored(fixed(answer.score), fixed(answer.seconds));
  };
  show("now", now, before);
  show("before", before, now);
  at("text").lang = now.source.lang;
  at("was").hidden = now === before;
  showSource();
  showChanges();
  showView();
}

/** Another sentence: what belonged to tokens of the old one is over. */
function another(pause) {
  changes = changes.filter(([what]) => !["hidden", "forced", "forbidden"].includes(what));
  begin(pause);
}

function showTries() {
  const take = ({ target }) => {
    at("text").value = target.textContent;
    another(0);
  };
  at("tries").replaceChildren(...run().examples.map((text) => actButton(text, take)));
}

function choices(place, name, values, then) {
  const labels = values.map((value) => [value, say[value]]);
  radios(place, name, labels, state[name], (value) => {
    state[name] = value;
    if (now) then();
  });
}

async function enter() {
  const shows = ["tokens", "attention", "guesses", "beam"];
  if (!shows.includes(state.show)) state.show = "attention";
  if (!KINDS.includes(state.kind)) state.kind = "cross";
  choices("shows", "show", shows, showView);
  choices("does", "does", ["force", "forbid"], () => {});
  choices("kinds", "kind", KINDS, () => ((state.layer = -1), showView()));
  at("trouble").textContent = say.loading;
  ({ runs } = (await ask("api/runs")).answer);
  const options = runs.map(({ name, source, target }) => new Option(`${name} (${source} → ${target})`, name));
  at("run").replaceChildren(...options);
  if (runs.some(({ name }) => name === address.get("run"))) at("run").value = address.get("run");
  at("text").value = address.get("q") ?? run().examples[0] ?? "";
  try {
    changes = JSON.parse(address.get("with")) ?? [];
  } catch {} // a link that was cut off
  showTries();
  tell(say.hint);
  arrows(at("reads"));
  at("text").addEventListener("input", ({ isComposing }) => isComposing || another(PAUSE_MS));
  at("text").addEventListener("compositionend", () => another(PAUSE_MS));
  at("run").addEventListener("change", () => ((changes = []), showTries(), begin(0)));
  drawAnew(showView, showView);
  question();
}
enter();
