// A migration as a card: its protocol's steps lighting up, rows that wait, time to go, the audit, and a way to cancel.

import { ask, toast } from "/page/dialogs.js";
import { button, el, keyed, say, set, theirs } from "/page/dom.js";
import { change, path, session } from "/page/session.js";
import { BACK, reached, waveOf, words } from "/page/steps.js";
import { bytes, count, plural, ranges, seconds, time, whole } from "/page/text.js";

export function moveCard(query, first) {
  const title = el("h3");
  const chip = el("span", { class: "chip" });
  const bar = el("progress", { max: "1", "aria-label": `Progress of ${first.id}` });
  const steps = el("ol", { class: "steps" });
  const facts = el("dl", { class: "facts" });
  const message = el("p", { class: "move-note" });
  const cancel = session.operates ? button("Cancel …", () => stop(query, first.id), { class: "small", "aria-label": `Cancel ${first.id}` }) : null;
  const node = el("article", { class: "move", "data-migration": first.id }, el("div", { class: "move-head" }, title, chip, el("span", { class: "grow" }), cancel), bar, steps, facts, message);
  const drawSteps = keyed(steps, (step) => stepPart(step));
  const update = (migration) => {
    const over = migration.outcome;
    set(title, el("span", { class: "strategy" }, String(migration.strategy ?? "").toUpperCase()), ` worker ${migration.from} → worker ${migration.to}`);
    const state = over ?? (BACK.has(migration.state) ? "going back" : migration.state);
    say(chip, String(state).replaceAll("-", " "));
    chip.className = `chip ${over ? (over === "committed" ? "good" : "warn") : BACK.has(migration.state) ? "warn" : "busy"}`;
    node.classList.toggle("over", Boolean(over));
    bar.value = migration.progress ?? 0;
    drawSteps(reached(migration), (each) => each.number);
    facts.replaceChildren(...factsOf(migration));
    const last = migration.story?.at(-1)?.note;
    const note = migration.problem || (last !== migration.reason ? last : "") || "";
    set(message, theirs(note));
    message.className = `move-note ${migration.problem ? "warn-text" : "muted"}`;
    message.hidden = !note;
    if (cancel) cancel.hidden = !migration.can_be_cancelled;
  };
  return { node, update };
}

function stepPart(first) {
  const when = el("span", { class: "step-when" });
  const node = el("li", { title: first.about }, el("span", { class: "step-dot", "aria-hidden": "true" }, first.number), el("span", { class: "step-name" }, words(first.message)), when);
  return {
    node,
    update(step) {
      node.className = step.state;
      if (step.state === "current") node.setAttribute("aria-current", "step");
      else node.removeAttribute("aria-current");
      say(when, step.after_s === null ? "" : `+${step.after_s.toFixed(1)} s`);
    },
  };
}

function factsOf(migration) {
  const waves = migration.waves ?? [];
  const total = (name) => waves.reduce((sum, wave) => sum + (wave[name] ?? 0), 0);
  const wave = waveOf(migration);
  const shown = [
    ["Groups", `${plural(migration.groups.length, "group")}: ${ranges(migration.groups, 6)}`],
    waves.length > 1 || wave > 1 ? ["Wave", `${wave} (${plural(waves.filter((each) => each.state === "committed").length, "wave")} done)`] : null,
    total("rows") ? ["Packed", `${count(total("rows"))} rows, ${bytes(total("bytes"))}`] : null,
    migration.held_rows ? ["Rows held", `${whole(migration.held_rows)} wait for the state`] : null,
    migration.copied_rows ? ["Rows to both", `${whole(migration.copied_rows)} in the newest batch`] : null,
    ["Time to go", timeToGo(migration)],
    ["Audit", audit(migration.audit)],
    ["Requested", [theirs(migration.by || "balancer"), migration.reason ? [": ", theirs(migration.reason)] : null]],
  ].filter(Boolean);
  return shown.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)));
}

function timeToGo(migration) {
  if (migration.outcome) return `ended ${time(migration.ended_ms)}, took ${seconds((migration.ended_ms - migration.created_ms) / 1000)}`;
  if (migration.eta_s !== null && migration.eta_s !== undefined) return `about ${seconds(migration.eta_s)}`;
  return migration.waits_for_event_time ? "waits for event time" : "not known yet";
}

function audit(verdict) {
  if (!verdict) return "–";
  const problems = verdict.problems ?? [];
  if (verdict.clean && !verdict.checked_rows) return el("span", { class: "muted" }, "nothing to check yet");
  if (verdict.clean) return el("span", { class: "good-text" }, `✓ lost 0, doubled 0; ${count(verdict.checked_rows)} rows checked`);
  const bad = verdict.lost > 0 || verdict.doubled > 0 || problems.length > 0;
  const unchecked = verdict.unchecked_batches ? `; ${plural(verdict.unchecked_batches, "batch", "batches")} unchecked` : "";
  const soFar = verdict.finished ? "" : " so far";
  return el("span", { class: bad ? "bad-text" : "muted" }, `lost ${whole(verdict.lost)}, doubled ${whole(verdict.doubled)}${soFar}; ${count(verdict.checked_rows)} rows checked${unchecked}`, problems.length ? [" ", theirs(problems[0])] : null);
}

async function stop(query, id) {
  const done = await ask({
    title: "Cancel this move?",
    text: `${id} goes back to where it began. Rows are neither lost nor doubled by this.`,
    action: "Cancel the move",
    danger: true,
    required: false,
    act: (reason, token) => change("POST", path(query, "migrations", id, "cancel"), { reason }, token),
  });
  if (done) toast("The move is being taken back.");
}
