// The page that brings an adapter's files in: drop or choose, progress of each, refusals beside what they are
// about, and the whole sent off once everything is there.

import { exchange, Gone, Refused, Transfer } from "./transfer.js";
import { forget, recall, remember } from "./memory.js";

const form = document.getElementById("upload");
const token = form.elements.csrf_token.value;
const { uploads, submit, place, owner } = form.dataset;
const status = form.querySelector("[data-status]");
const button = form.querySelector("button[type=submit]");

class Slot {
  constructor(element) {
    this.element = element;
    this.name = element.dataset.slot;
    this.input = element.querySelector("input[type=file]");
    this.isOptional = !this.input.required;
    this.panel = element.querySelector(".transfer");
    this.bar = element.querySelector("progress");
    this.fileId = null;
    this.transfer = null;
    this.input.addEventListener("change", () => this.input.files[0] && this.take(this.input.files[0]));
    this.#part("remove").addEventListener("click", () => this.clear());
    this.#part("retry").addEventListener("click", () => this.#start(this.transfer.known));
  }

  get isMissing() {
    return !this.file && !this.isOptional;
  }

  get isUnderWay() {
    return Boolean(this.running);
  }

  get hasFailed() {
    return Boolean(this.file) && !this.fileId && !this.running;
  }

  accepts(name) {
    const endings = this.input.accept.split(",").filter((one) => one.startsWith("."));
    return endings.some((ending) => name.toLowerCase().endsWith(ending));
  }

  take(file) {
    this.transfer?.stop();
    this.#show(file);
    if (!this.accepts(file.name)) return this.refuse(`Choose a ${this.input.accept.split(",")[0]} file.`);
    if (!file.size) return this.refuse("This file is empty.");
    this.#start(null);
  }

  async resume() {
    const kept = await recall(place, this.name, owner);
    if (!kept || this.file) return;
    this.#show(kept.file);
    this.#start(kept.known);
  }

  clear() {
    for (const slot of slots) if (slot.fileId) slot.complain("");
    this.transfer?.stop();
    this.file = this.fileId = this.transfer = this.running = null;
    forget(place, this.name, owner);
    this.#problem("");
    this.panel.hidden = true;
    this.input.hidden = false;
    this.input.value = "";
    this.element.classList.remove("here");
    this.input.focus();
    settled();
  }

  refuse(message) {
    this.#problem(message);
    this.element.classList.remove("here");
    this.#note("Rejected");
    this.fileId = null;
    settled();
  }

  // The file stays as it is: another of the files may be the wrong one.
  complain(message) {
    this.#problem(message);
  }

  async #start(known) {
    this.#problem("");
    this.#part("retry").hidden = true;
    this.#note("Starting…");
    const began = performance.now();
    let first = null;
    const { file } = this;
    const transfer = new Transfer(file, { url: uploads, token, slot: this.name }, known, {
      note: (text) => this.#note(text),
      kept: (state) => remember(place, this.name, owner, { file, known: state }),
      progress: (sent) => {
        first ??= sent;
        this.bar.value = (100 * sent) / file.size;
        const rate = (sent - first) / (performance.now() - began);
        const left = rate > 0 && sent < file.size ? ` · ${shortTime((file.size - sent) / rate)} left` : "";
        this.#note(`${shortSize(sent)} of ${shortSize(file.size)}${left}`);
      },
    });
    this.transfer = transfer;
    this.running = transfer;
    settled();
    try {
      const fileId = await transfer.run();
      if (this.transfer !== transfer) return;
      this.fileId = fileId;
      this.bar.value = 100;
      this.element.classList.add("here");
      this.#note(this.isOptional ? "Uploaded" : "Uploaded and valid");
    } catch (error) {
      if (error instanceof Gone || this.transfer !== transfer) return;
      if (!(error instanceof Refused)) throw error;
      const again = error.status <= 0 || error.status >= 500 || error.status === 401;
      this.#part("retry").hidden = !again;
      this.#problem(error.message);
      this.#note(again ? "Paused. Uploaded parts are kept." : "Rejected");
      if (!again) forget(place, this.name, owner);
      if (!again) transfer.isComplete = true;  // or cancelled: nothing to call off
    } finally {
      if (this.running === transfer) this.running = null;
      settled();
    }
  }

  #show(file) {
    this.file = file;
    this.fileId = null;
    this.element.classList.remove("here");
    this.#part("retry").hidden = true;
    this.input.hidden = true;
    this.panel.hidden = false;
    this.bar.value = 0;
    this.#part("file").textContent = file.name;
    this.#part("size").textContent = shortSize(file.size);
    this.#note("");
  }

  #note(text) {
    this.#part("note").textContent = text;
  }

  #problem(text) {
    show(this.#part("problem"), text);
    this.element.classList.toggle("refused", Boolean(text));
  }

  #part(name) {
    return this.element.querySelector(`[data-${name}]`);
  }
}

