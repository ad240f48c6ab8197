// The key of this tab, and requests with it. It is kept in sessionStorage at most: it ends with the tab.

const PLACE = "trimtab-key";

export class Problem extends Error {
  constructor(status, body) {
    super(body.detail ?? `The server answered ${status}.`);
    this.status = status;
    this.remedy = body.remedy ?? "";
    this.field = body.field ?? "";
    this.kind = String(body.type ?? "").split(":").pop();
  }
}

export const session = {
  key: null,
  name: "",
  scope: "",
  get operates() {
    return this.scope === "operate" || this.scope === "admin";
  },
};

export function headers(more = {}) {
  return { Authorization: `Bearer ${session.key}`, ...more };
}

async function answer(response) {
  const text = await response.text();
  let body = {};
  try {
    body = text ? JSON.parse(text) : {};
  } catch {
    body = { detail: "The server's answer is not JSON." };
  }
  if (!response.ok) throw new Problem(response.status, body);
  return body;
}

async function send(path, options) {
  try {
    return await fetch(path, { cache: "no-store", credentials: "omit", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, { detail: "The server does not answer.", remedy: "The page goes on trying." });
  }
}

export async function get(path, signal) {
  return answer(await send(path, { headers: headers({ Accept: "application/json" }), signal }));
}

/** A name that nothing else has. Not crypto.randomUUID: on plain HTTP, browsers have that for localhost only. */
export const newToken = () => Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");

/** A change. The Idempotency-Key makes it safe to send it again. */
export async function change(method, path, body, token = newToken()) {
  const told = headers({ "Content-Type": "application/json", "Idempotency-Key": token });
  return answer(await send(path, { method, headers: told, body: JSON.stringify(body) }));
}

/** Take up a key: true if the server knows it. */
export async function useKey(key) {
  session.key = key;
  const me = await get("/v1/me");
  Object.assign(session, { name: me.name, scope: me.scope });
  sessionStorage.setItem(PLACE, key);
}

/** A one-time ticket becomes a key. */
export async function useTicket(ticket) {
  const given = await answer(
    await send("/v1/session", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ ticket }) }),
  );
  await useKey(given.key);
}

export const keptKey = () => sessionStorage.getItem(PLACE);

export function forgetKey() {
  sessionStorage.removeItem(PLACE);
  Object.assign(session, { key: null, name: "", scope: "" });
}

export const path = (query, ...parts) => `/v1/queries/${[query, ...parts].map(encodeURIComponent).join("/")}`;
