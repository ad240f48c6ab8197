// Lines over time, one figure each, that share their time axis and mark migrations.

import { el, set, svg } from "/page/dom.js";
import { time } from "/page/text.js";

const HEIGHT = 96;
const PAD = { top: 10, bottom: 4 };

/** `series`: [{name, at(row), show(value), colour, fill}]; `limit(front)`: a line to compare with, or null. */
export class TimeChart {
  constructor(title, series, { floor = 0, limit = () => null } = {}) {
    Object.assign(this, { title, series, floor, limit });
    this.picture = svg("svg", { class: "chart", role: "img", "aria-label": title, preserveAspectRatio: "none" });
    this.value = el("span", { class: "chart-now" });
    this.top = el("span", { class: "chart-top" });
    this.node = el("figure", { class: "chart-figure" }, el("figcaption", {}, el("span", { class: "chart-title" }, title), this.value), el("div", { class: "chart-box" }, this.picture, this.top));
  }

  draw(front, marks, at_ms = null) {
    const rows = front.batches ?? [];
    const width = Math.max(240, this.node.clientWidth || 600);
    const begin = rows[0]?.[0] ?? front.at_ms - 60_000;
    const end = Math.max(rows.at(-1)?.[0] ?? front.at_ms, begin + 1000);
    const x = (at) => Math.max(0, Math.min(width, ((at - begin) / (end - begin)) * width));
    const values = this.series.flatMap((each) => rows.map(each.at)).filter(Number.isFinite);
    const limit = this.limit(front);
    const most = Math.max(this.floor + 1e-9, ...values, limit ?? 0) * 1.06;
    const y = (value) => PAD.top + (1 - (value - this.floor) / (most - this.floor)) * (HEIGHT - PAD.top - PAD.bottom);
    this.picture.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    const drawn = marks.map((each) => this.#mark(each, x, width));
    if (limit !== null) drawn.push(svg("line", { class: "chart-limit", x1: 0, x2: width, y1: y(limit), y2: y(limit) }));
    for (const each of this.series) drawn.push(...line(each, rows, x, y));
    const row = at_ms === null ? rows.at(-1) : nearest(rows, at_ms);
    if (at_ms !== null && row) drawn.push(svg("line", { class: "chart-cross", x1: x(row[0]), x2: x(row[0]), y1: 0, y2: HEIGHT }));
    set(this.picture, drawn);
    set(this.value, this.series.map((each) => el("span", { class: `chart-value ${each.colour}` }, this.series.length > 1 ? `${each.name} ` : "", row ? each.show(each.at(row)) : "–")), at_ms !== null && row ? el("span", { class: "chart-when" }, time(row[0])) : null);
    set(this.top, values.length ? this.series[0].show(Math.max(...values)) : "");
    this.picture.setAttribute("aria-label", summary(this.title, this.series, rows));
    this.span = { begin, end, width };
  }

  #mark(each, x, width) {
    const [from, to] = [x(each.from_ms), each.to_ms === null ? width : x(each.to_ms)];
    return svg("g", { class: `chart-move ${each.kind}` }, svg("rect", { x: from, y: 0, width: Math.max(1.5, to - from), height: HEIGHT }), svg("title", {}, each.title));
  }
}

/** Moves that overlap are one stretch: shades on shades would hide the line. */
export function stretches(marks) {
  const merged = [];
  for (const each of [...marks].sort((a, b) => a.from_ms - b.from_ms)) {
    const last = merged.findLast((other) => other.kind === each.kind);
    if (last && (last.to_ms === null || each.from_ms <= last.to_ms)) {
      last.to_ms = last.to_ms === null || each.to_ms === null ? null : Math.max(last.to_ms, each.to_ms);
      last.title = `${last.title}\n${each.title}`;
    } else merged.push({ ...each });
  }
  return merged;
}

function line(series, rows, x, y) {
  const runs = [[]];
  for (const row of rows) {
    const value = series.at(row);
    if (Number.isFinite(value)) runs.at(-1).push([x(row[0]), y(value)]);
    else if (runs.at(-1).length) runs.push([]);
  }
  return runs.filter((run) => run.length).flatMap((run) => {
    const points = run.length > 1 ? run : [run[0], [run[0][0] + 1, run[0][1]]];
    const path = points.map(([a, b], at) => `${at ? "L" : "M"}${a.toFixed(1)} ${b.toFixed(1)}`).join("");
    const area = `${path}L${points.at(-1)[0].toFixed(1)} ${HEIGHT}L${points[0][0].toFixed(1)} ${HEIGHT}Z`;
    return [series.fill ? svg("path", { class: `chart-area ${series.colour}`, d: area }) : null, svg("path", { class: `chart-line ${series.colour}`, d: path })];
  });
}

function nearest(rows, at_ms) {
  return rows.reduce((best, row) => (Math.abs(row[0] - at_ms) < Math.abs(best[0] - at_ms) ? row : best), rows[0]);
}

function summary(title, series, rows) {
  if (!rows.length) return `${title}: nothing measured yet`;
  const parts = series.map((each) => {
    const values = rows.map(each.at).filter(Number.isFinite);
    if (!values.length) return `${each.name}: nothing`;
    return `${each.name} now ${each.show(values.at(-1))}, lowest ${each.show(Math.min(...values))}, highest ${each.show(Math.max(...values))}`;
  });
  return `${title} over the last ${rows.length} batches: ${parts.join("; ")}`;
}
