// What the pages of this folder share: their data, their words, and how tokens, weights and choices are shown.
import { at, make } from "../elements.js";

export const data = JSON.parse(at("data")?.textContent ?? "null");

const asked = location.hash.match(/(?:^#|[#&]lang=)(ja|en)(?=&|$)/);
export const inJapanese = (asked ? asked[1] : navigator.language).startsWith("ja");
export const say = inJapanese ? {
  kind: "アテンション", layer: "層", head: "ヘッド", comma: "、", of_layer: (layer) => `第${layer}層`,
  encoder: "エンコーダーの自己アテンション", decoder: "デコーダーの自己アテンション", cross: "クロスアテンション",
  hint: "セル、数字、トークンを指すか、Tabと矢印キーで選ぶと、その値がここに出ます。",
  lens_note: "訳語を決めるのはデコーダーの最終層ですが、最後の正規化と出力の射影は途中の層にも掛けられます（ロジットレンズ）。その層で終わっていたら何を予測するかを、確率とともに示します。太字は実際の訳語です。",
  written: "訳語", surely: (p) => `実際の訳語は ${p}`,
} : {
  comma: ", ", of_layer: (layer) => `layer ${layer}`, encoder: "Encoder self", decoder: "Decoder self", cross: "Cross",
  hint: "Point at a cell, a number or a token, or move to it with Tab and the arrow keys: its value appears here.",
  written: "written", surely: (p) => `what was written: ${p}`,
};
addEventListener("hashchange", () => location.reload());

/** Add the words of a page, which is in English as it stands. */
export function speak(english, japanese) {
  Object.assign(say, inJapanese ? japanese : english);
  if (!inJapanese) return;
  document.documentElement.lang = "ja";
  Object.assign(at("language"), { hash: "en", lang: "en", textContent: "English" });
  for (const element of document.querySelectorAll("[data-say], [data-ja]")) {
    element.textContent = element.dataset.ja ?? say[element.dataset.say];
  }
}

export const isSpecial = (token) => /^(<.+>|\[[A-Z]+\])$/.test(token);
export const plain = (token) => token.replaceAll("▁", " ").trim() || "␣";

/** A token with ▁ faded, as it is a mark, not a letter. */
export function label(token, lang) {
  if (isSpecial(token)) return make("span", { lang: "en" }, make("span", { className: "special", textContent: token }));
  if (!/^▁./u.test(token)) return make("span", { lang, textContent: token });
  return make("span", { lang }, make("span", { className: "mark", textContent: "▁" }), token.slice(1));
}

/** The numbers of a colour of the style. */
export const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim().split(/\s+/).map(Number);

/** Paint a value of 1 in the full colour, of -1 in the other one, and of 0 in none. */
export function paint(canvas, values, strength) {
  const [warm, cold, columns] = [ink("--heat"), ink("--cold"), values[0].length];
  canvas.width = columns;
  canvas.height = values.length;
  const image = new ImageData(columns, values.length);
  values.forEach((row, t) => row.forEach((value, s) => {
    const shade = strength(value);
    image.data.set([...(shade < 0 ? cold : warm), 255 * Math.abs(shade)], 4 * (t * columns + s));
  }));
  canvas.getContext("2d").putImageData(image, 0, 0);
}

export function radios(place, name, labels, chosen, onChoice) {
  at(place).replaceChildren(...labels.map(([value, text]) => {
    const input = make("input", { type: "radio", name, value, checked: value === chosen });
    input.addEventListener("change", () => onChoice(value));
    return make("label", {}, input, make("span", { textContent: text }));
  }));
}

/** Let keys move the focus among buttons, one of which Tab reaches. */
export function arrows(container, columns = 1, onMove = () => {}) {
  container.addEventListener("keydown", (event) => {
    const buttons = [...container.querySelectorAll("button")], place = buttons.indexOf(document.activeElement);
    const step = { ArrowRight: 1, ArrowDown: columns, ArrowLeft: -1, ArrowUp: -columns }[event.key];
    const next = event.key === "Home" ? 0 : event.key === "End" ? buttons.length - 1 : step && place + step;
    if (place < 0 || next === undefined || !buttons[next]) return;
    event.preventDefault();
    onMove();
    buttons[place].tabIndex = -1;
    buttons[next].tabIndex = 0;
    buttons[next].focus();
  });
}

export const percent = (p) => `${(100 * p).toFixed(1)} %`;
export const fixed = (x, digits = 2) => x.toFixed(digits).replace("-", "−");

/** Tell at the bottom of the window what is pointed at, or focused. */
export function tell(...parts) {
  at("telling").firstElementChild.textContent = parts.join(say.comma);
}
for (const event of ["pointerover", "focusin", "click"]) document.addEventListener(event, ({ target }) => {
  const told = target.closest("[data-tell]");
  if (told) tell(told.dataset.tell);
});

export function heatmap(values, describe, className = "", max = Math.max(1e-9, ...values.map((row) => Math.max(...row.map(Math.abs))))) {
  const canvas = make("canvas", { tabIndex: 0 }), frame = make("b"), [n, m] = [values.length, values[0].length];
  let [row, column] = [0, 0];
  paint(canvas, values, (value) => Math.sign(value) * Math.pow(Math.abs(value) / max, 0.7)); // small ones are raised
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", describe(0, 0).slice(0, -1).join(say.comma));
  const point = (toRow, toColumn) => {
    [row, column] = [Math.min(n - 1, Math.max(0, toRow)), Math.min(m - 1, Math.max(0, toColumn))];
    frame.style.cssText = `left:${100 * column / m}%;top:${100 * row / n}%;width:${100 / m}%;height:${100 / n}%`;
    tell(...describe(row, column), fixed(values[row][column], 3));
    canvas.setAttribute("aria-label", at("telling").textContent);
  };
  for (const event of ["pointermove", "click"]) canvas.addEventListener(event, ({ offsetX, offsetY }) =>
    point(Math.floor(n * offsetY / canvas.clientHeight), Math.floor(m * offsetX / canvas.clientWidth)));
  canvas.addEventListener("focus", () => canvas.matches(":focus-visible") && point(row, column));
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!step) return;
    event.preventDefault();
    point(row + step[0], column + step[1]);
  });
  return make("div", { className: `frame ${className}` }, canvas, frame);
}

