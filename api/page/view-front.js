// What happens now: imbalance and why nothing moves, workers as bars, running moves, batches over time.

import { stretches, TimeChart } from "/page/charts.js";
import { workerColour } from "/page/colours.js";
import { choice, el, keyed, link, panel, say, set, svg, theirs } from "/page/dom.js";
import { moveCard } from "/page/move.js";
import { address } from "/page/router.js";
import { session } from "/page/session.js";
import { bytes, count, dateTime, ms, percent, plural, rate, ratio, time, whole } from "/page/text.js";

const ALARMS_SHOWN = 3;

export function frontView({ query, live, signal }) {
  const parts = [headline(query), workersPanel(query), movesPanel(query), chartsPanel(signal), eventsPanel(query)];
  const [head, workers, moves, charts, events] = parts.map((part) => part.node);
  const node = el("div", { class: "view front" }, el("h1", { class: "unseen" }, `Overview of ${query}`), head, el("div", { class: "columns" }, el("div", {}, workers, charts, events), el("div", {}, moves)));
  return { node, title: "Overview", update: () => parts.forEach((part) => part.update(live.front)), resize: () => charts && parts[3].update(live.front) };
}

function headline(query) {
  const gauge = imbalanceGauge();
  const tiles = Object.fromEntries(["Batch time", "Throughput", "Results", "State", "Workers", "Epoch"].map((name) => [name, tile(name)]));
  const why = el("div", { class: "why", role: "status" });
  const alarms = el("div", { class: "alarms" });
  const node = el("div", { class: "headline" }, alarms, el("div", { class: "tiles" }, gauge.node, Object.values(tiles).map((each) => each.node)), why);
  let shown = "";
  return {
    node,
    update(front) {
      const last = front.batches?.at(-1);
      const about = front.query ?? {};
      const sum = (name) => front.workers?.reduce((total, worker) => total + (worker[name] ?? 0), 0);
      const moving = (front.moves ?? []).filter((each) => !each.outcome).length;
      gauge.update(front.imbalance, moving);
      tiles["Batch time"].update(ms(last?.[2] ?? about.batch_ms), waiting(about) ?? `batch ${whole(about.committed_batch)}`);
      tiles.Throughput.update(rate(last?.[3] ?? about.rows_per_s), "rows joined");
      tiles.Results.update(rate(last?.[4]), sum("late_rows") ? `${count(sum("late_rows"))} late rows` : "no late rows");
      tiles.State.update(bytes(sum("state_bytes")), `${count(sum("state_rows"))} rows, ${count(sum("combined_rows"))} combined`);
      tiles.Workers.update(`${about.workers_up ?? "–"} / ${about.workers ?? "–"}`, about.running === false ? "query stopped" : about.workers_up < about.workers ? "some are down" : "all up");
      tiles.Epoch.update(whole(about.epoch), about.manager ? `manager ${about.manager.leader}` : "no manager leads");
      const text = JSON.stringify([front.why, moving, front.imbalance?.auto, about.alarms, about.running]);
      if (text === shown) return;
      shown = text;
      drawWhy(why, query, front);
      drawAlarms(alarms, query, about.alarms ?? []);
    },
  };
}

/** What the sources hold that is not read yet, by stream; nothing where no source tells. */
function waiting({ backlog, lags }) {
  if (backlog === undefined || backlog === null) return undefined;
  const streams = Object.entries(lags ?? {}).map(([stream, rows]) => `${stream} ${count(rows)}`);
  return `${count(backlog)} rows wait${streams.length > 1 ? `: ${streams.join(", ")}` : ""}`;
}

/** The newest ones; a query that has raised many must not push everything else out of sight. */
function drawAlarms(node, query, alarms) {
  const shown = alarms.slice(0, ALARMS_SHOWN);
  const more = alarms.length - shown.length;
  set(node, shown.map((alarm) => el("div", { class: "notice bad", role: "alert" }, el("strong", {}, `Alarm at ${dateTime(alarm.at_ms)}: `), theirs(alarm.text ?? alarm.kind))), more > 0 ? el("p", { class: "muted" }, `And ${plural(more, "older alarm")}: see the `, link(address(query, "events"), "events"), ".") : null);
}

function drawWhy(node, query, front) {
  const why = front.why;
  const auto = front.imbalance?.auto;
  const acts = Boolean(why?.act);
  const open = (front.moves ?? []).filter((each) => !each.outcome);
  const moving = open.length > 0;
  const now = moving ? `${plural(open.length, "move")} under way, ${plural(new Set(open.flatMap((each) => each.groups)).size, "group")}. ` : "";
  const title = moving ? "Moving now" : acts ? "About to move" : "Why nothing moves now";
  node.className = `why ${moving || acts ? "acts" : "rests"}`;
  set(
    node,
    mark(moving || acts),
    el("div", { class: "grow" }, el("strong", {}, title), el("p", {}, now, why?.text ? theirs(why.text) : "The load is not known yet: the manager has seen no batch of this query recently.")),
    el("div", { class: "why-side" },
      el("span", { class: `chip ${auto ? "good" : ""}` }, auto ? "auto is on" : "auto is off"),
      why?.code && why.code !== "off" ? el("code", { class: "muted" }, why.code) : null),
    link(address(query, "proposals"), session.operates ? "Propose a rebalance" : "What if …", { class: session.operates ? "button primary" : "button" }),
  );
}

