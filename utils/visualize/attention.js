import { at, draw, make } from "../elements.js";
import { arrows, data, drawAnew, ink, isSpecial, label, paint, percent, plain, plot, radios, say, speak } from "./page.js";

speak({
  mean: "mean", self: "Self-attention",
  rows_self: "Attending: each position of the text", rows_encoder: "Attending: source positions", rows: "Attending: the target token about to be chosen",
  columns_self: "Attended to: the same text", columns_decoder: "Attended to: the translation so far", columns: "Attended to: the source",
  sees: (token) => `“${token}” attends most to`, seen: (token) => `“${token}” is attended to most by`,
  of_head: (head) => `head ${head}`, every: "All heads",
  map_note: "Rows attend to columns; each row adds up to 100 %. Colours are stretched to make small weights visible.",
  entropy_note: (max) => `The numbers are mean entropies of the rows, in nats: 0 is a head that attends to a single token, ${max} one that attends to all visible tokens equally.`,
}, {
  title: "モデルが見ているもの", mean: "平均", tokens: "トークン",
  tokens_note: "トークンを指すか、Tabと矢印キーで選ぶと、もう一方の側の各トークンの重みが色で示されます。Enterかクリックで固定、Escapeで解除。",
  links: "アラインメント",
  links_note: "訳文の各トークンと、最終層のクロスアテンション（ヘッドの平均）が最も大きな重みを与えた原文のトークン。線が濃いほど重みが大きい。",
  self: "自己アテンション",
  rows_self: "見る側：文の各位置", rows_encoder: "見る側：原文の各位置", rows: "見る側：次に選ばれる訳文のトークン",
  columns_self: "見られる側：同じ文", columns_decoder: "見られる側：それまでの訳文", columns: "見られる側：原文",
  sees: (token) => `「${token}」の重みが大きいのは`, seen: (token) => `「${token}」に大きな重みを与えるのは`,
  of_head: (head) => `ヘッド${head}`, every: "すべてのヘッド",
  map_note: "行が列を見ます。各行の和は100 %です。色は小さな重みも見えるように強めてあります。",
  entropy_note: (max) => `数字は行のエントロピーの平均（ナット）。0はただ一つを見るヘッド、${max}はすべてを等しく見るヘッドです。`,
});

const MAX_LISTED = 5, MEAN = -1;
const marked = data.kinds.some((kind) => kind.rows.tokens.some((token) => token.startsWith("▁")));
const state = { kind: data.kinds.length - 1, layer: 0, head: MEAN, side: "rows", token: null, held: false };
state.layer = data.kinds[state.kind].weights.length - 1;

function chosenWeights() {
  const heads = data.kinds[state.kind].weights[state.layer];
  if (state.head !== MEAN) return heads[state.head];
  return heads[0].map((row, t) => row.map((_, s) => heads.reduce((sum, head) => sum + head[t][s], 0) / heads.length));
}

// small weights are raised
const strength = (weight) => Math.pow(weight / data.parts, 0.6);

function showChoices() {
  const kind = data.kinds[state.kind];
  radios("kinds", "kind", data.kinds.map((other, i) => [i, say[other.kind]]), state.kind, (i) => choose({ kind: i }, "kinds"));
  radios("layers", "layer", kind.weights.map((_, i) => [i, i + 1]), state.layer, (i) => choose({ layer: i }, "layers"));
  const heads = kind.weights[state.layer].map((_, i) => [i, i + 1]);
  radios("heads", "head", [[MEAN, say.mean], ...heads], state.head, (i) => choose({ head: i }, "heads"));
}

function choose(changes, focused) {
  const other = "kind" in changes && changes.kind !== state.kind;
  Object.assign(state, changes);
  if (other) Object.assign(state, { token: null, held: false });
  const kind = data.kinds[state.kind];
  state.layer = Math.min(state.layer, kind.weights.length - 1);
  state.head = Math.min(state.head, kind.weights[state.layer].length - 1);
  show(other);
  if (focused) at(focused).querySelector("input:checked").focus();
}

