// What the heat map shows, without drawing: columns of time, rows of groups, who owned what when. Pure.

export const LOAD_UNIT = 10_000;
const COLUMNS_MAX = 400;

export class HeatModel {
  constructor(partitions) {
    this.partitions = partitions;
    this.columns = []; // {at_ms, ratio, batch_ms, rows_per_s, loads, owners}, oldest first
    this.moves = [];
    this.step_ms = 10_000;
    this.peak = 1;
    this.#sums = new Float64Array(partitions); // of each group over all columns: an update adds one column to it
  }

  #sums;
  #byOwner = new WeakMap(); // owners -> layout

  /** A document of GET history: owners are null where they are as in the column before. */
  take(document) {
    this.step_ms = (document.step_s ?? 10) * 1000;
    this.moves = document.moves ?? [];
    let owners = null;
    this.columns = [];
    this.#sums.fill(0);
    for (const column of document.columns ?? []) {
      owners = column.owners ?? owners;
      if (owners && column.loads) this.#push({ ...column, owners });
    }
    this.#measure();
  }

  /** The load as it is now: replaces the newest column until that has lasted for a step. */
  now(front) {
    if (!front.loads?.length || !front.owners?.length) return;
    const last = this.columns.at(-1);
    const owners = last && same(last.owners, front.owners) ? last.owners : front.owners;
    const newest = front.batches?.at(-1);
    const column = { at_ms: front.at_ms, ratio: front.imbalance?.ratio ?? null, batch_ms: newest?.[2] ?? null, rows_per_s: newest?.[3] ?? null, loads: front.loads, owners, live: true };
    if (last?.live && front.at_ms - last.begun_ms < this.step_ms && owners === last.owners) {
      this.#add(this.columns.pop().loads, -1);
      this.#push({ ...column, begun_ms: last.begun_ms, at_ms: last.begun_ms });
    } else {
      this.#push({ ...column, begun_ms: front.at_ms });
    }
    this.#measure();
  }

  #push(column) {
    this.columns.push({ ...column, top: top(column.loads) });
    this.#add(column.loads, 1);
    if (this.columns.length > COLUMNS_MAX) this.#add(this.columns.shift().loads, -1);
  }

  #add(loads, sign) {
    const count = Math.min(loads.length, this.#sums.length);
    for (let group = 0; group < count; group += 1) this.#sums[group] += sign * loads[group];
  }

  #measure() {
    this.peak = Math.max(1, ...this.columns.map((column) => column.top));
  }

  /** Rows of the groups that one worker owns now, or of all. */
  shown(worker = null) {
    const groups = Array.from({ length: this.partitions }, (_, group) => group);
    const owners = this.columns.at(-1)?.owners;
    return worker === null || !owners ? groups : groups.filter((group) => owners[group] === worker);
  }

  /** For each column: group -> row, and row -> group. Columns with the same owners share a layout. */
  layouts(order, worker = null) {
    const groups = this.shown(worker);
    if (order === "load") {
      const heat = this.#sums;
      const rows = layout(groups.sort((a, b) => heat[b] - heat[a] || a - b), this.partitions);
      return this.columns.map(() => rows);
    }
    const kept = worker === null ? this.#byOwner : new Map();
    return this.columns.map(({ owners }) => {
      if (!kept.has(owners)) kept.set(owners, layout(byOwner(groups, owners), this.partitions, owners));
      return kept.get(owners);
    });
  }

  /** Groups that changed hands between one column and the next: [{column, from, to, groups}]. */
  changes() {
    const found = [];
    for (let at = 1; at < this.columns.length; at += 1) {
      const [before, after] = [this.columns[at - 1].owners, this.columns[at].owners];
      if (before === after) continue;
      const pairs = new Map();
      for (let group = 0; group < this.partitions; group += 1) {
        if (before[group] === after[group]) continue;
        const key = `${before[group]}>${after[group]}`;
        if (!pairs.has(key)) pairs.set(key, { column: at, from: before[group], to: after[group], groups: [] });
        pairs.get(key).groups.push(group);
      }
      found.push(...pairs.values());
    }
    return found;
  }

  /** Levels of colour 0 to 255 for each code of a load, on a log scale up to the peak. */
  levels() {
    const steep = 150 / this.peak;
    const full = Math.log1p(steep * this.peak);
    return Uint8Array.from({ length: 256 }, (_, step) => (step ? Math.min(255, 20 + Math.round((235 * Math.log1p(steep * loadOf(step))) / full)) : 0));
  }
}

// Loads as steps of a log scale: taken once for each column, so that drawing has no logarithm in it.
const FINEST = 100;
const SCALE = Math.log1p(LOAD_UNIT * FINEST) / 255;

export const code = (load) => Math.min(255, Math.round(Math.log1p(Math.max(0, load) * FINEST) / SCALE));

const loadOf = (step) => Math.expm1(step * SCALE) / FINEST;

export function codesOf(column) {
  column.codes ??= Uint8Array.from(column.loads, code);
  return column.codes;
}

function byOwner(groups, owners) {
  return groups.slice().sort((a, b) => owners[a] - owners[b] || a - b);
}

function layout(groups, partitions, owners = null) {
  const groupOf = Int32Array.from(groups);
  const rowOf = new Int32Array(partitions).fill(-1);
  groupOf.forEach((group, row) => {
    rowOf[group] = row;
  });
  const bands = [];
  if (owners) {
    groupOf.forEach((group, row) => {
      const last = bands.at(-1);
      if (last?.worker === owners[group]) last.end = row + 1;
      else bands.push({ worker: owners[group], start: row, end: row + 1 });
    });
  }
  return { rowOf, groupOf, bands, rows: groupOf.length };
}

function same(one, other) {
  if (one === other) return true;
  if (one.length !== other.length) return false;
  for (let at = 0; at < one.length; at += 1) if (one[at] !== other[at]) return false;
  return true;
}

function top(loads) {
  let most = 0;
  for (let at = 0; at < loads.length; at += 1) if (loads[at] > most) most = loads[at];
  return most;
}
