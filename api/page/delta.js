// The front document and its deltas. Pure: no network, no document object model.

const EVENTS_MAX = 50;
const GROWING = { batches: 300, events: EVENTS_MAX, marks: 200 }; // lists that grow at their end, and how many are kept

/** The document after a delta; null where the delta does not follow it, so that the whole must be asked for. */
export function applied(front, delta) {
  if (!front || delta.seq !== front.seq + 1) return null;
  const next = { ...front, ...(delta.set ?? {}), seq: delta.seq, at_ms: delta.at_ms };
  for (const name of ["owners", "loads"]) {
    if (!delta[name]?.length) continue;
    next[name] = next[name].slice();
    for (const [group, value] of delta[name]) next[name][group] = value;
  }
  for (const [name, kept] of Object.entries(GROWING)) {
    if (delta[name]?.length) next[name] = [...(next[name] ?? []), ...delta[name]].slice(-kept);
  }
  return next;
}

/** Each event once, oldest first: by id, since clocks of those who write them differ. */
export function newest(events, most = EVENTS_MAX) {
  const byId = new Map(events.map((each) => [each.id, each]));
  return [...byId.values()].sort((a, b) => order(a.id, b.id)).slice(-most);
}

function order(one, other) {
  const [a, b] = [one, other].map((id) => String(id).split("-").map(Number));
  return a[0] - b[0] || a[1] - b[1];
}

/** Server-Sent Events out of a stream of text. Feed it chunks; it returns the events that are complete. */
export class EventParser {
  #rest = "";

  feed(chunk) {
    this.#rest += chunk;
    const blocks = this.#rest.split(/\r?\n\r?\n/);
    this.#rest = blocks.pop();
    return blocks.map(parsed).filter(Boolean);
  }
}

function parsed(block) {
  const event = { event: "message", data: "", id: "" };
  const data = [];
  for (const line of block.split(/\r?\n/)) {
    const colon = line.indexOf(":");
    if (colon === 0 || line === "") continue;
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (name === "data") data.push(value);
    else if (name === "event" || name === "id") event[name] = value;
  }
  if (!data.length && event.event === "message") return null;
  return { ...event, data: data.join("\n") };
}