// Drawn, not written: fonts do not have every sign.
const mark = (acts) => svg("svg", { class: "why-mark", viewBox: "0 0 24 24", "aria-hidden": "true" }, svg("path", { d: acts ? "M3 8h15M14 3.5 18.5 8 14 12.5M21 16H6M10 11.5 5.5 16l4.5 4.5" : "M8.5 5v14M15.5 5v14" }));

function tile(name) {
  const value = el("dd", { class: "tile-value" });
  const note = el("dd", { class: "tile-note" });
  const node = el("dl", { class: "tile" }, el("dt", {}, name), value, note);
  return {
    node,
    update(text, more) {
      say(value, text);
      say(note, more);
    },
  };
}

function imbalanceGauge() {
  const value = el("dd", { class: "tile-value" });
  const note = el("dd", { class: "tile-note" });
  const fill = el("span", { class: "gauge-fill" });
  const start = el("span", { class: "gauge-start" });
  const node = el("dl", { class: "tile imbalance" }, el("dt", {}, "Imbalance"), value, el("dd", { class: "gauge", "aria-hidden": "true" }, fill, start), note);
  return {
    node,
    update(imbalance, moving) {
      const now = imbalance?.ratio;
      say(value, ratio(now));
      if (!Number.isFinite(now)) return say(note, "not measured yet");
      const high = Math.max(2, now, imbalance.start_ratio * 1.2);
      const share = (at) => `${Math.max(0, Math.min(100, ((at - 1) / (high - 1)) * 100))}%`;
      fill.style.setProperty("width", share(now));
      start.style.setProperty("left", share(imbalance.start_ratio));
      const state = now >= imbalance.start_ratio ? "bad" : now >= imbalance.stop_ratio ? "warn" : "good";
      node.className = `tile imbalance ${state}`;
      say(note, `largest ${imbalance.measure} load ÷ mean${moving ? " as if open moves were done" : ""}; acts from ${ratio(imbalance.start_ratio)}`);
    },
  };
}

const SORTS = {
  worker: (a, b) => a.worker - b.worker,
  load: (a, b) => (b.share ?? -1) - (a.share ?? -1) || a.worker - b.worker,
  executor: (a, b) => String(a.executor ?? "").localeCompare(String(b.executor ?? ""), "en", { numeric: true }) || a.worker - b.worker,
};

function workersPanel(query) {
  let sort = "worker";
  let front = null;
  const select = choice([["worker", "number"], ["load", "load"], ["executor", "executor"]], sort, (value) => {
    sort = value;
    update(front);
  });
  select.id = "sort-workers";
  const list = el("ul", { class: "workers" });
  const node = panel("Workers", list);
  node.head.append(el("span", { class: "grow" }), el("label", { for: select.id }, "Order by "), select);
  const draw = keyed(list, (worker) => workerRow(query, worker));
  const update = (now) => {
    front = now;
    const workers = now.workers ?? [];
    const taking = workers.filter((each) => !each.excluded).length || 1;
    const most = Math.max(1 / taking, ...workers.map((each) => each.share ?? 0)) * 1.05;
    draw([...workers].sort(SORTS[sort]).map((each) => ({ ...each, most, mean: 1 / taking, limit: now.imbalance?.start_ratio ?? 1.2 })), (each) => each.worker);
  };
  return { node, update };
}

function workerRow(query, first) {
  const bar = el("span", { class: "bar-fill" });
  const mean = el("span", { class: "bar-mean" });
  const share = el("span", { class: "bar-share" });
  const facts = el("span", { class: "worker-facts" });
  const chips = el("span", { class: "chips" });
  const drain = session.operates ? link(`${address(query, "proposals")}?policy=drain&worker=${first.worker}`, "Drain …", { class: "small quiet", "aria-label": `Drain worker ${first.worker}` }) : null;
  const node = el(
    "li", { class: "worker" },
    el("span", { class: "worker-name" }, el("span", { class: "dot", vars: { "--dot": workerColour(first.worker) }, "aria-hidden": "true" }), `Worker ${first.worker}`, chips),
    el("span", { class: "bar" }, bar, mean),
    share, facts, drain,
  );
  return {
    node,
    update(worker) {
      const part = worker.share ?? 0;
      bar.style.setProperty("width", `${(part / worker.most) * 100}%`);
      mean.style.setProperty("left", `${(worker.mean / worker.most) * 100}%`);
      node.classList.toggle("hot", part / worker.mean >= worker.limit && !worker.excluded);
      node.classList.toggle("down", !worker.up);
      say(share, percent(worker.share));
      set(chips, worker.up ? null : el("span", { class: "chip bad" }, "down"), worker.excluded ? el("span", { class: "chip" }, "excluded") : null, worker.moving ? el("span", { class: "chip busy" }, `${worker.moving} moving`) : null);
      set(facts,
        piece("executor", worker.executor === null || worker.executor === undefined ? "–" : theirs(worker.executor)), piece("groups", whole(worker.groups)),
        piece("CPU", Number.isFinite(worker.cpu_ms_per_s) ? `${whole(worker.cpu_ms_per_s)} ms/s` : "–"), piece("rows", rate(worker.rows_per_s)),
        piece("results", rate(worker.results_per_s)), piece("state", bytes(worker.state_bytes)),
        worker.late_rows ? piece("late", count(worker.late_rows)) : null, worker.resident && worker.resident !== "hit" ? piece("state was", worker.resident) : null);
    },
  };
}

