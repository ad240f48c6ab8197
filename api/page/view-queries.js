// All queries that this server's Redis knows.

import { trouble } from "/page/dialogs.js";
import { el, keyed, link, set, theirs } from "/page/dom.js";
import { address } from "/page/router.js";
import { get } from "/page/session.js";
import { ago, plural, whole } from "/page/text.js";

const EVERY_MS = 3000;

export function queriesView({ signal }) {
  const list = el("ul", { class: "queries" });
  const note = el("div");
  const node = el("div", { class: "view" }, el("h1", {}, "Queries"), note, list);
  const draw = keyed(list, () => card());
  const load = async () => {
    try {
      const { queries } = await get("/v1/queries", signal);
      set(note, queries.length ? null : el("p", { class: "empty" }, "No query has reported to this Redis yet. Start one: it appears here by itself."));
      draw(queries, (each) => each.name);
    } catch (error) {
      if (error.name !== "AbortError") set(note, trouble(error));
    }
  };
  load();
  const timer = setInterval(load, EVERY_MS);
  signal.addEventListener("abort", () => clearInterval(timer));
  return { node, title: "Queries" };
}

function card() {
  const node = el("li", { class: "panel query" });
  let shown = "";
  return {
    node,
    update(query) {
      const text = JSON.stringify(query);
      if (text === shown) return;
      shown = text;
      const silent = query.heartbeat_ms && Date.now() - query.heartbeat_ms > 60_000;
      const state = !query.running ? ["stopped", "warn"] : silent ? ["silent", "warn"] : ["running", "good"];
      const focused = node.contains(document.activeElement);
      set(
        node,
        el("h2", {}, link(address(query.name), theirs(query.name))),
        el("p", { class: "chips" },
          el("span", { class: `chip ${state[1]}` }, state[0]),
          el("span", { class: `chip ${query.auto ? "good" : ""}` }, query.auto ? "balances itself" : "auto is off"),
          query.open_migrations?.length ? el("span", { class: "chip busy" }, plural(query.open_migrations.length, "move")) : null,
          query.alarms?.length ? el("span", { class: "chip bad" }, plural(query.alarms.length, "alarm")) : null),
        el("dl", { class: "facts" },
          fact("Workers", `${query.workers_up} of ${query.workers} up`),
          fact("Groups", whole(query.partitions)),
          fact("Epoch", whole(query.epoch)),
          fact("Batch", whole(query.committed_batch)),
          fact("Streams", theirs((query.streams ?? []).join(", "))),
          fact("Heartbeat", ago(query.heartbeat_ms)),
          fact("Leader", query.manager ? theirs(query.manager.leader) : "none")),
      );
      if (focused) node.querySelector("a").focus();
    },
  };
}

const fact = (name, value) => el("div", {}, el("dt", {}, name), el("dd", {}, value));
