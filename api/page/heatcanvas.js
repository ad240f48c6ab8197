// Draws a HeatModel on a canvas: cells, bands of workers, arrows of moves, and a cursor on a canvas above it.

import { css, heatScale, variable, workerColour } from "/page/colours.js";
import { el } from "/page/dom.js";
import { codesOf } from "/page/heatmodel.js";
import { hourMinute } from "/page/text.js";

const MARGIN = { left: 62, right: 10, top: 8, bottom: 24 };
const ARROWS_MAX = 10; // of one pair of workers in one column; a thousand arrows would say less

export class HeatCanvas {
  #off = document.createElement("canvas");
  #place = null;

  constructor(height) {
    this.cells = el("canvas", { class: "heat-cells", "aria-hidden": "true" });
    this.over = el("canvas", { class: "heat-over", tabindex: "0", role: "application", "aria-roledescription": "heat map" });
    this.node = el("div", { class: "heat-canvas", vars: { "--heat-height": `${height}px` } }, this.cells, this.over);
  }

  /** Milliseconds that drawing took. */
  draw(model, order, worker) {
    const begun = performance.now();
    const place = this.#measure(model);
    place.layouts = model.layouts(order, worker);
    place.order = order;
    place.model = model;
    this.#place = place;
    const context = fitted(this.cells, place);
    context.fillStyle = css(heatScale().rgb[0]);
    context.fillRect(place.left, place.top, place.width, place.height);
    if (model.columns.length) {
      this.#cells(context, place);
      if (order === "owner") bands(context, place);
      arrows(context, place);
      axes(context, place);
    }
    this.cursor(null);
    return performance.now() - begun;
  }

  #measure(model) {
    const box = this.node.getBoundingClientRect();
    const [full, tall] = [Math.max(320, box.width), Math.max(160, box.height)];
    const times = model.columns.map((column) => column.at_ms);
    const end = (times.at(-1) ?? 0) + model.step_ms;
    const begin = Math.min(times[0] ?? 0, end - model.step_ms * 12);
    const width = full - MARGIN.left - MARGIN.right;
    const x = (at_ms) => MARGIN.left + ((at_ms - begin) / (end - begin || 1)) * width;
    const spans = times.map((at, index) => [x(at), x(Math.min(times[index + 1] ?? end, at + 3 * model.step_ms))]);
    return { full, tall, left: MARGIN.left, top: MARGIN.top, width, height: tall - MARGIN.top - MARGIN.bottom, begin, end, x, spans };
  }

  // Where there are more groups than pixels, a pixel shows the hottest of its groups: a hot spot never vanishes.
  #cells(context, place) {
    const { model, layouts } = place;
    const columns = model.columns.length;
    const rows = Math.max(1, layouts.at(-1).rows);
    const high = Math.min(rows, Math.max(1, Math.round(place.height * devicePixelRatio)));
    const levels = model.levels();
    const grid = new Uint8Array(columns * high);
    const cellOf = Int32Array.from({ length: rows }, (_, row) => Math.floor((row * high) / rows) * columns);
    for (let column = 0; column < columns; column += 1) {
      const codes = codesOf(model.columns[column]);
      const { groupOf } = layouts[column];
      for (let row = 0; row < groupOf.length; row += 1) {
        const cell = cellOf[row] + column;
        const level = levels[codes[groupOf[row]]];
        if (level > grid[cell]) grid[cell] = level;
      }
    }
    Object.assign(this.#off, { width: columns, height: high });
    const drawn = this.#off.getContext("2d");
    const image = drawn.createImageData(columns, high);
    const pixels = new Uint32Array(image.data.buffer);
    const { packed } = heatScale();
    for (let at = 0; at < grid.length; at += 1) pixels[at] = packed[grid[at]];
    drawn.putImageData(image, 0, 0);
    context.imageSmoothingEnabled = false;
    for (let column = 0; column < columns; column += 1) {
      const [from, to] = place.spans[column];
      context.drawImage(this.#off, column, 0, 1, high, from, place.top, Math.max(1, to - from + 0.35), place.height);
    }
    if (place.height / rows >= 5) {
      context.fillStyle = variable("--heat-gap");
      for (let row = 1; row < rows; row += 1) context.fillRect(place.left, place.top + (row * place.height) / rows - 0.5, place.width, 0.6);
    }
  }

  /** The cell under a point of the canvas, or null. */
  at(x, y) {
    const place = this.#place;
    if (!place?.model.columns.length || y < place.top || y >= place.top + place.height) return null;
    let column = place.spans.findIndex(([from, to]) => x >= from && x < to);
    if (column < 0) return null;
    const { rows, groupOf } = place.layouts[column];
    const row = Math.floor(((y - place.top) / place.height) * rows);
    return row < rows ? { column, row, group: groupOf[row] } : null;
  }

  /** A cell, kept inside the map. */
  cell(column, row) {
    const place = this.#place;
    if (!place?.model.columns.length) return null;
    const inside = Math.max(0, Math.min(place.model.columns.length - 1, column));
    const { rows, groupOf } = place.layouts[inside];
    if (!rows) return null;
    const at = Math.max(0, Math.min(rows - 1, row));
    return { column: inside, row: at, group: groupOf[at] };
  }

  cursor(cell) {
    const place = this.#place;
    const context = fitted(this.over, place);
    if (!cell) return null;
    const [from, to] = place.spans[cell.column];
    const { rows } = place.layouts[cell.column];
    const high = Math.max(3, place.height / rows);
    const y = place.top + ((cell.row + 0.5) * place.height) / rows - high / 2;
    context.fillStyle = variable("--heat-cross");
    context.fillRect(place.left, y + high / 2 - 0.5, place.width, 1);
    context.fillRect((from + to) / 2 - 0.5, place.top, 1, place.height);
    context.lineWidth = 2;
    context.strokeStyle = variable("--ink");
    context.strokeRect(from - 1, y - 1, Math.max(4, to - from) + 2, high + 2);
    return { x: (from + to) / 2, y: y + high / 2 };
  }
}

