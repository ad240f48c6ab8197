// The shell: key, navigation, which view is open, and whether what it shows is live.

import { toast, trouble } from "/page/dialogs.js";
import { button, el, field, link, say, set, speak, theirs } from "/page/dom.js";
import { LiveQuery } from "/page/live.js";
import { address, route } from "/page/router.js";
import { forgetKey, keptKey, session, useKey, useTicket } from "/page/session.js";
import { clean, seconds } from "/page/text.js";
import { eventsView } from "/page/view-events.js";
import { frontView } from "/page/view-front.js";
import { heatView } from "/page/view-heat.js";
import { historyView } from "/page/view-history.js";
import { partitionsView } from "/page/view-partitions.js";
import { plansView } from "/page/view-plans.js";
import { proposalsView } from "/page/view-proposals.js";
import { queriesView } from "/page/view-queries.js";
import { settingsView } from "/page/view-settings.js";

const VIEWS = [
  ["front", "Overview", frontView],
  ["heat", "Heat map", heatView],
  ["proposals", "Proposal", proposalsView],
  ["plans", "Plans", plansView],
  ["partitions", "Partitions", partitionsView],
  ["history", "History", historyView],
  ["events", "Events", eventsView],
  ["settings", "Settings", settingsView],
];

const main = document.getElementById("main");
const top = document.getElementById("top");
let live = null;
let view = null;
let closing = null;

async function begin() {
  const found = /^#ticket=([\w.~-]+)$/.exec(location.hash);
  if (found) history.replaceState(null, "", "#/"); // neither the history nor a screenshot keeps it
  if (found) return enter(() => useTicket(found[1]));
  if (keptKey()) return enter(() => useKey(keptKey()));
  askForKey();
}

/** Try until the server answers: a Redis that is away for a moment must not cost anybody their key. */
async function enter(take) {
  try {
    await take();
    open();
  } catch (error) {
    if (AWAY.has(error.status)) return waitForServer(error, take);
    // A ticket that is used up in a tab that has a key from before: a page that is loaded again goes on.
    const kept = keptKey();
    if (kept && session.key !== kept) return enter(() => useKey(kept));
    askForKey(error);
  }
}

const AWAY = new Set([0, 429, 503]);
const AGAIN_MS = 2000;

function waitForServer(error, take) {
  close();
  drawTop(null);
  set(main, el("div", { class: "view welcome" }, el("div", { class: "panel" }, el("h1", {}, "Trimtab"), trouble(error), el("p", {}, "The page tries again by itself."))));
  setTimeout(() => enter(take), AGAIN_MS);
}

function askForKey(error = null) {
  if (error?.status === 401) forgetKey();
  close();
  drawTop(null);
  document.title = "Trimtab";
  const key = el("input", { type: "password", required: true, autocomplete: "off", spellcheck: "false", placeholder: "trimtab_…" });
  const problem = el("div", {}, error ? trouble(error) : null);
  const submit = async (event) => {
    event.preventDefault();
    set(problem);
    try {
      await useKey(key.value.trim());
      open();
    } catch (failure) {
      if (!AWAY.has(failure.status)) forgetKey();
      set(problem, trouble(failure));
      key.focus();
    }
  };
  set(main, el("div", { class: "view welcome" }, el("form", { class: "panel", on: { submit } },
    el("h1", {}, "Trimtab"),
    el("p", {}, "This page needs a key. It stays in this browser tab and is forgotten when you close it."),
    field("Key", key, "Make one: trimtab keys create --scope read --name NAME"),
    problem,
    el("div", { class: "buttons" }, el("button", { type: "submit", class: "primary" }, "Open")))));
  key.focus();
}

function close() {
  closing?.abort();
  closing = null;
  view = null;
}

function follow(query) {
  if (live?.query === query && live.status !== "refused") return;
  live?.close();
  lost_ms = null;
  live = query === null ? null : new LiveQuery(query);
  live?.addEventListener("front", () => {
    drawTop(route());
    refresh();
    notePainted(live);
  });
  live?.addEventListener("status", () => status());
}

function open() {
  const place = route();
  close();
  closing = new AbortController();
  follow(place.query);
  const known = VIEWS.find(([name]) => name === place.view) ?? VIEWS[0];
  const context = { ...place, live, signal: closing.signal };
  view = place.query === null ? queriesView(context) : known[2](context);
  document.title = `${view.title} · ${clean(place.query ?? "Trimtab")}`;
  drawTop(place);
  set(main, notLive, view.node);
  main.classList.toggle("waits", place.query !== null && !live.front);
  refresh();
  status();
}

