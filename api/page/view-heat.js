// Load of every partition group through time.

import { css, heatScale, onThemeChange } from "/page/colours.js";
import { trouble } from "/page/dialogs.js";
import { choice, el, field, link, panel, say, set, speak, table } from "/page/dom.js";
import { HeatCanvas } from "/page/heatcanvas.js";
import { code, HeatModel, LOAD_UNIT } from "/page/heatmodel.js";
import { address } from "/page/router.js";
import { get, path } from "/page/session.js";
import { dateTime, ms, percent, plural, rate, ratio, time } from "/page/text.js";

const RELOAD_MS = 600_000; // columns come with the live stream; now and then the server's own, which it has thinned out

export function heatView({ query, live, signal }) {
  let model = null;
  let order = "owner";
  let worker = null;
  let minutes = 60;
  let cursor = null;
  let begun = null; // which stream the columns belong to
  const canvas = new HeatCanvas(560);
  const tip = el("div", { class: "tip", hidden: true, "aria-hidden": "true" });
  canvas.node.append(tip);
  const note = el("p", { class: "muted heat-note" });
  const problem = el("div");
  const which = el("select", { on: { change: (event) => { worker = event.target.value === "" ? null : Number(event.target.value); draw(); } } });
  const controls = el(
    "div", { class: "controls" },
    field("Rows", choice([["owner", "by owner"], ["load", "by load"]], order, (value) => { order = value; draw(); })),
    field("Worker", which),
    field("Time", choice([["15", "15 minutes"], ["60", "1 hour"], ["240", "4 hours"], ["720", "12 hours"]], "60", (value) => { minutes = Number(value); load(); })),
  );
  const legend = el("div", { class: "heat-legend", "aria-hidden": "true" });
  const heat = panel("Load of partition groups", controls, problem, canvas.node, el("div", { class: "heat-foot" }, legend, note));
  const numbers = el("div");
  const words = el("details", { class: "panel", on: { toggle: () => tell() } }, el("summary", {}, "The same as a table"), numbers);
  const moves = panel("Moves in this time");
  const moveList = el("div");
  moves.append(moveList);
  const node = el("div", { class: "view heat" }, el("h1", { class: "unseen" }, `Heat map of ${query}`), heat, moves, words);

  async function load() {
    try {
      const document = await get(`${path(query, HISTORY)}?minutes=${minutes}`, signal);
      const fresh = new HeatModel(live.front?.owners?.length ?? document.columns?.[0]?.loads?.length ?? 0);
      fresh.take(document);
      fresh.since_ms = Date.now() - minutes * 60_000;
      model = fresh;
      set(problem);
      update();
      listMoves();
    } catch (error) {
      if (error.name !== "AbortError") set(problem, trouble(error));
    }
  }

  function draw() {
    if (!model) return;
    const kept = cursor;
    const spent = canvas.draw(model, order, worker);
    canvas.over.setAttribute("aria-label", label());
    node.dataset.drawn = `${Number(node.dataset.drawn ?? 0) + 1}`;
    node.dataset.spent = spent.toFixed(2);
    say(note, `${plural(model.partitions, "group")}, ${plural(model.columns.length, "moment")} every ${model.step_ms / 1000} s. ${order === "owner" ? "Lines part the workers; arrows are moves." : "Hottest first; diamonds are moves."}`);
    drawLegend();
    show(kept ? canvas.cell(kept.column, kept.row) : null, false);
  }

  function update() {
    if (!model || !live.front) return;
    begun ??= live.begun;
    if (begun !== live.begun) {
      begun = live.begun; // the stream was away: what happened meanwhile is in the history
      load();
      return;
    }
    if (which.options.length !== (live.front.workers?.length ?? 0) + 1) fillWorkers();
    model.partitions = live.front.owners?.length ?? model.partitions;
    model.now(live.front);
    draw();
    const known = new Set(model.moves.filter((each) => each.outcome).map((each) => each.id));
    const fresh = (live.front.marks ?? []).filter((each) => each.to_ms >= model.since_ms && !known.has(each.id)).map((each) => ({ ...each, at_ms: each.to_ms }));
    if (!fresh.length) return;
    const ended = new Set(fresh.map((each) => each.id));
    model.moves = [...model.moves.filter((each) => !ended.has(each.id)), ...fresh];
    listMoves();
  }

  function fillWorkers() {
    set(which, el("option", { value: "" }, "all"), (live.front.workers ?? []).map((each) => el("option", { value: String(each.worker), selected: each.worker === worker }, `worker ${each.worker}`)));
  }

  const label = () => {
    const last = model.columns.at(-1);
    if (!last) return "Load of partition groups by time: nothing recorded yet";
    const hottest = last.loads.indexOf(last.loads.reduce((a, b) => Math.max(a, b), 0));
    return `Load of ${model.partitions} partition groups by time. Hottest now: group ${hottest} of worker ${last.owners[hottest]} with ${percent(last.loads[hottest] / LOAD_UNIT, 2)} of the load. Arrow keys move the cursor, Enter opens the group.`;
  };

  function describe(cell) {
    const column = model.columns[cell.column];
    const load = column.loads[cell.group] / LOAD_UNIT;
    return { column, load, times: load * model.partitions, owner: column.owners[cell.group] };
  }

  function show(cell, aloud = true) {
    cursor = cell;
    const at = canvas.cursor(cell);
    tip.hidden = !cell;
    if (!cell) return;
    const { column, load, times, owner } = describe(cell);
    set(tip, el("strong", {}, `Group ${cell.group}`), el("span", {}, `worker ${owner}`), el("span", {}, `${percent(load, 2)} of the load`), el("span", {}, `${times.toFixed(1)} × the mean group`), el("hr"), el("span", {}, dateTime(column.at_ms)), el("span", {}, `imbalance ${ratio(column.ratio)}`), el("span", {}, `batch ${ms(column.batch_ms)}, ${rate(column.rows_per_s)}`));
    const wide = canvas.node.clientWidth;
    tip.style.setProperty("left", `${Math.max(4, at.x + 18 + 190 > wide ? at.x - 206 : at.x + 18)}px`);
    tip.style.setProperty("top", `${Math.max(4, Math.min(at.y - 20, canvas.node.clientHeight - 180))}px`);
    if (aloud) speak(`Group ${cell.group}, worker ${owner}, ${percent(load, 2)} of the load, ${time(column.at_ms)}`);
  }

  const KEYS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1], PageUp: [0, -10], PageDown: [0, 10], Home: [-1e6, 0], End: [1e6, 0] };
  canvas.over.addEventListener("keydown", (event) => {
    if (!model?.columns.length) return;
    if (event.key === "Enter" && cursor) location.hash = address(query, "partitions", cursor.group);
    if (event.key === "Escape") return show(null);
    const step = KEYS[event.key];
    if (!step) return;
    event.preventDefault();
    show(cursor ? canvas.cell(cursor.column + step[0], cursor.row + step[1]) : canvas.cell(model.columns.length - 1, 0));
  });
  canvas.over.addEventListener("pointermove", (event) => show(model ? canvas.at(event.offsetX, event.offsetY) : null, false));
  canvas.over.addEventListener("pointerleave", () => model && show(null));
  canvas.over.addEventListener("click", () => cursor && (location.hash = address(query, "partitions", cursor.group)));

  function drawLegend() {
    const { rgb } = heatScale();
    const levels = model.levels();
    const marks = [0, ...[0.01, 0.1, 0.3, 1].map((part) => model.peak * part)];
    set(legend, [...new Set(marks)].map((load) => el("span", { class: "heat-key" }, el("span", { class: "heat-swatch", vars: { "background-color": css(rgb[levels[code(load)]]) } }), percent(load / LOAD_UNIT, load < 10 ? 3 : load < 100 ? 2 : 1))));
  }

  function listMoves() {
    const rows = [...model.moves].sort((a, b) => b.at_ms - a.at_ms).slice(0, 50);
    set(moveList, rows.length ? table("Moves in this time", ["Time", "Move", "Strategy", "#Groups", "Outcome", "Migration"], rows.map((each) => [dateTime(each.at_ms), `worker ${each.from} → worker ${each.to}`, String(each.strategy ?? "").toUpperCase(), each.groups.length ?? each.groups, each.outcome ?? "running", each.id])) : el("p", { class: "empty" }, "Nothing has moved in this time."));
  }

  function tell() {
    if (!words.open || !model?.columns.length) return;
    const last = model.columns.at(-1);
    const before = model.columns[Math.max(0, model.columns.length - 1 - Math.round(600_000 / model.step_ms))];
    const groups = model.shown(worker).sort((a, b) => last.loads[b] - last.loads[a] || a - b);
    set(numbers, table(`Load of partition groups at ${time(last.at_ms)}, hottest first`, ["Group", "Worker", "#Share of the load", "#Times the mean group", "#Ten minutes ago"], groups.map((group) => [link(address(query, "partitions", group), `group ${group}`), `worker ${last.owners[group]}`, percent(last.loads[group] / LOAD_UNIT, 2), ((last.loads[group] / LOAD_UNIT) * model.partitions).toFixed(1), percent(before.loads[group] / LOAD_UNIT, 2)])));
  }

  onThemeChange(draw, signal);
  load();
  const timer = setInterval(load, RELOAD_MS);
  signal.addEventListener("abort", () => clearInterval(timer));
  return { node, title: "Heat map", update, resize: draw };
}

const HISTORY = "history";
