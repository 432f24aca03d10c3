import { at, make } from "../elements.js";
import { showBeam } from "./beam.js";
import {
  arrows, button, data, drawAnew, fill, fixed, heatmap, isSpecial, percent, plain, radios, say, showGuesses, speak, tell,
} from "./page.js";

speak({
  vector: (d, scaled) => `The number stands for a row of a learned table: ${d} components${scaled ? `, times √${d}` : ""}. Blue is positive, orange negative. `,
  sinusoidal: "The sinusoid of the position is added: without it, the model would not know the order of the tokens.",
  learned: "A learned vector of the position is added: without it, the model would not know the order of the tokens.",
  rotary: "Nothing is added for the position. Instead, every self-attention turns queries and keys by angles that grow with it (rotary positions); shown are the cosine and sine of each angle.",
  none: "Nothing is added for the position: only what the decoder may not see tells the order of the tokens.",
  embedded: "embedding", position: "position", sum: "sum", component: (i) => `component ${i}`, number: (id) => `number ${id}`,
  asks: "Query: the position of the text that asks", says: "Query: the token about to be said",
  query: "query q", key: "key k", value: "value v", weight: "weight", mixture: "mixture Σ weight·v", unseen: "not yet written, so not seen (−∞)",
  mixed: (n) => `The mixture is what this head gives. Those of all ${n} heads, side by side, are projected and added to the vector of the position: what the next part reads.`,
}, {
  title: "この訳ができるまで", tokens: "1　トークン",
  tokens_note: "モデルが読み書きするのはトークン（単語やその一部）で、それぞれ語彙のなかの番号を持ちます。一つ選ぶと、次の節にそのベクトルが現れます。",
  reads: "エンコーダーは原文を、終わりの印 </s> まで読む", writes: "デコーダーは <s> とそこまでの訳文を読み、次のトークンを予測する",
  embedding: "2　埋め込みと位置", attention: "3　アテンション", lens: "4　各層の時点での予測", beam: "5　探索",
  attention_note: "どの層でも、各位置はほかの位置から必要なものを集めます。ヘッドは各ベクトルからクエリq、キーk、バリューvを作り、クエリとキーの積（合い具合）をsoftmaxで割合に直し、その割合でバリューを混ぜます。",
  vector: (d, scaled) => `番号は、学習された表の行を指します。成分は${d}個${scaled ? `で、√${d}倍してあります` : "です"}。青は正、橙は負。`,
  sinusoidal: "そこに位置の正弦波を足します。足さなければ、語順が分かりません。", learned: "そこに、学習された位置のベクトルを足します。足さなければ、語順が分かりません。",
  rotary: "位置は足しません。代わりに、どの自己アテンションでも、クエリとキーを位置に比例する角度だけ回します（回転位置埋め込み）。下の「位置」は、その角度の余弦と正弦です。",
  none: "位置は足しません。語順は、デコーダーが後ろを見られないことからしか分かりません。",
  embedded: "埋め込み", position: "位置", sum: "その和", component: (i) => `第${i}成分`, number: (id) => `番号${id}`,
  asks: "クエリ：原文のどの位置が尋ねるか", says: "クエリ：次に書くトークン",
  query: "クエリ q", key: "キー k", value: "バリュー v", weight: "重み", mixture: "混合 Σ重み·v", unseen: "まだ書かれていないので見えない（−∞）",
  mixed: (n) => `混合が、このヘッドの出力です。${n}個のヘッドの混合を並べて射影し、その位置のベクトルに足すと、次の部分の入力になります。`,
});

const { model, source, target, said, beam } = data, sides = { source, target }, width = model.d_model / model.n_heads;
const root = model.scale_attention ? Math.sqrt(width) : 1, rooted = model.scale_attention ? `q·k/√${width}` : "q·k";
const marked = [...source.tokens, ...said.tokens].some((token) => token.startsWith("▁"));
const spell = (tokens) => (marked ? tokens.join("").replaceAll("▁", " ") : tokens.join(" ")).trim();
const state = { kind: "cross", layer: data.attention.cross.length - 1, head: 0, query: 0 };

const split = (flat, length) => [...Array(flat.length / length).keys()].map((i) => flat.subarray(i * length, (i + 1) * length));
/** The rows, of this length, of what was packed into 16 bits. */
function unpack({ scale, data: packed }, length = width) {
  const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
  return split(Float32Array.from(new Int16Array(bytes.buffer), (integer) => integer * scale), length);
}

/** Show tokens of which, within an element, one is chosen. */
function choices(place, { tokens, lang, ids }, choose, within = place) {
  fill(at(place), ...tokens.map((token, i) => {
    const chip = button(token, lang, [plain(token), ...(ids ? [say.number(ids[i])] : [])], ids?.[i]);
    chip.className = !marked || token.startsWith("▁") || isSpecial(token) ? "begins" : "";
    for (const event of ["focus", "click"]) chip.addEventListener(event, () => {
      for (const other of at(within).querySelectorAll("button")) {
        other.classList.toggle("chosen", other === chip);
        other.setAttribute("aria-pressed", other === chip);
      }
      choose(i);
    });
    return chip;
  }));
}