function showTokens(side) {
  const { tokens, lang } = data.kinds[state.kind][side];
  const first = state.side === side && state.token !== null ? state.token : 0;
  const buttons = tokens.map((token, i) => {
    const button = make("button", {
      type: "button", tabIndex: i === first ? 0 : -1, lang: isSpecial(token) ? "en" : lang,
      className: !marked || token.startsWith("▁") || isSpecial(token) ? "begins" : "",
    }, isSpecial(token) ? make("span", { className: "special", textContent: token }) : plain(token));
    button.addEventListener("pointerenter", (event) => event.pointerType === "mouse" && select(side, i));
    button.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && !state.held && select(side, null));
    button.addEventListener("focus", () => button.matches(":focus-visible") && select(side, i, false));
    button.addEventListener("click", () => {
      const again = state.held && state.side === side && state.token === i;
      state.held = false;
      select(side, again ? null : i);
      state.held = !again;
    });
    return button;
  });
  at(side).replaceChildren(...buttons);
}

for (const side of ["rows", "columns"]) arrows(at(side), 1, () => { state.held = false; });
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  state.held = false;
  select(state.side, null);
});

function select(side, token, byMouse = true) {
  if (state.held && byMouse) return;
  Object.assign(state, { side, token, held: false });
  showSelection();
}

function showSelection() {
  const kind = data.kinds[state.kind], weights = chosenWeights();
  const other = state.side === "rows" ? "columns" : "rows", { token } = state;
  const ours = token === null ? null : state.side === "rows" ? weights[token] : weights.map((row) => row[token]);
  for (const side of ["rows", "columns"]) {
    [...at(side).children].forEach((button, i) => {
      button.classList.toggle("chosen", side === state.side && i === token);
      const alpha = ours && side === other ? strength(ours[i]) : 0;
      button.style.background = alpha ? `rgb(${ink("--heat").join(" ")} / ${alpha})` : "";
      button.style.color = alpha > 0.6 ? "var(--over)" : "";
    });
  }
  const lit = { rows: new Set(), columns: new Set() };
  if (token !== null) lit[state.side].add(token);
  const top = ours ? [...ours.keys()].sort((a, b) => ours[b] - ours[a]).slice(0, MAX_LISTED).filter((i) => ours[i] > 0) : [];
  if (ours) {
    const { tokens, lang } = kind[other];
    const rows = top.map((i) => make("tr", {}, make("td", {}, label(tokens[i], lang)),
      make("td", { textContent: percent(ours[i] / data.parts) }),
      make("td", {}, make("i", { style: `width:${8 * ours[i] / data.parts}rem` }))));
    const sentence = (state.side === "rows" ? say.sees : say.seen)(plain(kind[state.side].tokens[token]));
    at("readout").replaceChildren(make("p", { textContent: sentence }), make("table", {}, make("tbody", {}, ...rows)));
    if (top.length) lit[other].add(top[0]);
  } else at("readout").replaceChildren();
  for (const [side, place] of [["rows", ".down"], ["columns", ".across"]])
    [...at("plot").querySelector(place).children].forEach((element, i) => element.classList.toggle("lit", lit[side].has(i)));
  const frame = at("plot").querySelector(".frame b"), cell = "var(--cell)";
  frame.hidden = token === null;
  frame.style.cssText = state.side === "rows"
    ? `left:0;right:0;height:calc(${cell} + 2px);top:calc(${token} * ${cell} - 1px)`
    : `top:0;bottom:0;width:calc(${cell} + 2px);left:calc(${token} * ${cell} - 1px)`;
}

function showMap() {
  const kind = data.kinds[state.kind], { rows, columns } = kind;
  const canvas = make("canvas");
  paint(canvas, chosenWeights(), strength);
  const cell = plot(at("plot"), make("div", { className: "frame" }, canvas, make("b", { hidden: true })), rows, columns);
  const row = (event) => Math.min(rows.tokens.length - 1, Math.max(0, Math.floor(event.offsetY / cell)));
  canvas.addEventListener("pointermove", (event) => event.pointerType === "mouse" && select("rows", row(event)));
  canvas.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && !state.held && select("rows", null));
  canvas.addEventListener("click", (event) => {
    state.held = false;
    select("rows", row(event));
    state.held = true;
  });
  const head = state.head === MEAN ? say.mean : say.of_head(state.head + 1);
  at("map-title").textContent = [say[kind.kind], say.of_layer(state.layer + 1), head].join(say.comma);
  at("map-note").textContent = say.map_note;
}

