// Which worker owns which partition group: one square per group, its colour the load. A group can be opened and pinned.

import { css, heatScale, onThemeChange, variable, workerColour } from "/page/colours.js";
import { ask, toast, trouble } from "/page/dialogs.js";
import { button, el, link, panel, set, speak, table, theirs } from "/page/dom.js";
import { code, HeatModel, LOAD_UNIT } from "/page/heatmodel.js";
import { address, readdress } from "/page/router.js";
import { change, get, path, session } from "/page/session.js";
import { bytes, count, percent, plural, rate, whole } from "/page/text.js";

const LABEL = 118;
const GAP = 10;

export function partitionsView({ query, live, signal, id }) {
  let chosen = id === null ? null : Number(id);
  let pinned = new Set();
  let boxes = []; // {group, x, y}
  let size = 18;
  const canvas = el("canvas", { class: "map-canvas", tabindex: "0", role: "application", "aria-roledescription": "partition map" });
  const detail = el("div", { class: "stack" }, el("p", { class: "empty" }, "Choose a group: click it, or move with the arrow keys and press Enter."));
  const side = panel("Group", detail);
  const numbers = el("div");
  const words = el("details", { class: "panel", on: { toggle: tell } }, el("summary", {}, "The same as a table"), numbers);
  const map = panel("Partition map", el("div", { class: "map-box" }, canvas), el("p", { class: "legend" }, "One square per group; the darker or brighter, the more load.", el("span", { class: "swatch moving" }), "moving", el("span", { class: "swatch pinned" }), "pinned"));
  const node = el("div", { class: "view" }, el("h1", { class: "unseen" }, `Partition map of ${query}`), el("div", { class: "columns wide-left" }, el("div", {}, map, words), el("div", {}, side)));

  function draw() {
    const front = live.front;
    if (!front?.owners?.length) return;
    const scale = devicePixelRatio || 1;
    const width = Math.max(320, canvas.parentElement.clientWidth);
    const byWorker = new Map((front.workers ?? []).map((each) => [each.worker, []]));
    front.owners.forEach((owner, group) => {
      if (!byWorker.has(owner)) byWorker.set(owner, []);
      byWorker.get(owner).push(group);
    });
    size = front.owners.length > 1500 ? 9 : front.owners.length > 400 ? 13 : 22;
    const perLine = Math.max(4, Math.floor((width - LABEL) / size));
    boxes = [];
    let y = 2;
    const labels = [];
    for (const [worker, groups] of [...byWorker].sort((a, b) => a[0] - b[0])) {
      labels.push({ worker, y, groups });
      groups.forEach((group, at) => boxes.push({ group, x: LABEL + (at % perLine) * size, y: y + Math.floor(at / perLine) * size }));
      y += Math.max(1, Math.ceil(groups.length / perLine)) * size + GAP;
      if (size < 20) y = Math.max(y, labels.at(-1).y + 34);
    }
    Object.assign(canvas, { width: Math.round(width * scale), height: Math.round(y * scale) });
    canvas.style.setProperty("height", `${y}px`);
    const context = canvas.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, y);
    names(context, labels, front);
    cells(context, front);
    canvas.setAttribute("aria-label", `Partition map: ${plural(front.owners.length, "group")} on ${plural(byWorker.size, "worker")}. Arrow keys choose a group, Enter opens it.`);
  }

  function names(context, labels, front) {
    const shares = new Map((front.workers ?? []).map((each) => [each.worker, each.share]));
    context.textBaseline = "top";
    for (const { worker, y, groups } of labels) {
      context.fillStyle = workerColour(worker);
      context.fillRect(0, y + 1, 5, 28);
      context.fillStyle = variable("--ink");
      context.font = "600 12.5px system-ui, sans-serif";
      context.fillText(`Worker ${worker}`, 12, y);
      context.fillStyle = variable("--muted");
      context.font = "11px system-ui, sans-serif";
      context.fillText(`${plural(groups.length, "group")}, ${percent(shares.get(worker), 0)}`, 12, y + 16);
    }
  }

  function cells(context, front) {
    const model = new HeatModel(front.owners.length);
    model.peak = Math.max(1, front.loads.reduce((most, load) => Math.max(most, load), 0));
    const levels = model.levels();
    const { rgb } = heatScale();
    const moving = new Set((front.moves ?? []).filter((each) => !each.outcome).flatMap((each) => each.groups));
    const inner = size - (size > 10 ? 2 : 1);
    for (const { group, x, y } of boxes) {
      context.fillStyle = css(rgb[levels[code(front.loads[group] ?? 0)]]);
      context.fillRect(x, y, inner, inner);
      context.lineWidth = 1;
      context.strokeStyle = variable("--line");
      context.strokeRect(x + 0.5, y + 0.5, inner - 1, inner - 1);
      if (moving.has(group)) {
        context.lineWidth = size > 10 ? 2.5 : 1.5;
        context.strokeStyle = variable("--busy");
        context.strokeRect(x + 1, y + 1, inner - 2, inner - 2);
      }
      if (pinned.has(group)) {
        context.fillStyle = variable("--pin");
        context.fillRect(x + inner / 2 - 2, y + inner / 2 - 2, 4, 4);
      }
      if (group === chosen) {
        context.lineWidth = 2;
        context.strokeStyle = variable("--focus");
        context.strokeRect(x - 1, y - 1, inner + 2, inner + 2);
      }
    }
  }

  function choose(group, open) {
    chosen = group;
    draw();
    const front = live.front;
    speak(`Group ${group}, worker ${front.owners[group]}, ${percent((front.loads[group] ?? 0) / LOAD_UNIT, 2)} of the load`);
    if (open) show();
  }

  canvas.addEventListener("click", (event) => {
    const found = boxes.find((box) => event.offsetX >= box.x && event.offsetX < box.x + size && event.offsetY >= box.y && event.offsetY < box.y + size);
    if (found) choose(found.group, true);
  });
  canvas.addEventListener("keydown", (event) => {
    if (!boxes.length) return;
    if (event.key === "Enter" && chosen !== null) return show();
    const at = Math.max(0, boxes.findIndex((box) => box.group === chosen));
    const here = boxes[at];
    const next = { ArrowRight: () => boxes[at + 1], ArrowLeft: () => boxes[at - 1], ArrowDown: () => boxes.find((box) => box.y > here.y && box.x >= here.x), ArrowUp: () => boxes.findLast((box) => box.y < here.y && box.x <= here.x), Home: () => boxes[0], End: () => boxes.at(-1) }[event.key];
    if (!next) return;
    event.preventDefault();
    const box = chosen === null ? here : next();
    if (box) choose(box.group, false);
  });

  async function show() {
    const group = chosen;
    readdress(address(query, "partitions", group));
    try {
      const about = await get(path(query, "partitions", group), signal);
      const why = await get(path(query, "partitions", group, "explain"), signal).catch((error) => error);
      if (group !== chosen) return;
      side.heading.textContent = `Group ${group}`;
      set(detail,
        el("dl", { class: "facts stacked" }, [["Worker", link(address(query), `worker ${about.owner}`)], ["Share of the load", percent(about.share, 2)], ["CPU", `${whole(about.cpu_ms_per_s)} ms/s`], ["Rows", rate(about.rows_per_s)], ["State", `${count(about.state_rows)} rows, ${bytes(about.state_bytes)}`], ["Move", about.migration ?? "none"], ["Pinned", about.pinned ? "yes" : "no"]].map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)))),
        el("h3", {}, "Why it is here"), el("p", {}, theirs(why.text ?? why.message)),
        session.operates ? button(about.pinned ? "Unpin …" : "Pin here …", () => pin(group, !about.pinned)) : null);
    } catch (error) {
      if (error.name !== "AbortError") set(detail, trouble(error));
    }
  }

  async function pin(group, on) {
    const done = await ask({
      title: on ? `Pin group ${group}?` : `Unpin group ${group}?`,
      text: on ? "No policy moves a pinned group." : "Policies may move it again.",
      action: on ? "Pin" : "Unpin",
      required: false,
      act: async (reason, token) => {
        const rules = await get(path(query, "rules"));
        const groups = new Set(rules.pinned);
        groups[on ? "add" : "delete"](group);
        return change("PUT", path(query, "rules"), { pinned: [...groups].sort((a, b) => a - b), reason }, token);
      },
    });
    if (!done) return;
    toast(on ? `Group ${group} is pinned.` : `Group ${group} is free.`);
    await rules();
    show();
  }

  async function rules() {
    try {
      pinned = new Set((await get(path(query, "rules"), signal)).pinned);
      draw();
    } catch {
      // The map is complete without them; the next visit asks again.
    }
  }

  function tell() {
    const front = live.front;
    if (!words.open || !front?.owners) return;
    const rows = front.owners.map((owner, group) => [link(address(query, "partitions", group), `group ${group}`), `worker ${owner}`, percent(front.loads[group] / LOAD_UNIT, 2), pinned.has(group) ? "pinned" : ""]);
    set(numbers, table("Partition groups", ["Group", "Worker", "#Share of the load", "Rule"], rows));
  }

  rules();
  onThemeChange(draw, signal);
  if (chosen !== null) show();
  return { node, title: "Partitions", update: draw, resize: draw };
}
