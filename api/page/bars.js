// Load before and after, worker by worker.

import { workerColour } from "/page/colours.js";
import { el } from "/page/dom.js";
import { percent } from "/page/text.js";

/** `workers`: [{worker, before, after}] as shares of the total. */
export function beforeAfter(workers) {
  const most = Math.max(0.0001, ...workers.flatMap((each) => [each.before ?? 0, each.after ?? 0])) * 1.05;
  const mean = 1 / Math.max(1, workers.length);
  return el(
    "table", { class: "before-after" },
    el("caption", { class: "unseen" }, "Share of the load of each worker, before and after"),
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Worker"), el("th", { scope: "col" }, "Load"), el("th", { scope: "col", class: "number" }, "Before"), el("th", { scope: "col", class: "number" }, "After"))),
    el("tbody", {}, workers.map((each) =>
      el("tr", {},
        el("th", { scope: "row" }, el("span", { class: "dot", vars: { "--dot": workerColour(each.worker) }, "aria-hidden": "true" }), `Worker ${each.worker}`),
        el("td", { class: "pair-cell" }, el("span", { class: "pair", "aria-hidden": "true" }, bar("before", each.before, most), bar("after", each.after, most), el("span", { class: "bar-mean", vars: { left: `${(mean / most) * 100}%` } }))),
        el("td", { class: "number" }, percent(each.before)),
        el("td", { class: "number" }, el("strong", {}, percent(each.after)))))),
  );
}

const bar = (kind, value, most) => el("span", { class: `pair-bar ${kind}`, vars: { width: `${((value ?? 0) / most) * 100}%` } });