const piece = (name, value) => el("span", {}, el("span", { class: "muted" }, `${name} `), value);

function movesPanel(query) {
  const list = el("div", { class: "moves" });
  const empty = el("p", { class: "empty" }, "No group is on its way.");
  const node = panel("Moves", empty, list);
  node.head.append(el("span", { class: "grow" }), link(address(query, "history"), "History"));
  const draw = keyed(list, (move) => moveCard(query, move));
  return {
    node,
    update(front) {
      const moves = [...(front.moves ?? [])].sort((a, b) => Boolean(a.outcome) - Boolean(b.outcome) || b.created_ms - a.created_ms);
      empty.hidden = moves.length > 0;
      draw(moves, (each) => each.id);
    },
  };
}

function chartsPanel(signal) {
  const charts = [
    new TimeChart("Batch time", [{ name: "batch", at: (row) => row[2], show: ms, colour: "c1", fill: true }]),
    new TimeChart("Throughput", [{ name: "rows", at: (row) => row[3], show: rate, colour: "c2", fill: true }, { name: "results", at: (row) => row[4], show: rate, colour: "c3" }]),
    new TimeChart("Imbalance", [{ name: "ratio", at: (row) => row[5], show: ratio, colour: "c4", fill: true }], { floor: 1, limit: (front) => front.imbalance?.start_ratio ?? null }),
  ];
  const ends = el("div", { class: "chart-ends", "aria-hidden": "true" });
  const key = el("p", { class: "legend" }, el("span", { class: "swatch mslb" }), "MSLB move", el("span", { class: "swatch ptlb" }), "PTLB move", el("span", { class: "swatch limit" }), "balancer acts from here");
  const box = el("div", { class: "charts" }, charts.map((chart) => chart.node), ends);
  const node = panel("Batches over time", box, key);
  let front = null;
  let at_ms = null;
  const redraw = () => {
    const merged = stretches(marksOf(front));
    for (const chart of charts) chart.draw(front, merged, at_ms);
    set(ends, el("span", {}, time(charts[0].span.begin)), el("span", {}, time(charts[0].span.end)));
  };
  box.addEventListener("pointermove", (event) => {
    if (!front?.batches?.length) return;
    const area = charts[0].picture.getBoundingClientRect();
    const { begin, end } = charts[0].span;
    at_ms = begin + ((event.clientX - area.left) / area.width) * (end - begin);
    redraw();
  }, { signal });
  box.addEventListener("pointerleave", () => {
    at_ms = null;
    if (front) redraw();
  }, { signal });
  return {
    node,
    update(now) {
      front = now;
      redraw();
    },
  };
}

/** Moves whose time is shown: those that have ended come with the document, so that a reload does not lose them. */
export function marksOf(front) {
  const begin = front.batches?.[0]?.[0] ?? 0;
  const running = (front.moves ?? []).filter((each) => !each.outcome).map((each) => ({ ...each, from_ms: each.created_ms, to_ms: null, groups: each.groups.length }));
  return [...(front.marks ?? []).filter((each) => each.to_ms >= begin), ...running].map((each) => ({ from_ms: each.from_ms, to_ms: each.to_ms, kind: each.strategy, title: `${String(each.strategy).toUpperCase()} ${each.from} → ${each.to}, ${plural(each.groups, "group")}: ${each.outcome ?? "running"}` }));
}

function eventsPanel(query) {
  const list = el("ol", { class: "events" });
  const node = panel("Latest events", list);
  node.head.append(el("span", { class: "grow" }), link(address(query, "events"), "All events"));
  const draw = keyed(list, (event) => eventLine(event));
  return { node, update: (front) => draw([...(front.events ?? [])].reverse().slice(0, 12), (each) => each.id) };
}

export function eventLine(event) {
  const node = el("li", {}, el("time", { datetime: new Date(event.at_ms).toISOString() }, time(event.at_ms)), el("span", { class: `kind ${/^[a-z-]+$/.test(event.kind) ? event.kind : ""}` }, event.kind), theirs(event.text));
  return { node, update() {} };
}
