// What would be moved, what it would bring and cost; what if; do it. Its address can be sent to a colleague.

import { beforeAfter } from "/page/bars.js";
import { ask, toast, trouble } from "/page/dialogs.js";
import { button, choice, el, field, link, panel, say, set, table, theirs } from "/page/dom.js";
import { address, readdress } from "/page/router.js";
import { change, get, newToken, path, session } from "/page/session.js";
import { ago, bytes, count, dateTime, ms, parseNumbers, percent, plural, ranges, ratio, seconds, whole } from "/page/text.js";

const WAIT_MS = 350; // after the last change of a slider
const TOO_MANY_MS = 2000;
const POLICIES = [["level", "level: lower the largest load"], ["pairwise", "pairwise: as in the papers"], ["drain", "drain: empty a worker"], ["fill", "fill: give a worker its share"]];
const STRATEGIES = [["auto", "auto: the cheaper one"], ["mslb", "MSLB: ship the state"], ["ptlb", "PTLB: run in parallel"]];
const NO_LIMIT = Number.MAX_SAFE_INTEGER; // more bytes than there are
// Sliders go through these; the last place of each asks for nothing, so that the balancer's own setting holds.
const BUDGETS = [...[1, 2, 5, 10, 20, 50, 100, 200, 500].map((mb) => mb * 1e6), 1e9, 2e9, 5e9, 1e10, NO_LIMIT, null];
const PAUSES = [20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, null];

export function proposalsView({ query, live, signal, id, params }) {
  const wanted = { policy: params.get("policy") ?? "level", worker: params.get("worker") === null ? null : Number(params.get("worker")), strategy: "auto", budget: null, pause: null, excluded: new Set() };
  const result = el("div", { class: "proposal", "aria-live": "polite", "aria-busy": "false" });
  const older = el("div");
  const list = panel("Proposals of the last hour", older);
  const form = whatIf(live, wanted, () => later());
  const hand = session.operates ? byHand(query) : null;
  const node = el("div", { class: "view proposals" }, el("h1", {}, "Proposal"), el("div", { class: "columns wide-left" }, el("div", {}, result), el("div", {}, form.node, hand?.node, list)));
  let timer = null;
  let newest = 0;
  let shown = null;

  function later() {
    clearTimeout(timer);
    timer = setTimeout(propose, WAIT_MS);
    result.setAttribute("aria-busy", "true");
  }

  async function propose() {
    const turn = (newest += 1);
    const body = { policy: wanted.policy, strategy: wanted.strategy };
    if (wanted.policy === "drain" || wanted.policy === "fill") body.worker = wanted.worker ?? 0;
    if (wanted.pause !== null) body.max_pause = wanted.pause;
    if (wanted.budget !== null) body.max_moved_bytes = wanted.budget;
    if (wanted.excluded.size) body.excluded = [...wanted.excluded].sort((a, b) => a - b);
    try {
      const proposal = await change("POST", path(query, "proposals"), body);
      if (turn !== newest || signal.aborted) return;
      readdress(address(query, "proposals", proposal.id));
      draw(proposal);
      listOlder();
    } catch (error) {
      if (turn !== newest || signal.aborted) return;
      set(result, trouble(error));
      if (error.status === 429) timer = setTimeout(propose, TOO_MANY_MS);
    }
    if (turn === newest) result.setAttribute("aria-busy", "false");
  }

  async function open(name) {
    try {
      draw(await get(path(query, "proposals", name), signal));
    } catch (error) {
      if (error.name !== "AbortError") set(result, trouble(error), button("Propose anew", propose, { class: "primary" }));
    }
  }

  function draw(proposal) {
    shown = proposal;
    set(result, proposalPanels(query, proposal, execute));
  }

  async function execute(reason, token) {
    const rebalance = await change("POST", path(query, "rebalances"), { proposal: shown.id, reason }, token);
    toast(`Rebalance ${rebalance.id} is requested.`);
    location.hash = address(query);
    tellIfRefused(query, rebalance.id);
  }

  async function listOlder() {
    try {
      const { proposals } = await get(path(query, "proposals"), signal);
      set(older, proposals.length ? el("ul", { class: "plain" }, proposals.slice(0, 12).map((each) => el("li", {}, link(address(query, "proposals", each.id), each.id), el("span", { class: "muted" }, ` ${each.policy}, ${plural(each.forecast?.groups ?? 0, "group")}, ${ratio(each.forecast?.ratio_before)} → ${ratio(each.forecast?.ratio_after)}, ${ago(each.made_at_ms)}`)))) : el("p", { class: "empty" }, "None."));
    } catch (error) {
      if (error.name !== "AbortError") set(older, trouble(error));
    }
  }

  if (id) open(id);
  else propose();
  listOlder();
  signal.addEventListener("abort", () => clearTimeout(timer));
  return { node, title: "Proposal", update: () => [form, hand].forEach((each) => each?.update(live.front)) };
}

