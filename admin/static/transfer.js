// Sends one file in parts: a few at a time, each verified by its digest, failed ones again, and from where it
// was left when the page comes back.
//
// Knows nothing of the page: it tells its `watcher` what happens.

const PARALLEL = 3;
const ATTEMPTS = 5;
const FIRST_WAIT_MS = 500;
const PART_TIMEOUT_MS = 180000;
const HASTY = new Set([0, 408, 425, 429, 500, 502, 503, 504]);

export class Refused extends Error {
  constructor(message, status, param = null) {
    super(message);
    this.status = status;
    this.param = param;
  }
}

export class Gone extends Error {}

// One exchange of JSON with the console. Throws Refused with the server's own words.
export async function exchange(url, token, body) {
  let answer;
  try {
    answer = await fetch(url, {
      method: body === undefined ? "GET" : "POST",
      headers: { accept: "application/json", "content-type": "application/json", "x-csrf-token": token },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch {
    throw new Refused("Can't reach the server.", 0);
  }
  const told = await answer.json().catch(() => ({}));
  if (answer.ok) return told;
  const error = told.error || {};
  const refused = new Refused(error.message || `The server responded with ${answer.status}.`, answer.status, error.param);
  refused.slot = error.slot;
  throw refused;
}

export class Transfer {
  // file: what to send. options: url of the uploads, CSRF token, slot. known: {id, partBytes, parts} of an
  // earlier beginning, parts by their place. watcher: progress(sent), kept(known), note(text).
  constructor(file, options, known, watcher) {
    this.file = file;
    this.options = options;
    this.known = known;
    this.watcher = watcher;
    this.sent = new Map();  // bytes on their way, by place
    this.requests = new Set();
    this.isStopped = false;
    this.isComplete = false;
    this.isRepeated = false;
  }

  // The id of the file that was made of it. Throws Refused; Gone when it was stopped.
  async run() {
    const made = await this.#begin();
    if (made) {
      this.isComplete = true;
      return made;
    }
    const places = Array.from({ length: Math.max(1, Math.ceil(this.file.size / this.known.partBytes)) }, (_, i) => i);
    const missing = places.filter((place) => !this.known.parts[place]);
    this.#progress();
    const senders = Array.from({ length: Math.min(PARALLEL, missing.length) }, async () => {
      while (missing.length) await this.#send(missing.shift());
    });
    try {
      await Promise.all(senders);
    } catch (error) {
      this.#abort();
      throw error;
    }
    this.#unlessStopped();
    this.watcher.note("Checking the file…");
    const url = `${this.#url()}/complete`;
    const body = { part_ids: places.map((place) => this.known.parts[place]) };
    let completed;
    try {
      completed = await this.#patiently(() => exchange(url, this.options.token, body));
    } catch (error) {
      // It had been refused before, and the answer was lost: sent once more, it gets the reason.
      if (error.status !== 409 || this.isRepeated) throw error;
      this.isRepeated = true;
      this.known = null;
      return this.run();
    }
    this.isComplete = true;
    return completed.file_id;
  }

  stop() {
    this.isStopped = true;
    this.#abort();
    if (this.known && !this.isComplete) exchange(`${this.#url()}/cancel`, this.options.token, {}).catch(() => {});
  }

  // The file's id if it has all been done before.
  async #begin() {
    const { url, token, slot } = this.options;
    if (this.known) {
      const found = await this.#patiently(() => exchange(this.#url(), token)).catch((error) => {
        if (error.status === 404) return { status: "expired" };
        throw error;
      });
      const there = new Set((found.parts || []).map((part) => part.id));
      if (found.status === "pending") {
        for (const place of Object.keys(this.known.parts)) {
          if (!there.has(this.known.parts[place])) delete this.known.parts[place];
        }
        return null;
      }
      if (found.status === "completed" && found.file_id) return found.file_id;
    }
    const asked = { slot, filename: this.file.name, size: this.file.size };
    const begun = await this.#patiently(() => exchange(url, token, asked));
    this.known = { id: begun.id, partBytes: begun.part_bytes, parts: {} };
    this.watcher.kept(this.known);
    return null;
  }

  async #send(place) {
    const start = place * this.known.partBytes;
    const blob = this.file.slice(start, start + this.known.partBytes);
    const bytes = await blob.arrayBuffer().catch(() => {
      throw new Refused("The browser can't read this file any more. Choose it again.", -1);
    });
    const digest = await sha256(bytes);
    const part = await this.#patiently(async () => {
      const kept = await this.#post(place, bytes);
      if (digest && kept.sha256 !== digest) throw new Refused("A part was corrupted during upload.", 0);
      return kept;
    });
    this.sent.delete(place);
    this.known.parts[place] = part.id;
    this.watcher.kept(this.known);
    this.#progress();
  }

  // fetch tells nothing of an upload's progress.
  #post(place, bytes) {
    return new Promise((resolve, reject) => {
      const request = new XMLHttpRequest();
      this.requests.add(request);
      const end = (settle, value) => {
        this.requests.delete(request);
        this.sent.delete(place);
        settle(value);
      };
      request.open("POST", `${this.#url()}/parts`);
      request.timeout = PART_TIMEOUT_MS;
      request.setRequestHeader("accept", "application/json");
      request.setRequestHeader("content-type", "application/octet-stream");
      request.setRequestHeader("x-csrf-token", this.options.token);
      request.upload.onprogress = (event) => {
        this.sent.set(place, event.loaded);
        this.#progress();
      };
      request.onload = () => {
        const told = parsed(request.responseText);
        if (request.status === 201) return end(resolve, told);
        const message = told.error?.message || `The server responded with ${request.status}.`;
        end(reject, new Refused(message, request.status, told.error?.param));
      };
      request.onerror = () => end(reject, new Refused("The connection was interrupted.", 0));
      request.ontimeout = () => end(reject, new Refused("The connection is too slow.", 0));
      request.onabort = () => end(reject, new Gone());
      request.send(new Blob([bytes]));  // of which the page itself keeps nothing: it stays quick
    });
  }

  // Again where another try may help: with longer and longer pauses, and once the browser is online.
  async #patiently(attempt) {
    for (let count = 1; ; count += 1) {
      this.#unlessStopped();
      try {
        return await attempt();
      } catch (error) {
        if (!(error instanceof Refused) || !HASTY.has(error.status) || count === ATTEMPTS) throw error;
        this.watcher.note(`${error.message} Retrying…`);
        await pause(FIRST_WAIT_MS * 2 ** (count - 1) * (0.5 + Math.random()));
        if (!navigator.onLine) await new Promise((resolve) => addEventListener("online", resolve, { once: true }));
      }
    }
  }

  #progress() {
    let bytes = 0;
    for (const place of Object.keys(this.known.parts)) {
      bytes += Math.min(this.known.partBytes, this.file.size - place * this.known.partBytes);
    }
    for (const loaded of this.sent.values()) bytes += loaded;
    this.watcher.progress(Math.min(bytes, this.file.size));
  }

  #abort() {
    for (const request of [...this.requests]) request.abort();
  }

  #unlessStopped() {
    if (this.isStopped) throw new Gone();
  }

  #url() {
    return `${this.options.url}/${this.known.id}`;
  }
}

async function sha256(bytes) {
  if (!globalThis.crypto?.subtle) return null;
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  return Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return {};
  }
}

function pause(ms) {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