const slots = [...form.querySelectorAll(".slot")].map((element) => new Slot(element));
let isWanted = false;  // to be sent off as soon as all files are here
let isSending = false;

function show(problem, text) {
  problem.textContent = text;
  problem.hidden = !text;
}

function refuse(where, message) {
  const slot = slots.find((one) => one.name === where);
  if (slot) return slot.complain(message);
  const problem = form.querySelector(`[data-slot="${where}"] [data-problem]`) || form.querySelector('[data-problem="form"]');
  show(problem, message);
  if (where === "name") {
    form.elements.name.setAttribute("aria-invalid", "true");
    form.elements.name.focus();
  }
}

// Whenever a file has come, failed or gone.
function settled() {
  const failed = slots.filter((slot) => slot.hasFailed);
  const coming = slots.filter((slot) => slot.isUnderWay);
  if (failed.length) isWanted = false;
  if (isWanted && !coming.length && !slots.some((slot) => slot.isMissing)) return void send();
  button.disabled = isSending;
  if (isWanted) say("Waiting for the files to finish uploading.");
  else if (failed.length) say("Fix the highlighted file.");
  else if (coming.length) say(`Uploading ${coming.length === 1 ? "1 file" : `${coming.length} files`}…`);
  else if (slots.every((slot) => slot.fileId || slot.isOptional)) say("All files uploaded.");
  else say("");
}

function say(text) {
  if (status.textContent !== text) status.textContent = text;
}

async function send() {
  if (isSending) return;
  isSending = true;
  isWanted = false;
  button.disabled = true;
  say("Validating…");
  const ids = Object.fromEntries(slots.filter((slot) => slot.fileId).map((slot) => [slot.name, slot.fileId]));
  const order = {
    ...ids,
    dtype: form.elements.dtype.value,
    activate: form.elements.activate.checked,
  };
  if (form.elements.name) order.name = form.elements.name.value;
  if (form.elements.base) order.base = form.elements.base.value;
  try {
    const made = await exchange(submit, token, order);
    await Promise.all(slots.map((slot) => forget(place, slot.name, owner)));
    location.assign(made.location);
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    isSending = false;
    button.disabled = false;
    say("Not created.");
    refuse(error.slot || "form", error.message);
  }
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  show(form.querySelector('[data-problem="form"]'), "");
  for (const slot of slots) if (slot.fileId || !slot.file) slot.complain("");
  const { name } = form.elements;
  if (name && !name.checkValidity()) return refuse("name", "Use 1 to 64 lowercase letters, digits, dots, underscores or hyphens.");
  for (const slot of slots) if (slot.isMissing) refuse(slot.name, "Choose a file.");
  if (slots.some((slot) => slot.isMissing || slot.hasFailed)) return;
  isWanted = true;
  settled();
});

form.elements.name?.addEventListener("input", ({ target }) => {
  target.removeAttribute("aria-invalid");
  show(form.querySelector('[data-slot="name"] [data-problem]'), "");
  form.querySelector("[data-shown-name]").textContent = target.value || target.placeholder;
});

form.elements.base?.addEventListener("change", ({ target }) => {
  form.querySelector("[data-shown-base]").textContent = target.value;
});

// Dropping anywhere in the box; a file that misses it must not replace the page.
const box = form.querySelector("[data-drop]");
for (const type of ["dragover", "drop"]) addEventListener(type, (event) => event.preventDefault());
box.addEventListener("dragover", () => box.classList.add("over"));
box.addEventListener("dragleave", (event) => box.contains(event.relatedTarget) || box.classList.remove("over"));
box.addEventListener("drop", (event) => {
  box.classList.remove("over");
  for (const file of event.dataTransfer.files) {
    const slot = slots.find((one) => one.accepts(file.name));
    if (slot) slot.take(file);
    else refuse("form", `${file.name} is neither of the files: drop ${slots.map((one) => one.input.accept.split(",")[0]).join(", ")}.`);
  }
});
addEventListener("beforeunload", (event) => {
  if (slots.some((slot) => slot.isUnderWay)) event.preventDefault();
});

function shortSize(bytes) {
  const units = ["B", "kB", "MB", "GB"];
  let value = bytes;
  let unit = 0;
  while (value >= 999.5 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${unit && value < 99.5 ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}

function shortTime(ms) {
  const seconds = Math.ceil(ms / 1000);
  return seconds < 90 ? `${seconds} s` : `${Math.round(seconds / 60)} min`;
}

// From here on the files are sent by this script: the browser need not insist on its own inputs.
form.noValidate = true;
for (const element of form.querySelectorAll("[data-scripted]")) element.hidden = false;
for (const slot of slots) slot.resume();