function showAll() {
  const kind = data.kinds[state.kind];
  at("all-title").textContent = `${say.every}: ${say[kind.kind]}`;
  at("entropy-note").textContent = say.entropy_note(kind.max_entropy.toFixed(2));
  at("all").replaceChildren(...kind.weights.flatMap((heads, layer) => [
    make("h3", { textContent: say.of_layer(layer + 1) }),
    make("div", { className: "heads" }, ...heads.map((weights, head) => {
      const entropy = kind.entropy[layer][head], canvas = make("canvas"), bar = make("i");
      paint(canvas, weights, strength);
      bar.style.setProperty("--share", `${kind.max_entropy ? Math.min(100, 100 * entropy / kind.max_entropy) : 0}%`);
      const button = make("button", { type: "button" }, canvas,
        make("span", { className: "of" }, make("span", { textContent: head + 1 }), make("span", { textContent: entropy.toFixed(2) })), bar);
      button.dataset.place = `${layer} ${head}`;
      button.setAttribute("aria-label", [say.of_layer(layer + 1), say.of_head(head + 1), `${entropy.toFixed(2)} nats`].join(say.comma));
      button.addEventListener("click", () => choose({ layer, head }));
      return button;
    })),
  ]));
}

function showChosenHead() {
  for (const button of at("all").querySelectorAll("button"))
    button.setAttribute("aria-pressed", button.dataset.place === `${state.layer} ${state.head}`);
}

function showLinks() {
  const list = ({ tokens, lang }) => make("ol", {}, ...tokens.map((token) => make("li", { lang, textContent: plain(token) })));
  const source = list(data.source), target = list(data.target);
  const svg = draw("svg", { "aria-hidden": true });
  at("links").replaceChildren(source, svg, target);
  const paths = data.links.map(([from, to, weight]) => {
    const path = draw("path", { style: `opacity: ${0.25 + 0.75 * weight}` });
    svg.append(path);
    return { from, to, path };
  });
  const place = () => {
    const width = svg.clientWidth, middle = (item) => item.offsetTop + item.offsetHeight / 2;
    for (const { from, to, path } of paths) {
      const [y, z] = [middle(source.children[from]), middle(target.children[to])];
      path.setAttribute("d", `M0 ${y}C${width / 2} ${y} ${width / 2} ${z} ${width} ${z}`);
    }
  };
  new ResizeObserver(place).observe(at("links"));
  const light = (isLit) => {
    let some = false;
    for (const item of at("links").querySelectorAll("li")) item.classList.remove("lit");
    for (const link of paths) {
      const lit = isLit(link);
      link.path.classList.toggle("lit", lit);
      if (lit) for (const item of [source.children[link.from], target.children[link.to]]) item.classList.add("lit");
      some ||= lit;
    }
    at("links").classList.toggle("some", some);
  };
  for (const [side, items] of [["from", source.children], ["to", target.children]])
    [...items].forEach((item, i) => {
      item.addEventListener("pointerenter", () => light((link) => link[side] === i));
      item.addEventListener("pointerleave", () => light(() => false));
    });
}

function show(otherKind) {
  const { kind } = data.kinds[state.kind];
  showChoices();
  at("rows-title").textContent = say[`rows_${kind}`] ?? say.rows;
  at("columns-title").textContent = say[`columns_${kind}`] ?? say.columns;
  if (otherKind) {
    showTokens("rows");
    showTokens("columns");
    showAll();
  }
  showMap();
  showChosenHead();
  showSelection();
}

function showScale() {
  paint(at("scale"), [[...Array(100).keys()].map((i) => data.parts * i / 99)], strength);
}

show(true);
showScale();
if (data.links.length) showLinks();
else at("links").parentElement.remove(); // a BERT translates nothing
drawAnew(() => { show(true); showScale(); }, () => { showMap(); showSelection(); });
