// The balancer's settings and the rules that no policy may break.

import { ask, toast, trouble } from "/page/dialogs.js";
import { choice, el, field, panel, set, theirs } from "/page/dom.js";
import { change, get, path, session } from "/page/session.js";
import { ago, parseNumbers, ranges } from "/page/text.js";

const NUMBERS = [
  ["start_ratio", "Act from this imbalance", "The largest executor load is this many times the mean.", 0.01],
  ["stop_ratio", "Go on until", "Below this imbalance the balancer rests again.", 0.01],
  ["cool_down_s", "Rest after a rebalance (seconds)", "", 1],
  ["min_gain", "Smallest gain", "The largest load must fall by this share of it.", 0.01],
  ["min_batches", "Batches to measure", "Since the mapping last changed.", 1],
  ["min_busy", "Smallest use of a core", "Below this the query is left alone.", 0.01],
  ["max_moved_bytes", "Budget of one rebalance (bytes)", "Empty: no limit.", 1],
  ["max_pause", "Longest pause (milliseconds)", "Empty: the default.", 1],
];
const CHOICES = [
  ["measure", "Measure", [["cpu", "CPU"], ["bytes", "bytes of state"], ["rows", "rows"]]],
  ["policy", "Policy", [["level", "level"], ["pairwise", "pairwise"]]],
  ["strategy", "Strategy", [["auto", "auto"], ["mslb", "MSLB"], ["ptlb", "PTLB"]]],
];

export function settingsView({ query, live, signal }) {
  const auto = el("div");
  const rules = el("div");
  const node = el("div", { class: "view" }, el("h1", {}, "Settings"), el("div", { class: "columns even" }, el("div", {}, auto), el("div", {}, rules)));
  const load = async () => {
    try {
      set(auto, autoPanel(query, await get(path(query, "auto"), signal), load));
      set(rules, rulesPanel(query, await get(path(query, "rules"), signal), live, load));
    } catch (error) {
      if (error.name !== "AbortError") set(auto, trouble(error));
    }
  };
  load();
  return { node, title: "Settings" };
}

function autoPanel(query, settings, reload) {
  const decision = settings.last_decision;
  const box = panel("Balancer");
  box.append(
    el("p", {}, el("span", { class: `chip ${settings.enabled ? "good" : ""}` }, settings.enabled ? "on" : "off"), settings.enabled ? " It moves groups by itself." : " It moves nothing by itself."),
    decision ? el("p", { class: "muted" }, `Last decision, ${ago(decision.at_ms)}: `, theirs(decision.why ?? decision.text ?? decision.code)) : "",
  );
  if (!session.operates) {
    box.append(el("dl", { class: "facts stacked" }, [...CHOICES, ...NUMBERS].map(([name, label]) => el("div", {}, el("dt", {}, label), el("dd", {}, settings[name] ?? "none")))));
    return box;
  }
  const changed = {};
  const save = async (event) => {
    event.preventDefault();
    const done = await ask({ title: "Change the balancer's settings?", text: `Changed: ${Object.keys(changed).join(", ") || "nothing"}.`, action: "Save", required: false, act: (reason, token) => change("PUT", path(query, "auto"), { ...changed, reason }, token) });
    if (done) toast("Saved.");
    if (done) reload();
  };
  const toggle = async () => {
    const on = !settings.enabled;
    const done = await ask({ title: on ? "Let the balancer act by itself?" : "Stop the balancer?", text: on ? "It moves groups when the load is out of balance." : "Moves that run go on; no new ones begin.", action: on ? "Switch on" : "Switch off", required: false, act: (reason, token) => change("PUT", path(query, "auto"), { enabled: on, reason }, token) });
    if (done) toast(on ? "The balancer is on." : "The balancer is off.");
    if (done) reload();
  };
  const inputs = NUMBERS.map(([name, label, hint, step]) => field(label, el("input", { type: "number", step: step < 1 ? "any" : "1", min: "0", value: settings[name] ?? "", on: { input: (event) => { changed[name] = event.target.value === "" ? null : Number(event.target.value); } } }), hint));
  const selects = CHOICES.map(([name, label, options]) => field(label, choice(options, settings[name], (value) => { changed[name] = value; })));
  box.append(
    el("div", { class: "buttons" }, el("button", { type: "button", class: settings.enabled ? "" : "primary", on: { click: toggle } }, settings.enabled ? "Switch off …" : "Switch on …")),
    el("form", { class: "grid-form", on: { submit: save } }, selects, inputs, el("div", { class: "buttons" }, el("button", { type: "submit", class: "primary" }, "Save …"))),
  );
  return box;
}

function rulesPanel(query, rules, live, reload) {
  const box = panel("Rules", el("p", { class: "muted" }, "No policy moves a pinned group, or gives groups to an excluded worker or takes them from it."));
  if (!session.operates) {
    box.append(el("dl", { class: "facts stacked" }, el("div", {}, el("dt", {}, "Pinned groups"), el("dd", {}, ranges(rules.pinned))), el("div", {}, el("dt", {}, "Excluded workers"), el("dd", {}, ranges(rules.excluded)))));
    return box;
  }
  const text = (numbers) => (numbers.length ? ranges(numbers, 1e6) : "");
  const pinned = el("textarea", { rows: "3", value: text(rules.pinned), placeholder: "0, 4-7" });
  const excluded = el("input", { type: "text", value: text(rules.excluded), placeholder: "2" });
  const problem = el("div");
  const save = async (event) => {
    event.preventDefault();
    set(problem);
    try {
      const about = live.front?.query ?? {};
      const body = { pinned: parseNumbers(pinned.value, about.partitions ?? 1e7), excluded: parseNumbers(excluded.value, about.workers ?? 1e6) };
      const done = await ask({ title: "Change the rules?", text: `Pinned groups: ${ranges(body.pinned)}. Excluded workers: ${ranges(body.excluded)}.`, action: "Save", required: false, act: (reason, token) => change("PUT", path(query, "rules"), { ...body, reason }, token) });
      if (done) toast("Saved.");
      if (done) reload();
    } catch (error) {
      set(problem, trouble(error));
    }
  };
  box.append(el("form", { on: { submit: save } }, field("Pinned groups", pinned, "Numbers and ranges."), field("Excluded workers", excluded, "Numbers and ranges."), problem, el("div", { class: "buttons" }, el("button", { type: "submit", class: "primary" }, "Save …"))));
  return box;
}
