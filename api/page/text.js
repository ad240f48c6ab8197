// Numbers and texts as people read them. Pure functions.

// Characters that draw nothing, or that turn the order of what stands around them: shown by their code instead.
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]|\udb40[\udc00-\udc7f]/g;

/** Text from anybody, safe to look at: every character of it can be seen, none changes the order of others. */
export function clean(value) {
  return String(value).replace(UNSEEN, (found) => `⟨U+${found.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
}

const plain = new Intl.NumberFormat("en");
const NOTHING = "–";
const GAP = "\u00a0"; // a number stays with its unit

const known = (value) => value !== null && value !== undefined && Number.isFinite(value);

export const whole = (value) => (known(value) ? plain.format(Math.round(value)) : NOTHING);

function scaled(value, base, units) {
  let unit = 0;
  let number = value;
  while (Math.abs(number) >= base && unit < units.length - 1) {
    number /= base;
    unit += 1;
  }
  const digits = unit === 0 || Math.abs(number) >= 100 ? 0 : Math.abs(number) >= 10 ? 1 : 2;
  return `${number.toFixed(digits)}${units[unit] ? `${GAP}${units[unit]}` : ""}`;
}

export const count = (value) => (known(value) ? (Math.abs(value) < 10000 ? whole(value) : scaled(value, 1000, ["", "k", "M", "G", "T"])) : NOTHING);
export const bytes = (value) => (known(value) ? scaled(value, 1000, ["B", "kB", "MB", "GB", "TB"]) : NOTHING);
export const rate = (value) => (known(value) ? `${count(value)}/s` : NOTHING);
export const percent = (value, digits = 1) => (known(value) ? `${(value * 100).toFixed(digits)}${GAP}%` : NOTHING);
export const ratio = (value) => (known(value) ? value.toFixed(2) : NOTHING);

export function ms(value) {
  if (!known(value)) return NOTHING;
  return value < 1000 ? `${Math.round(value)}${GAP}ms` : seconds(value / 1000);
}

export function seconds(value) {
  if (!known(value)) return NOTHING;
  if (value < 10) return `${value.toFixed(1)}${GAP}s`;
  if (value < 120) return `${Math.round(value)}${GAP}s`;
  if (value < 7200) return `${Math.round(value / 60)}${GAP}min`;
  return `${(value / 3600).toFixed(1)}${GAP}h`;
}

export const ago = (at_ms, now_ms = Date.now()) => (known(at_ms) ? `${seconds(Math.max(0, (now_ms - at_ms) / 1000))} ago` : NOTHING);

const clock = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const minute = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const dated = new Intl.DateTimeFormat("en-GB", { year: "numeric", month: "short", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit" });

export const time = (at_ms) => (known(at_ms) ? clock.format(at_ms) : NOTHING);
export const hourMinute = (at_ms) => (known(at_ms) ? minute.format(at_ms) : NOTHING);
export const dateTime = (at_ms) => (known(at_ms) ? dated.format(at_ms) : NOTHING);

/** Group numbers, runs of them shortened: 1–4, 9. */
export function ranges(numbers, most = 12) {
  const sorted = [...numbers].sort((a, b) => a - b);
  const parts = [];
  for (let i = 0; i < sorted.length; ) {
    let end = i;
    while (end + 1 < sorted.length && sorted[end + 1] === sorted[end] + 1) end += 1;
    parts.push(end > i + 1 ? `${sorted[i]}–${sorted[end]}` : end > i ? `${sorted[i]}, ${sorted[end]}` : `${sorted[i]}`);
    i = end + 1;
  }
  return parts.length > most ? `${parts.slice(0, most).join(", ")} and ${parts.length - most} more` : parts.join(", ") || "none";
}

export const plural = (number, one, many = `${one}s`) => `${whole(number)} ${number === 1 ? one : many}`;

/** "0, 4-7" -> [0, 4, 5, 6, 7]; throws a text that says what is wrong. */
export function parseNumbers(text, limit) {
  const numbers = new Set();
  for (const part of text.split(/[\s,]+/).filter(Boolean)) {
    const match = /^(\d{1,8})(?:[-–](\d{1,8}))?$/.exec(part);
    if (!match) throw new Error(`“${part}” is not a number. Write numbers and ranges, such as 0, 4-7.`);
    const [first, last] = [Number(match[1]), Number(match[2] ?? match[1])];
    if (last < first || last >= limit) throw new Error(`“${part}” is out of range. Use numbers from 0 to ${limit - 1}.`);
    for (let number = first; number <= last; number += 1) numbers.add(number);
  }
  return [...numbers].sort((a, b) => a - b);
}