function refresh() {
  if (!live?.front) return;
  main.classList.remove("waits");
  view?.update?.(live.front);
  main.dataset.updated = String(live.front.seq);
}

/** How long the newest message took, from its bytes to the frame that shows it: tests read it. */
function notePainted({ front: { seq }, received_ms }) {
  requestAnimationFrame(() => {
    const painted = new MessageChannel();
    painted.port1.onmessage = () => {
      main.dataset.spent = (performance.now() - received_ms).toFixed(2);
      main.dataset.painted = String(seq);
    };
    painted.port2.postMessage(null); // after the frame: what is to be painted comes first
  });
}

const pill = el("span", { class: "pill" });
const notLive = el("div", { class: "not-live", hidden: true });
const name = el("span");
const state = el("span");
let drawn = "";
let lost_ms = null; // since when nothing is heard
const PATIENCE_MS = 2500;

function drawTop(place) {
  const text = JSON.stringify([place?.query, place?.view, session.name, session.scope]);
  if (text === drawn) return;
  drawn = text;
  const tabs = place?.query ? VIEWS.map(([view, label]) => link(view === "front" ? address(place.query) : address(place.query, view), label, { "aria-current": view === place.view ? "page" : null })) : [];
  set(
    top,
    el("div", { class: "bar-top" },
      el("a", { class: "brand", href: "#/", "aria-label": "Trimtab, all queries" }, el("img", { src: "/page/logo.svg", alt: "", width: "26", height: "26" }), el("span", {}, "Trimtab")),
      place?.query ? el("span", { class: "query-name" }, theirs(place.query)) : null,
      place?.query ? pill : null,
      el("span", { class: "grow" }),
      session.key ? el("span", { class: "who" }, theirs(session.name), el("span", { class: "chip" }, session.scope)) : null,
      session.key ? button("Forget key", () => { live?.close(); live = null; forgetKey(); askForKey(); }, { class: "small quiet" }) : null),
    tabs.length ? el("nav", { "aria-label": "Views of this query" }, tabs) : null,
  );
}

/** Whether the page is live, in words; and how old it is where it is not. */
function status() {
  if (!live) return;
  const good = live.status === "live";
  lost_ms = good ? null : (lost_ms ?? Date.now());
  const stopped = good && live.front?.query?.running === false;
  pill.className = `pill ${good ? (stopped ? "warn" : "good") : live.status === "refused" ? "bad" : "warn"}`;
  say(pill, good ? (stopped ? "query stopped" : "live") : live.status === "refused" ? "not live" : live.front ? "reconnecting" : "connecting");
  const refused = live.status === "refused";
  const brief = Date.now() - (lost_ms ?? Date.now()) < PATIENCE_MS; // a stream that ends is taken up again at once
  notLive.hidden = good || (!refused && (brief || (!live.front && !live.problem)));
  if (refused && live.problem?.status === 401) return askForKey(live.problem);
  if (notLive.hidden) return;
  const old = live.front ? ` What you see is from ${seconds(Math.max(0, (Date.now() - live.front.at_ms) / 1000))} ago.` : "";
  const next = live.status === "waiting" ? ` Next try in ${Math.max(0, Math.ceil((live.retry_ms - Date.now()) / 1000))} s.` : "";
  if (!notLive.firstChild) set(notLive, name, state, button("Try now", () => live?.again(), { class: "small" }));
  set(name, el("strong", {}, "Not live. "), live.problem ? theirs(live.problem.message) : "The connection has ended.");
  say(state, `${old}${next}`);
}

setInterval(() => live && live.status !== "live" && status(), 1000);
addEventListener("hashchange", () => {
  if (location.hash.startsWith("#ticket=")) return begin();
  if (!session.key) return;
  open();
  main.focus({ preventScroll: true });
  scrollTo(0, 0);
  speak(view.title);
});
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault(); // the fragment is the address of the view
  main.focus();
});
addEventListener("resize", () => live?.front && view?.resize?.());
addEventListener("online", () => live?.again());
addEventListener("unhandledrejection", (event) => toast(event.reason?.message ?? "Something went wrong."));
begin();