function showVector(side, token) {
  const embedded = unpack(data.embedded[side], model.d_model)[token];
  const position = unpack(data.positions[side], model.positions === "rotary" ? width : model.d_model)[token];
  const strips = { none: { embedded }, rotary: { embedded, position } }[model.positions]
    ?? { embedded, position, sum: embedded.map((x, i) => x + position[i]) };
  at("vectors").replaceChildren(...Object.entries(strips).flatMap(([name, numbers]) => {
    const place = (row, column) => [plain(sides[side].tokens[token]), say[name], say.component(row * width + column + 1)];
    const strip = heatmap(split(numbers, width), place);
    strip.style.height = `${0.9 * numbers.length / width}rem`;
    return [make("span", { textContent: say[name] }), strip];
  }));
}

/** Show softmax(q·k / √K), and what it mixes of the values, computed from the network's q, k and v. */
function showAttention() {
  const { kind, layer, head, query } = state, { tokens, lang } = kind === "decoder" ? target : source;
  const [queries, keys, values] = data.attention[kind][layer].map((packed) => {
    const vectors = unpack(packed), length = vectors.length / model.n_heads;
    return vectors.slice(head * length, (head + 1) * length);
  });
  const dots = keys.map((key) => key.reduce((sum, x, i) => sum + x * queries[query][i], 0));
  const scores = dots.map((dot, s) => kind === "decoder" && s > query ? -Infinity : dot / root);
  const powers = scores.map((score) => Math.exp(score - Math.max(...scores))), total = powers.reduce((sum, x) => sum + x);
  const weights = powers.map((power) => power / total);
  const mixture = values[0].map((_, i) => weights.reduce((sum, weight, s) => sum + weight * values[s][i], 0));

  const put = (row, column, element, span = "span 1") => Object.assign(element, { style: `grid-area: ${row} / ${column} / ${span}` });
  const text = (className, textContent) => make("span", { className, textContent });
  const strip = (name, vectors, className = "one") => heatmap(vectors, (s, i) =>
    [say[name], ...(className ? [] : [plain(tokens[s])]), say.component(i + 1)], className);
  const n = keys.length;
  fill(at("walk"), put(1, 1, text("head", say.query)), put(1, 2, strip("query", [queries[query]])),
    ...[say.key, rooted, say.weight, say.value].map((name, i) => put(2, i + 2, text("head", name))),
    put(3, 2, strip("key", keys, ""), `span ${n}`), put(3, 5, strip("value", values, ""), `span ${n}`),
    ...tokens.flatMap((token, s) => {
      const unseen = scores[s] === -Infinity, score = unseen ? "−∞" : fixed(scores[s]), share = text("share", percent(weights[s]));
      const told = [plain(token), ...(unseen ? [say.unseen] : [`q·k = ${fixed(dots[s])}`, `${rooted} = ${score}`, `${say.weight} ${percent(weights[s])}`])];
      return [button(token, lang, told), text("number", score), share].map((part, i) => {
        put(s + 3, [1, 3, 4][i], part).dataset.tell = told.join(say.comma);
        part.classList.toggle("unseen", unseen);
        part.style.setProperty("--share", `${100 * weights[s]}%`);
        return part;
      });
    }),
    put(n + 3, 3, text("head", say.mixture), "span 1 / span 2"), put(n + 3, 5, strip("mixture", [mixture])));
}
function chooseAttention(changes, focused) {
  Object.assign(state, changes);
  const layers = data.attention[state.kind], asking = state.kind === "encoder" ? source : said;
  state.layer = Math.min(state.layer, layers.length - 1);
  if ("kind" in changes) state.query = 0;
  const list = (place, key, values) => radios(place, key, values, state[key], (value) => chooseAttention({ [key]: value }, place));
  list("kinds", "kind", ["encoder", "decoder", "cross"].map((kind) => [kind, say[kind]]));
  list("layers", "layer", layers.map((_, i) => [i, i + 1]));
  list("heads", "head", [...Array(model.n_heads).keys()].map((i) => [i, i + 1]));
  choices("queries", { ...asking, ids: null }, (query) => { state.query = query; showAttention(); });
  at("queries").children[state.query].click();
  at("asks").textContent = state.kind === "encoder" ? say.asks : say.says;
  if (focused) at(focused).querySelector("input:checked").focus();
}

function show() {
  for (const [name, side] of Object.entries(sides)) choices(name, side, (token) => showVector(name, token), "both");
  at("source").children[source.tokens.length > 2 ? 2 : 0].click();
  at("positions").textContent = say.vector(model.d_model, model.scale_embedding) + say[model.positions];
  at("mixed").textContent = say.mixed(model.n_heads);
  chooseAttention({});
  showGuesses(at("guesses"), data.guesses, said);
  at("beam-note").textContent = say.beams(beam.steps[0].kept.length, beam.alpha);
  showBeam(["tree", "ended", "finished"].map(at), beam, said.lang, spell);
  tell(say.hint);
}
show();
for (const place of ["source", "target", "queries", "walk", "tree"]) arrows(at(place));
arrows(at("guesses"), data.guesses.length);
drawAnew(show);
