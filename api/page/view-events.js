// Everything that happened, newest first, as it happens.

import { newest } from "/page/delta.js";
import { trouble } from "/page/dialogs.js";
import { choice, el, field, keyed, panel, set } from "/page/dom.js";
import { get, path } from "/page/session.js";
import { eventLine } from "/page/view-front.js";

const KEPT = 1000;

export function eventsView({ query, live, signal }) {
  let events = [];
  let kind = "";
  const list = el("ol", { class: "events all" });
  const note = el("div");
  const select = choice([["", "all kinds"]], "", (value) => { kind = value; draw(); });
  const box = panel("Events", el("div", { class: "controls" }, field("Kind", select)), note, list);
  const node = el("div", { class: "view" }, el("h1", { class: "unseen" }, `Events of ${query}`), box);
  const show = keyed(list, eventLine);

  function draw() {
    const kinds = [...new Set(events.map((each) => each.kind))].sort();
    if (select.options.length !== kinds.length + 1) set(select, el("option", { value: "" }, "all kinds"), kinds.map((each) => el("option", { value: each, selected: each === kind }, each)));
    const wanted = events.filter((each) => !kind || each.kind === kind);
    set(note, wanted.length ? null : el("p", { class: "empty" }, "Nothing has happened yet."));
    show([...wanted].reverse(), (each) => each.id);
  }

  function add(more) {
    events = newest([...events, ...more], KEPT);
    draw();
  }

  get(path(query, "events"), signal).then((answer) => add(answer.events ?? []), (error) => error.name !== "AbortError" && set(note, trouble(error)));
  return { node, title: "Events", update: () => add(live.front.events ?? []) };
}
