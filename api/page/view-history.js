// Rebalances that have ended: what was forecast, and what came of it.

import { trouble } from "/page/dialogs.js";
import { el, set, theirs } from "/page/dom.js";
import { moveCard } from "/page/move.js";
import { get, path } from "/page/session.js";
import { bytes, dateTime, ms, plural, ratio, seconds } from "/page/text.js";

const MEASURES = [
  ["Imbalance after", "ratio_after", ratio],
  ["Pause", "pause_ms", ms],
  ["State moved", "bytes", bytes],
  ["Took", "seconds", seconds],
];

export function historyView({ query, signal }) {
  const list = el("div", { class: "history" });
  const node = el("div", { class: "view" }, el("h1", {}, "History"), list);
  const load = async () => {
    try {
      const { rebalances } = await get(`${path(query, "rebalances")}?limit=50`, signal);
      const ended = rebalances.filter((each) => !each.open);
      set(list, ended.length ? ended.map((each) => record(query, each)) : el("p", { class: "empty" }, "No rebalance has ended yet."));
    } catch (error) {
      if (error.name !== "AbortError") set(list, trouble(error));
    }
  };
  load();
  return { node, title: "History" };
}

function record(query, rebalance) {
  const moves = rebalance.migrations ?? [];
  const groups = moves.reduce((sum, each) => sum + each.groups.length, 0);
  const good = rebalance.state === "committed";
  const strategies = [...new Set(moves.map((each) => String(each.strategy).toUpperCase()))].join(", ");
  const ended = rebalance.closed_ms ?? rebalance.ended_ms ?? Math.max(...moves.map((each) => each.ended_ms ?? 0));
  const details = el("details", {}, el("summary", {}, plural(moves.length, "migration")));
  details.addEventListener("toggle", () => {
    if (!details.open || details.childElementCount > 1) return;
    details.append(...moves.map((each) => {
      const card = moveCard(query, each);
      card.update(each);
      return card.node;
    }));
  });
  return el(
    "article", { class: "panel record" },
    el("div", { class: "panel-head" },
      el("h2", {}, dateTime(rebalance.created_ms)),
      el("span", { class: `chip ${good ? "good" : "warn"}` }, String(rebalance.state).replaceAll("-", " ")),
      rebalance.automatic ? el("span", { class: "chip" }, "automatic") : null,
      el("span", { class: "grow" }), el("code", { class: "muted" }, rebalance.id)),
    el("p", {}, `${plural(groups, "group")}${strategies ? ` by ${strategies}` : ""}, requested by `, theirs(rebalance.by || "the balancer"), rebalance.reason ? [": ", theirs(rebalance.reason)] : null, Number.isFinite(ended) && ended ? `. Ended ${dateTime(ended)}.` : "."),
    rebalance.refusal ? el("div", { class: "notice warn" }, theirs(`${rebalance.refusal.field} ${rebalance.refusal.problem}. ${rebalance.refusal.remedy ?? ""}`)) : null,
    rebalance.note ? el("p", { class: "muted" }, theirs(rebalance.note)) : null,
    comparison(rebalance),
    moves.length ? details : null,
  );
}

function comparison(rebalance) {
  const { forecast, measured } = rebalance;
  if (!forecast && !measured) return null;
  return el(
    "table", { class: "comparison" },
    el("caption", { class: "unseen" }, "Forecast and outcome"),
    el("thead", {}, el("tr", {}, ["", "Forecast", "Measured", "Difference"].map((each, at) => el(at ? "th" : "td", { scope: at ? "col" : null, class: at ? "number" : null }, each)))),
    el("tbody", {},
      el("tr", {}, el("th", { scope: "row" }, "Imbalance before"), el("td", { class: "number" }, ratio(forecast?.ratio_before)), el("td", { class: "number" }, ratio(measured?.ratio_before)), el("td", {})),
      MEASURES.map(([name, key, show]) => el("tr", {}, el("th", { scope: "row" }, name), el("td", { class: "number" }, show(forecast?.[key])), el("td", { class: "number" }, el("strong", {}, show(measured?.[key]))), el("td", { class: "number muted" }, difference(forecast?.[key], measured?.[key]))))),
  );
}

function difference(foreseen, found) {
  if (!Number.isFinite(foreseen) || !Number.isFinite(found)) return "–";
  if (foreseen === 0) return found === 0 ? "as foreseen" : "more than none";
  const part = (found - foreseen) / foreseen;
  if (part > 3) return `${(found / foreseen).toFixed(0)} times`;
  return Math.abs(part) < 0.005 ? "as foreseen" : `${part > 0 ? "+" : "−"}${Math.abs(part * 100).toFixed(0)} %`;
}