/** The leader checks a request again before it begins: a request that was accepted may be refused a moment later. */
async function tellIfRefused(query, id) {
  for (let wait = 500; wait < 20_000; wait *= 2) {
    await new Promise((done) => setTimeout(done, wait));
    const record = await get(path(query, "rebalances", id)).catch(() => null);
    if (record?.refusal) return toast(`Refused: ${record.refusal.field} ${record.refusal.problem}. ${record.refusal.remedy ?? ""}`);
    if (record && record.state !== "requested") return;
  }
}

/** The sliders. Every change proposes anew; nothing moves by it. */
function whatIf(live, wanted, changed) {
  const worker = el("select", { on: { change: (event) => { wanted.worker = Number(event.target.value); changed(); } } });
  const workerField = field("Worker", worker);
  const need = () => { workerField.hidden = wanted.policy !== "drain" && wanted.policy !== "fill"; };
  const excluded = el("fieldset", { class: "checks" }, el("legend", {}, "Leave these workers out"));
  const policy = choice(POLICIES, wanted.policy, (value) => { wanted.policy = value; wanted.worker ??= 0; need(); changed(); });
  const strategy = choice(STRATEGIES, wanted.strategy, (value) => { wanted.strategy = value; changed(); });
  const node = panel("What if …",
    el("p", { class: "muted" }, session.operates ? "Each change makes a new proposal. Nothing is moved by it." : "Each change makes a new proposal. Nothing is moved by it; to execute one takes a key with the scope operate."),
    field("Policy", policy), workerField, field("Strategy", strategy),
    slider("Budget", "at most this much state is moved", BUDGETS, (value) => (value === null ? "the balancer’s own" : value === NO_LIMIT ? "no limit" : bytes(value)), (value) => { wanted.budget = value; changed(); }),
    slider("Longest pause", "a batch may take this much longer", PAUSES, (value) => (value === null ? "the balancer’s own" : ms(value)), (value) => { wanted.pause = value; changed(); }),
    excluded);
  let known = 0;
  need();
  return {
    node,
    update(front) {
      const workers = front?.workers ?? [];
      if (workers.length === known) return;
      known = workers.length;
      set(worker, workers.map((each) => el("option", { value: String(each.worker), selected: each.worker === wanted.worker }, `worker ${each.worker}`)));
      set(excluded, el("legend", {}, "Leave these workers out"), workers.map((each) => el("label", {}, el("input", { type: "checkbox", on: { change: (event) => { wanted.excluded[event.target.checked ? "add" : "delete"](each.worker); changed(); } } }), ` ${each.worker}`)));
    },
  };
}

/** Certain groups, or a share of a worker's load, without asking a policy. */
function byHand(query) {
  const [from, to] = [el("select"), el("select")];
  const groups = el("input", { type: "text", placeholder: "4, 9, 17-20", autocomplete: "off" });
  const amount = el("input", { type: "number", min: "0.1", max: "100", step: "any", placeholder: "25" });
  const strategy = choice(STRATEGIES, "auto", () => {});
  const problem = el("div");
  let front = null;
  const submit = async (event) => {
    event.preventDefault();
    set(problem);
    try {
      const body = { from: Number(from.value), to: Number(to.value), strategy: strategy.value };
      if (groups.value.trim()) body.groups = parseNumbers(groups.value, front.owners.length);
      if (amount.value) body.amount = Number(amount.value) / 100;
      const what = body.groups ? plural(body.groups.length, "group") : `${amount.value} % of the load`;
      const done = await ask({ title: "Move by hand?", text: `${what} from worker ${body.from} to worker ${body.to}.`, action: "Move", act: (reason, token) => change("POST", path(query, "rebalances"), { ...body, reason }, token) });
      if (done) location.hash = address(query);
    } catch (error) {
      set(problem, trouble(error));
    }
  };
  const node = el("details", { class: "panel" }, el("summary", {}, "Move by hand"), el("form", { on: { submit } }, el("div", { class: "grid-form" }, field("From", from), field("To", to), field("Groups", groups, "numbers and ranges; or:"), field("Share of its load (%)", amount), field("By", strategy)), problem, el("div", { class: "buttons" }, el("button", { type: "submit" }, "Move …"))));
  return {
    node,
    update(now) {
      front = now;
      const workers = now.workers ?? [];
      if (from.options.length === workers.length) return;
      for (const [select, chosen] of [[from, 0], [to, 1]]) set(select, workers.map((each) => el("option", { value: String(each.worker), selected: each.worker === chosen }, `worker ${each.worker}`)));
    },
  };
}

function slider(label, hint, values, show, change) {
  const shown = el("output", { class: "slider-value" }, show(null));
  const input = el("input", {
    type: "range", min: "0", max: String(values.length - 1), step: "1", value: String(values.length - 1), "aria-valuetext": show(null),
    on: { input: (event) => {
      const value = values[Number(event.target.value)];
      say(shown, show(value));
      event.target.setAttribute("aria-valuetext", show(value));
      change(value);
    } },
  });
  const box = field(label, input, hint);
  box.querySelector("label").append(shown);
  shown.setAttribute("for", input.id);
  return box;
}

