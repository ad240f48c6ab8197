// Each worker's join tree, with the rows that each state holds.

import { workerColour } from "/page/colours.js";
import { el, keyed, set, theirs } from "/page/dom.js";
import { get, path } from "/page/session.js";
import { count, plural } from "/page/text.js";

const RELOAD_MS = 5000;

export function plansView({ query, live, signal }) {
  const advice = new Map();
  const list = el("div", { class: "plans" });
  const node = el("div", { class: "view" }, el("h1", {}, "Plans"), el("p", { class: "muted" }, "Each worker joins by its own tree. Leaves are the streams; every join above them keeps the combinations that it has found, except the last, which hands them on as results."), list);
  const draw = keyed(list, (worker) => planCard(worker, advice));
  const load = async () => {
    try {
      const known = await get(path(query, "plans"), signal);
      for (const each of known.workers) advice.set(each.worker, each);
      draw(live.front?.workers ?? [], (each) => each.worker);
    } catch {
      // What would be better is said when it is known again; what runs is shown meanwhile.
    }
  };
  load();
  const timer = setInterval(load, RELOAD_MS);
  signal.addEventListener("abort", () => clearInterval(timer));
  return { node, title: "Plans", update: () => draw(live.front.workers ?? [], (each) => each.worker), query };
}

function planCard(first, advice) {
  const box = el("div", { class: "tree-box" });
  const note = el("p", { class: "muted" });
  const better = el("p", {});
  const node = el("section", { class: "panel", "aria-label": `Plan of worker ${first.worker}` }, el("h2", {}, el("span", { class: "dot", vars: { "--dot": workerColour(first.worker) }, "aria-hidden": "true" }), `Worker ${first.worker}`), note, better, box);
  let shown = "";
  return {
    node,
    update(worker) {
      const said = advice.get(worker.worker);
      const text = JSON.stringify([worker.plan, worker.plan_states, worker.combined_rows, worker.executor, said?.text, said?.migrating, said?.done]);
      if (text === shown) return;
      shown = text;
      const states = worker.plan_states ?? [];
      const total = states.reduce((sum, each) => sum + (each.rows ?? 0), 0);
      set(note, el("code", {}, theirs(worker.plan ?? "not known yet")), ` on executor `, worker.executor === null || worker.executor === undefined ? "–" : theirs(worker.executor), `, ${count(total)} rows in ${plural(states.length, "state")}`);
      const way = said?.migrating ? ` ${count(said.done)} of ${count(Math.max(said.total, said.done))} tuples are computed.` : "";
      set(better, said ? el("span", {}, theirs(said.text), way) : null);
      const most = Math.max(1, ...states.map((each) => each.rows ?? 0));
      const tree = worker.plan ? parsePlan(worker.plan) : null;
      set(box, tree ? el("ul", { class: "tree", "aria-label": "Join tree" }, branch(tree, states, most, true)) : el("p", { class: "empty" }, "This worker has not reported yet."));
    },
  };
}

function branch(tree, states, most, root = false) {
  const key = tree.leaves.join(" ");
  const state = states.find((each) => sameLeaves(each.state, tree.leaves));
  const name = tree.parts ? (root ? "result" : `join of ${tree.leaves.join(", ")}`) : `stream ${key}`;
  const rows = state ? `${count(state.rows)} rows` : root && tree.parts ? "handed on" : "no rows";
  return el(
    "li", {},
    el("div", { class: `tree-node ${tree.parts ? "join" : "leaf"} ${root ? "root" : ""}` }, el("span", { class: "tree-name" }, tree.parts ? "⋈ " : "", theirs(name)), el("span", { class: "tree-rows" }, rows), state ? el("span", { class: "tree-bar", "aria-hidden": "true", vars: { "--part": `${((state.rows ?? 0) / most) * 100}%` } }) : null),
    tree.parts ? el("ul", {}, tree.parts.map((each) => branch(each, states, most))) : null,
  );
}

const sameLeaves = (text, leaves) => {
  const names = String(text).replace(/[()]/g, " ").split(/\s+/).filter(Boolean);
  return names.length === leaves.length && names.every((each) => leaves.includes(each));
};

/** "((A B) C)" as a tree: {leaves, parts}; a leaf has no parts. Null where the text is not a plan. */
export function parsePlan(text) {
  const tokens = String(text).match(/[()]|[^\s()]+/g) ?? [];
  let at = 0;
  const read = () => {
    const token = tokens[at++];
    if (token === undefined || token === ")") throw new Error("not a plan");
    if (token !== "(") return { leaves: [token], parts: null };
    const parts = [];
    while (tokens[at] !== ")") parts.push(read());
    at += 1;
    return { leaves: parts.flatMap((each) => each.leaves), parts };
  };
  try {
    const tree = read();
    return at === tokens.length ? tree : null;
  } catch {
    return null;
  }
}
