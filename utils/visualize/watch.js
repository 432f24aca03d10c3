import { at, draw, make } from "../elements.js";
import {
  arrows, data, drawAnew, fill, heatmap, plain, plot, radios, say, showGuesses, speak, tell, withNewWords,
} from "./page.js";

speak({
  play: "▶ Play", stop: "■ Stop", frame: "validation",
  step: (n, minutes) => n ? `update ${n.toLocaleString("en")} (${minutes} min)` : "before the first update", loss: (x) => `dev loss ${x} (dashed)`, bleu: (x) => `BLEU ${x}`,
}, {
  title: "訳せるようになるまで", sentences: "開発セットの文", chosen: "選んだ文", reference: "参照訳", lens: "各層の時点での予測",
  note: "スライダーをマウスか矢印キーで動かすと、学習中の検証のたびに貪欲法で訳した開発セットの文が見られます。印は、一つ前の検証の訳になかった語です。文を選ぶと、デコーダーがその文のどこを見ているか、各層が何を予測しているかが分かります。",
  cross_note: "行は書かれるトークン、列は原文のトークンです。色が濃いほど、デコーダーがそこを強く見ています（その層のヘッドの平均）。",
  play: "▶ 再生", stop: "■ 停止", frame: "検証",
  step: (n, minutes) => n ? `更新 ${n.toLocaleString("en")} 回（${minutes} 分）` : "最初の更新の前", loss: (x) => `開発セットの損失 ${x}（破線）`, bleu: (x) => `BLEU ${x}`,
});

const { frames, parts, languages: [source, target] } = data, last = frames.length - 1;
const state = { frame: 0, sentence: 0, layer: frames[0].sentences[0].cross.length - 1 };

/** The course of a figure, from its minimum at the bottom to its maximum at the top. */
function curve(name) {
  const points = frames.map((frame, i) => [i, frame[name]]).filter(([, value]) => typeof value === "number");
  const values = points.map(([, value]) => value), min = Math.min(...values), range = Math.max(...values) - min || 1;
  return draw("path", { class: name, d: points.length ? `M${points.map(([i, value]) => `${i} ${1 - (value - min) / range}`).join("L")}` : "" });
}

function showChosen() {
  const { read, said, cross, guesses, reference } = frames[state.frame].sentences[state.sentence];
  const rows = { tokens: said, lang: target }, columns = { tokens: read, lang: source };
  const shares = cross[state.layer].map((row) => row.map((share) => share / parts));
  at("reference").textContent = reference;
  plot(at("plot"), heatmap(shares, (row, column) => [plain(said[row]), plain(read[column])], "", 1), rows, columns);
  showGuesses(at("guesses"), guesses, rows);
}

function show() {
  const frame = frames[state.frame], before = frames[Math.max(0, state.frame - 1)];
  const when = say.step(frame.step, frame.minutes.toFixed(1));
  const scores = ["loss", "bleu"].filter((name) => typeof frame[name] === "number");
  at("now").replaceChildren(make("span", { textContent: when }),
    ...scores.map((name) => make("span", { className: name, textContent: say[name](frame[name].toFixed(2)) })));
  at("frame").value = state.frame;
  at("frame").setAttribute("aria-valuetext", [when, frame.sentences[state.sentence].translation].join(say.comma));
  at("curve").lastChild.setAttribute("d", `M${state.frame} 0V1`);
  at("sentences").querySelectorAll("button").forEach((button, i) => {
    button.lastChild.replaceChildren(...withNewWords(frame.sentences[i].translation, before.sentences[i].translation));
    button.setAttribute("aria-pressed", i === state.sentence);
  });
  showChosen();
}
const change = (changes) => { Object.assign(state, changes); show(); };

let timer;
function stop() {
  clearInterval(timer);
  timer = undefined;
  at("play").textContent = say.play;
}
at("play").addEventListener("click", () => {
  if (timer) return stop();
  at("play").textContent = say.stop;
  if (state.frame === last) change({ frame: 0 });
  timer = setInterval(() => state.frame < last ? change({ frame: state.frame + 1 }) : stop(), 800);
});
at("frame").addEventListener("input", () => { stop(); change({ frame: +at("frame").value }); });
at("frame").max = last;
at("frame").setAttribute("aria-label", say.frame);
at("curve").setAttribute("viewBox", `0 0 ${last || 1} 1`);
at("curve").append(curve("loss"), curve("bleu"), draw("path", {}));
fill(at("sentences"), ...frames[0].sentences.map((sentence, i) => {
  const button = make("button", { type: "button", tabIndex: -1 }, make("span", { className: "muted", lang: source, textContent: sentence.source }),
    make("span", { className: "said", lang: target }));
  for (const event of ["focus", "click"]) button.addEventListener(event, () => change({ sentence: i }));
  return button;
}));
at("reference").lang = target;
const layers = frames[0].sentences[0].cross.map((_, i) => [i, i + 1]);
radios("layers", "layer", layers, state.layer, (layer) => change({ layer }));
for (const place of ["sentences", "guesses"]) arrows(at(place), place === "guesses" ? layers.length : 1);
stop();
show();
tell(say.hint);
drawAnew(showChosen, showChosen);
