// A beam search as a tree: what was continued, what dropped out, and what ended.
import { draw, make } from "../elements.js";
import { button, fill, fixed, inJapanese, say } from "./page.js";

Object.assign(say, inJapanese ? {
  beams: (n, alpha) => `書きかけの訳を、対数確率の大きい順に${n}本だけ残して伸ばします。線は続き、破線は脱落、太線は選ばれた訳。終わった訳は、長い訳が損をしないよう、長さペナルティー（α＝${alpha}）で割ったスコアで比べます。`,
  rank: (n, p) => `${n}位、対数確率 ${p}`, out: (n, p, last) => `${n}位、対数確率 ${p}：${last}位に届かず、ビームから脱落`, dead: "続きがどれも次の段で脱落", over: "探索が先に終了",
  end: (p, penalty, score) => `終了：対数確率 ${p} ÷ 長さペナルティー ${penalty} ＝ スコア ${score}`,
  ended: (n, hope) => `${n}段で終了しました。${hope === null ? "長さの上限です。" : `残りはどう伸びてもスコア ${hope} を超えられません。`}終わった訳、良い順：`,
} : {
  beams: (n, alpha) => `Of all unfinished translations, the ${n} with the largest log-probabilities are continued. Lines are continuations, dashed is what was dropped, bold what won. A finished translation is judged by its score: its log-probability divided by a length penalty (α = ${alpha}), so that long ones do not lose by their length.`,
  rank: (n, p) => `rank ${n}, log-probability ${p}`, out: (n, p, last) => `rank ${n}, log-probability ${p}: not among the ${last} best, out of the beam`, dead: "all its continuations dropped out in the next step", over: "the search ended before",
  end: (p, penalty, score) => `finished: log-probability ${p} ÷ length penalty ${penalty} = score ${score}`,
  ended: (n, hope) => `It ended after ${n} steps${hope === null ? ", at the longest length allowed" : `: no prefix that is left could score above ${hope}`}. What was finished, best first:`,
});

/** Show a search in three elements, and tell of each button of the tree the path that it ends. */
export function showBeam([tree, ended, list], { steps, penalties }, lang, spell, onButton = () => {}) {
  const n = steps[0].kept.length, best = [];
  const finished = steps.flatMap(({ ends }, t) => ends.map(([row, p, score]) => ({ t, row, p, score }))).sort((a, b) => b.score - a.score);
  const pathTo = (t, row) => t < 0 ? [] : [...pathTo(t - 1, steps[t].kept[row][0]), steps[t].kept[row]];
  const spellOut = (path) => spell(path.map(([, token]) => token));
  for (let { t, row } = finished[0]; t > 0; row = steps[t].kept[row][0]) best[t -= 1] = row;
  const node = (t, prefix, told, className) => {
    const [row, token, p] = prefix, path = [...pathTo(t - 1, row), prefix];
    const made = Object.assign(button(token, lang, [spellOut(path), ...told], fixed(p)), { className });
    onButton(made, path);
    return made;
  };
  const put = (t, column, element) => Object.assign(element, { style: `grid-area: ${t + 1} / ${column}` });
  const lines = steps.flatMap(({ kept }, t) => kept.flatMap((prefix, i) => t && prefix ? [draw("path", { class: best[t] === i ? "best" : "",
    d: `M${prefix[0] + 0.5} ${t - 0.5}C${prefix[0] + 0.5} ${t} ${i + 0.5} ${t} ${i + 0.5} ${t + 0.5}` })] : []));
  tree.style.setProperty("--beams", n);
  const threads = draw("svg", { viewBox: `0 0 ${n} ${steps.length}`, preserveAspectRatio: "none", "aria-hidden": true }, ...lines);
  threads.style.gridArea = `1 / 2 / span ${steps.length} / span ${n}`;
  fill(tree, threads, ...steps.flatMap(({ kept, dropped, ends }, t) => {
    const next = steps[t + 1], continued = new Set(next && [...next.kept, ...next.ends].map((prefix) => prefix?.[0]));
    const row = kept.flatMap((prefix, i) => {
      const why = continued.has(i) ? [] : [next ? say.dead : say.over];
      const className = best[t] === i ? "best" : why.length ? "dead" : "";
      return prefix ? [put(t, i + 2, node(t, prefix, [say.rank(i + 1, fixed(prefix[2])), ...why], className))] : [];
    });
    const over = ends.map(([from, p, score]) => node(t, [from, "</s>", p], [say.end(fixed(p), fixed(penalties[t]), fixed(score))],
      finished[0].t === t && finished[0].row === from ? "best" : ""));
    const out = dropped.flatMap((prefix, i) => prefix ? [node(t, prefix, [say.out(n + i + 1, fixed(prefix[2]), n)], "dead")] : []);
    return [put(t, 1, make("span", { className: "muted", textContent: t + 1 })), ...row,
      put(t, n + 2, make("div", { className: "beside" }, ...over, ...out))];
  }));
  ended.textContent = say.ended(steps.length, steps.at(-1).hope === null ? null : fixed(steps.at(-1).hope));
  list.replaceChildren(...finished.slice(0, n).map(({ t, row, p, score }, i) => make("li", {},
    make(i ? "span" : "strong", { lang, textContent: spellOut(pathTo(t - 1, row)) }),
    make("span", { className: "muted", textContent: ` ${fixed(p)} ÷ ${fixed(penalties[t])} = ${fixed(score)}` }))));
}
