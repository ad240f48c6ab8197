// One query, live: a fetch stream (EventSource cannot send a key), taken up again whenever it ends.

import { applied, EventParser } from "/page/delta.js";
import { headers, path, Problem } from "/page/session.js";

const SILENCE_MS = 25_000; // the server sends at least a comment every ten seconds
const BACKOFF_MS = [500, 1000, 2000, 4000, 8000, 15_000];

/** A delta is missing: the stream is taken up anew at once, and begins with the whole document. */
class Gap extends Error {}

/** Events: "front" (the document has changed), "status" (live or not). */
export class LiveQuery extends EventTarget {
  front = null;
  begun = 0; // how often the whole document came: what was told in between is not known
  status = "connecting"; // live, connecting, waiting, refused
  problem = null;
  received_ms = 0; // when the bytes of the newest message came, by the page's own clock
  since_ms = Date.now();
  retry_ms = 0;
  #query;
  #stop = new AbortController();
  #wake = null;

  constructor(query) {
    super();
    this.#query = query;
    this.#run();
  }

  get query() {
    return this.#query;
  }

  close() {
    this.#stop.abort();
    this.#wake?.();
  }

  /** Try at once: not when the wait is over, and although the server has refused. */
  again() {
    if (this.status === "refused") this.#run();
    else this.#wake?.();
  }

  async #run() {
    let failures = 0;
    while (!this.#stop.signal.aborted) {
      this.#tell("connecting");
      try {
        await this.#stream(() => {
          failures = 0;
        });
        this.problem = null;
      } catch (error) {
        if (this.#stop.signal.aborted) return;
        this.problem = error;
        // A query that is not there may come back: a Redis that lost it gets it from its driver.
        if (error instanceof Problem && [401, 403].includes(error.status)) return this.#tell("refused");
      }
      if (this.#stop.signal.aborted) return;
      if (this.problem instanceof Gap) continue;
      const wait = BACKOFF_MS[Math.min(failures, BACKOFF_MS.length - 1)] * (0.75 + Math.random() / 2);
      failures += 1;
      this.retry_ms = Date.now() + wait;
      this.#tell("waiting");
      await new Promise((done) => {
        this.#wake = done;
        setTimeout(done, wait);
      });
    }
  }

  async #stream(alive) {
    const connection = new AbortController();
    const abort = () => connection.abort();
    this.#stop.signal.addEventListener("abort", abort);
    let watchdog = setTimeout(abort, SILENCE_MS);
    try {
      const response = await fetch(path(this.#query, "live"), {
        headers: headers({ Accept: "text/event-stream" }),
        cache: "no-store",
        credentials: "omit",
        signal: connection.signal,
      });
      if (!response.ok) throw new Problem(response.status, await response.json().catch(() => ({})));
      const reader = response.body.getReader();
      const decoder = new TextDecoder();
      const parser = new EventParser();
      for (;;) {
        const { value, done } = await reader.read();
        if (done) return;
        clearTimeout(watchdog);
        watchdog = setTimeout(abort, SILENCE_MS);
        alive();
        this.received_ms = performance.now();
        for (const event of parser.feed(decoder.decode(value, { stream: true }))) {
          if (event.event === "dropped") throw new Problem(0, { detail: "This page was too slow and the server has dropped it." });
          this.#take(event);
        }
      }
    } finally {
      clearTimeout(watchdog);
      this.#stop.signal.removeEventListener("abort", abort);
    }
  }

  #take(event) {
    if (event.event === "front") {
      this.front = JSON.parse(event.data);
      this.begun += 1;
    } else if (event.event === "delta") {
      const delta = JSON.parse(event.data);
      const next = applied(this.front, delta);
      if (!next) throw new Gap();
      this.front = next;
    } else return;
    this.#tell("live");
    this.dispatchEvent(new Event("front"));
  }

  #tell(status) {
    if (status === this.status) return;
    this.status = status;
    this.since_ms = Date.now();
    this.dispatchEvent(new Event("status"));
  }
}
