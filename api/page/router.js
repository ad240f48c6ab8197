// Addresses: #/orders/proposals/p-1?policy=drain. Everything after # stays in the browser.

export function route(hash = location.hash) {
  const [place, search = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  const parts = place.split("/").filter(Boolean).map(decoded);
  return { query: parts[0] ?? null, view: parts[1] ?? "front", id: parts[2] ?? null, params: new URLSearchParams(search) };
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export const address = (...parts) => `#/${parts.map(encodeURIComponent).join("/")}`;

/** Change the address without leaving the view. */
export const readdress = (hash) => history.replaceState(null, "", hash);