function proposalPanels(query, proposal, execute) {
  const { forecast } = proposal;
  const moves = proposal.moves ?? [];
  const stale = proposal.stale ?? [];
  const findings = (proposal.findings ?? []).map((each) => el("div", { class: "notice warn" }, theirs(each.text)));
  const what = panel(moves.length ? `Move ${plural(forecast.groups, "group")}` : "Nothing to move",
    stale.length ? el("div", { class: "notice warn", role: "alert" }, el("strong", {}, "This proposal is stale. "), theirs(stale.join(" "))) : null,
    moves.length ? tiles(forecast) : el("p", {}, `The policy ${proposal.policy} finds nothing to move.`),
    findings,
    beforeAfter(shares(proposal)),
    el("p", { class: "legend" }, el("span", { class: "swatch before" }), "before", el("span", { class: "swatch after" }), "after", el("span", { class: "swatch mean" }), "mean"));
  what.head.append(el("span", { class: "grow" }), copyLink());
  const how = panel("How", el("p", {}, el("span", { class: "strategy" }, String(proposal.strategy).toUpperCase()), " ", theirs(proposal.explanation ?? "")), costs(proposal));
  const list = moves.length ? panel("Moves", table("Moves of this proposal", ["From", "To", "#Number", "Groups"], moves.map((each) => [`worker ${each.sender}`, `worker ${each.receiver}`, whole(each.groups.length), ranges(each.groups)]))) : null;
  const about = el("p", { class: "muted" }, `Proposal ${proposal.id}, made for epoch ${proposal.epoch} at ${dateTime(proposal.made_at_ms)}`, proposal.by ? [" by ", theirs(proposal.by)] : null, `, policy ${proposal.policy}.`);
  return [what, session.operates && moves.length ? executeForm(proposal, stale, execute) : null, how, list, about];
}

/** Shares of the total, from the answer or from the forecast's loads. */
function shares(proposal) {
  if (proposal.workers) return proposal.workers;
  const workers = proposal.forecast?.workers ?? [];
  const total = workers.reduce((sum, each) => sum + each.before, 0) || 1;
  return workers.map((each) => ({ worker: each.worker, before: each.before / total, after: each.after / total }));
}

function tiles(forecast) {
  const shown = [
    ["Imbalance", `${ratio(forecast.ratio_before)} → ${ratio(forecast.ratio_after)}`, `largest load falls by ${percent(forecast.gain, 0)}`],
    ["State to move", bytes(forecast.bytes), `${count(forecast.state_rows)} rows`],
    ["Pause", ms(forecast.pause_ms), "longest batch takes longer"],
    ["Takes", forecast.seconds === null ? "no end" : seconds(forecast.seconds), forecast.seconds === null ? "a stream is idle" : plural(forecast.waves ?? 1, "wave")],
    ["Rows twice", forecast.rows_duplicated === null ? "no end" : count(forecast.rows_duplicated), "sent to both workers"],
  ];
  return el("div", { class: "tiles" }, shown.map(([name, value, note]) => el("dl", { class: "tile" }, el("dt", {}, name), el("dd", { class: "tile-value" }, value), el("dd", { class: "tile-note" }, note))));
}

function costs(proposal) {
  const both = ["mslb", "ptlb"].filter((name) => proposal.choice?.[name]).map((name) => [name, proposal.choice[name]]);
  if (both.length < 2) return null;
  const names = [...new Set(both.flatMap(([, cost]) => Object.keys(cost)))].filter((name) => both.some(([, cost]) => typeof cost[name] === "number" || cost[name] === null));
  const show = (name, value) => (value === undefined ? "–" : value === null ? "no end" : /_ms$|^ms/.test(name) ? ms(value) : /bytes/.test(name) ? bytes(value) : /seconds|_s$/.test(name) ? seconds(value) : count(value));
  return el("details", {}, el("summary", {}, "What each strategy would cost"), table("Cost of both strategies", ["Cost", "#MSLB", "#PTLB"], names.map((name) => [name.replaceAll("_", " "), ...both.map(([, cost]) => show(name, cost[name]))])));
}

function executeForm(proposal, stale, execute) {
  const reason = el("input", { type: "text", maxlength: "500", required: true, autocomplete: "off", placeholder: "evening peak" });
  const go = el("button", { type: "submit", class: "primary", disabled: stale.length > 0 }, "Execute this proposal");
  const problem = el("div");
  const token = newToken();
  const submit = async (event) => {
    event.preventDefault();
    go.disabled = true;
    set(problem);
    try {
      await execute(reason.value.trim(), token);
    } catch (error) {
      set(problem, trouble(error));
      go.disabled = false;
    }
  };
  return el("form", { class: "panel execute", "aria-label": "Execute this proposal", on: { submit } }, field("Reason", reason, "Stored with the rebalance and in the audit log."), go, problem);
}

function copyLink() {
  return button("Copy address", async () => {
    try {
      await navigator.clipboard.writeText(location.href);
      toast("The address is copied. A colleague needs a key of their own.");
    } catch {
      toast("The browser does not allow copying: take the address from its bar.");
    }
  }, { class: "small quiet" });
}
