// Colours that are computed: of the heat map's cells and of workers. Everything else is in style.css.

const WORKERS = ["#4e86c6", "#e8862e", "#4fa45a", "#d9545c", "#a374b8", "#35a3a0", "#d1a821", "#a0724f", "#e07ba2", "#7f8fa9"];

export const workerColour = (worker) => WORKERS[worker] ?? `hsl(${(worker * 137.508) % 360} 48% ${52 + (worker % 3) * 6}%)`;

// From nothing to hottest. Dark pages begin dark, light ones begin light: the hottest cell always stands out most.
const STOPS = {
  dark: [[16, 24, 38], [26, 48, 84], [52, 74, 138], [113, 75, 158], [184, 74, 140], [236, 99, 96], [252, 158, 70], [253, 231, 120]],
  light: [[240, 244, 249], [206, 226, 240], [150, 203, 219], [92, 170, 196], [74, 125, 182], [96, 74, 158], [122, 32, 118], [86, 8, 62]],
};

const dark = matchMedia("(prefers-color-scheme: dark)");

export const isDark = () => dark.matches;
export const onThemeChange = (handler, signal) => dark.addEventListener("change", handler, { signal });

const made = new Map();

/** 256 colours as [r, g, b] and as one number for ImageData (little endian: ABGR). */
export function heatScale(name = isDark() ? "dark" : "light") {
  if (made.has(name)) return made.get(name);
  const stops = STOPS[name];
  const rgb = Array.from({ length: 256 }, (_, level) => {
    const place = (level / 255) * (stops.length - 1);
    const low = Math.min(stops.length - 2, Math.floor(place));
    return stops[low].map((from, part) => Math.round(from + (stops[low + 1][part] - from) * (place - low)));
  });
  const scale = { rgb, packed: Uint32Array.from(rgb, ([r, g, b]) => ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0) };
  made.set(name, scale);
  return scale;
}

export const css = ([r, g, b]) => `rgb(${r} ${g} ${b})`;

/** A value of style.css, for what is drawn on a canvas. */
export const variable = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