function fitted(canvas, place) {
  const scale = devicePixelRatio || 1;
  const [width, height] = [Math.round(place.full * scale), Math.round(place.tall * scale)];
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, place.full, place.tall);
  return context;
}

/** Who owns which rows: lines between the workers through time, and their names at the left, as of now. */
function bands(context, place) {
  const { layouts, spans } = place;
  const y = (row, rows) => place.top + (row * place.height) / rows;
  context.strokeStyle = variable("--heat-band");
  context.lineWidth = 1.4;
  context.beginPath();
  let before = null;
  layouts.forEach((layout, column) => {
    const [from, to] = spans[column];
    for (const band of layout.bands.slice(1)) {
      const at = y(band.start, layout.rows);
      context.moveTo(from, at);
      context.lineTo(to, at);
      const was = before?.bands.find((each) => each.worker === band.worker);
      if (was && was.start !== band.start && was.start > 0) {
        context.moveTo(from, y(was.start, before.rows));
        context.lineTo(from, at);
      }
    }
    before = layout;
  });
  context.stroke();
  context.font = "600 11px system-ui, sans-serif";
  context.textBaseline = "middle";
  context.textAlign = "right";
  let free = -Infinity;
  // Named as they stand at the left edge, where the names are.
  for (const band of layouts[0].bands) {
    const [top, bottom] = [y(band.start, layouts[0].rows), y(band.end, layouts[0].rows)];
    context.fillStyle = workerColour(band.worker);
    context.fillRect(place.left - 8, top + 0.7, 5, Math.max(1, bottom - top - 1.4));
    const middle = (top + bottom) / 2;
    if (middle - free < 12) continue;
    free = middle;
    context.fillStyle = variable("--ink");
    context.fillText(`W ${band.worker}`, place.left - 13, middle);
  }
}

/** Moves: from the row that a group left to the row where it arrived. */
function arrows(context, place) {
  const { model, layouts, spans, order } = place;
  const row = (layout, group) => place.top + ((layout.rowOf[group] + 0.5) * place.height) / layout.rows;
  for (const change of model.changes()) {
    const x = spans[change.column][0];
    const [before, after] = [layouts[change.column - 1], layouts[change.column]];
    const groups = spread(change.groups.filter((group) => before.rowOf[group] >= 0 && after.rowOf[group] >= 0), ARROWS_MAX);
    for (const [at, group] of groups.entries()) {
      if (order === "owner") arrow(context, x - 12, row(before, group), x + 16 + (at % 3) * 7, row(after, group), workerColour(change.to));
      else mark(context, x, row(after, group), workerColour(change.to));
    }
  }
}

function spread(items, most) {
  if (items.length <= most) return items;
  return Array.from({ length: most }, (_, at) => items[Math.floor((at * (items.length - 1)) / (most - 1))]);
}

function arrow(context, x1, y1, x2, y2, colour) {
  const bend = Math.max(10, Math.min(34, Math.abs(y2 - y1) / 5));
  const path = new Path2D();
  path.moveTo(x1, y1);
  path.bezierCurveTo(x1 + bend, y1, x2 - bend - 4, y2, x2, y2);
  const head = new Path2D();
  head.moveTo(x2 + 5, y2);
  head.lineTo(x2 - 3, y2 - 3.6);
  head.lineTo(x2 - 3, y2 + 3.6);
  head.closePath();
  context.lineWidth = 3.4;
  context.strokeStyle = variable("--heat-halo");
  context.stroke(path);
  context.stroke(head);
  context.lineWidth = 1.5;
  context.strokeStyle = variable("--heat-arrow");
  context.stroke(path);
  context.fillStyle = variable("--heat-arrow");
  context.fill(head);
  context.beginPath();
  context.arc(x1, y1, 2.4, 0, 7);
  context.fillStyle = colour;
  context.fill();
}

function mark(context, x, y, colour) {
  context.beginPath();
  context.moveTo(x, y - 5);
  context.lineTo(x + 5, y);
  context.lineTo(x, y + 5);
  context.lineTo(x - 5, y);
  context.closePath();
  context.fillStyle = colour;
  context.fill();
  context.lineWidth = 1.4;
  context.strokeStyle = variable("--heat-halo");
  context.stroke();
}

function axes(context, place) {
  context.font = "11px system-ui, sans-serif";
  context.fillStyle = variable("--muted");
  context.textBaseline = "top";
  context.textAlign = "center";
  const bottom = place.top + place.height;
  for (const at of ticks(place.begin, place.end, place.width / 90)) {
    const x = place.x(at);
    if (x < place.left + 14 || x > place.left + place.width - 14) continue;
    context.fillRect(x - 0.5, bottom, 1, 4);
    context.fillText(hourMinute(at), x, bottom + 7);
  }
}

/** Round moments between two times, at most so many. */
export function ticks(begin, end, most) {
  const steps = [1, 2, 5, 10, 15, 30, 60, 120, 180, 360].map((minutes) => minutes * 60_000);
  const step = steps.find((each) => (end - begin) / each <= most) ?? steps.at(-1);
  const found = [];
  for (let at = Math.ceil(begin / step) * step; at < end; at += step) found.push(at);
  return found;
}