export function button(token, lang, told, small) {
  const made = make("button", { type: "button", tabIndex: -1 }, label(token, lang));
  if (small !== undefined) made.append(make("small", { textContent: small }));
  made.dataset.tell = told.join(say.comma);
  return made;
}

export function fill(place, ...children) {
  place.replaceChildren(...children);
  place.querySelector("button").tabIndex = 0;
}

const words = (text) => [...new Intl.Segmenter(undefined, { granularity: "word" }).segment(text)];
export function withNewWords(text, before) {
  const known = new Set(words(before).map(({ segment }) => segment));
  return words(text).map(({ segment, isWordLike }) => isWordLike && !known.has(segment) ? make("mark", { textContent: segment }) : segment);
}

export function showGuesses(place, guesses, said) {
  const cells = (name, contents) => contents.map((content) => make(name, {}, content));
  fill(place, make("tr", {}, ...cells("th", [say.written, ...guesses.map((_, i) => say.of_layer(i + 1))])),
    ...said.tokens.map((token, t) => make("tr", {}, ...cells("th", [label(token, said.lang)]), ...cells("td", guesses.map((layer, i) => {
      const listed = layer[t].map(([other, p]) => `${plain(other)} ${percent(p)}`), [first, p] = layer[t][0];
      const guess = button(first, said.lang, [say.of_layer(i + 1), ...listed.slice(0, -1), say.surely(listed.at(-1))], percent(p));
      guess.classList.toggle("agrees", first === token);
      guess.style.background = `rgb(${ink("--heat").join(" ")} / ${0.45 * p})`;
      return guess;
    })))));
}

/** Show a map with tokens beside its cells, and return their size. */
export function plot(place, frame, rows, columns) {
  const room = place.parentElement.parentElement.clientWidth - 110;
  const cell = Math.max(12, Math.min(34, Math.floor(room / columns.tokens.length)));
  place.style.setProperty("--cell", `${cell}px`);
  place.style.setProperty("--letters", `${Math.min(15, Math.round(cell * 0.8))}px`);
  frame.style.cssText = `width:${cell * columns.tokens.length}px;height:${cell * rows.tokens.length}px`;
  place.replaceChildren(
    make("div", { className: "across" }, ...columns.tokens.map((token) => label(token, columns.lang))),
    make("div", { className: "down" }, ...rows.tokens.map((token) => label(token, rows.lang))), frame);
  return cell;
}

/** Draw anew when the reader's colours change, and when the window has another width. */
export function drawAnew(colours, width = () => {}) {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", colours);
  let before = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === before) return; // a phone's address bar comes and goes
    before = innerWidth;
    width();
  });
}
