// The playground: one conversation, or the same with two models side by side. Answers come
// through the visitor's session; everything of theirs is put in as text, never as markup.

import { languages } from "./code.js";
import { Broken, stream } from "./stream.js";

const form = document.getElementById("playground");
const { model, versus, message } = form.elements;
const { chat, origin } = form.dataset;
const room = form.querySelector("[data-sides]");
const problem = form.querySelector("[data-problem]");
const status = form.querySelector("[data-status]");
const [clear, stop, send] = ["[data-clear]", "[data-stop]", "[type=submit]"].map((part) => form.querySelector(part));
const number = new Intl.NumberFormat("en");

class Side {
  constructor(name) {
    this.name = name;
    this.turns = [];
    this.element = document.getElementById("side").content.firstElementChild.cloneNode(true);
    this.element.querySelector("[data-model]").textContent = name;
    this.list = this.element.querySelector(".turns");
    this.list.setAttribute("aria-label", `Conversation with ${name}`);
    room.append(this.element);
  }

  async ask(text, signal) {
    this.element.querySelector("[data-empty]").hidden = true;
    const asked = this.#show("user", "You", text);
    const shown = this.#show("assistant", this.name, "");
    shown.classList.add("under-way");
    const [thinking, thoughts, words] = ["[data-thinking]", "[data-thoughts]", "[data-words]"].map((part) => shown.querySelector(part));
    const answer = { text: "", reasoning: "", usage: null, reason: "", first: 0, began: performance.now() };
    const turns = [...this.turns, { role: "user", content: text }];
    try {
      await stream(chat, form.elements.csrf_token.value, request(this.name, turns), signal, (chunk) => {
        const [choice] = chunk.choices;
        if (chunk.usage) answer.usage = chunk.usage;
        if (!choice) return;
        if (choice.finish_reason) answer.reason = choice.finish_reason;
        const { content, reasoning } = choice.delta ?? {};
        if (!content && !reasoning) return;
        answer.first ||= performance.now();
        if (reasoning) {
          answer.reasoning += reasoning;
          thinking.hidden = false;
          thoughts.textContent = answer.reasoning;
        }
        answer.text += content ?? "";
        words.textContent = answer.text;
        this.#follow();
      });
      this.turns = [...turns, said(answer)];
      if (!answer.text) words.textContent = answer.reasoning ? "(No answer after thinking)" : "(Empty response)";
      shown.querySelector("[data-measured]").textContent = measured(answer);
    } catch (error) {
      if (!(error instanceof Broken) && error.name !== "AbortError") throw error;
      if (answer.text) this.turns = [...turns, said(answer)];
      if (error instanceof Broken) {
        const told = document.createElement("p");
        told.className = "problem";
        told.textContent = error.message;
        shown.append(told);
        if (!answer.text) asked.classList.add("unanswered");
        return { refused: !answer.text };
      }
      shown.querySelector("[data-measured]").textContent = "Stopped. Tokens generated so far are billed.";
    } finally {
      shown.classList.remove("under-way");
      this.#follow();
    }
    return { refused: false };
  }

  #show(kind, who, text) {
    const turn = document.getElementById("turn").content.firstElementChild.cloneNode(true);
    turn.classList.add(kind);
    turn.querySelector("[data-speaks]").textContent = who;
    turn.querySelector("[data-words]").textContent = text;
    this.list.append(turn);
    this.#follow(true);
    return turn;
  }

  // Down with the words, unless the reader has scrolled up.
  #follow(always = false) {
    const { scrollHeight, scrollTop, clientHeight } = this.list;
    if (always || scrollHeight - scrollTop - clientHeight < 80) this.list.scrollTop = scrollHeight;
  }
}

// As the next request has it. What the model sees of its earlier thinking is for its chat template to decide.
function said({ text, reasoning }) {
  return { role: "assistant", content: text, ...(reasoning && { reasoning }) };
}

function measured({ usage, reason, first, began }) {
  const now = performance.now();
  const figures = [];
  if (usage) {
    const cached = usage.prompt_tokens_details?.cached_tokens;
    figures.push(`${number.format(usage.prompt_tokens)} input tokens${cached ? `, ${number.format(cached)} cached` : ""}`);
    const reasoned = usage.completion_tokens_details?.reasoning_tokens;
    figures.push(`${number.format(usage.completion_tokens)} output tokens${reasoned ? `, ${number.format(reasoned)} reasoning` : ""}`);
  }
  if (first) figures.push(`first token ${time(first - began)}`, `total ${time(now - began)}`);
  if (first && usage?.completion_tokens > 1 && now > first) figures.push(`${number.format(Math.round((usage.completion_tokens - 1) / ((now - first) / 1000)))} tokens/s`);
  if (reason === "length") figures.push("hit max_tokens");
  return figures.join(" · ");
}

const time = (ms) => (ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`);

function request(name, turns) {
  const { system, temperature, top_p, max_tokens, seed, stop: ends } = form.elements;
  const messages = system.value.trim() ? [{ role: "system", content: system.value }, ...turns] : turns;
  const body = { model: name, messages };
  for (const field of [temperature, top_p, max_tokens, seed]) {
    if (field.value !== "" && Number.isFinite(field.valueAsNumber)) body[field.name] = field.valueAsNumber;
  }
  const stops = ends.value.split("\n").filter(Boolean);
  if (stops.length) body.stop = stops;
  return body;
}

let sides = [];
let asking = null;

function begin() {
  asking?.abort();
  room.replaceChildren();
  // No model is compared with itself.
  for (const option of versus.options) option.disabled = option.value === model.value;
  if (versus.selectedOptions[0]?.disabled) versus.value = "";
  const names = versus.value ? [model.value, versus.value] : [model.value];
  sides = names.map((name) => new Side(name));
  settle();
  write();
}

function settle() {
  send.disabled = Boolean(asking);
  stop.hidden = !asking;
  clear.hidden = Boolean(asking) || !sides.some((side) => side.list.childElementCount);
}

function tell(text) {
  problem.textContent = text;
  problem.hidden = !text;
}

// The code below the conversation asks what the next message would.
function write() {
  const turns = [...(sides[0]?.turns ?? []), { role: "user", content: message.value || "Hello!" }];
  const body = request(model.value, turns);
  document.querySelectorAll("[data-snippets] pre code").forEach((place, at) => {
    place.textContent = languages[at](origin, body);
  });
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const text = message.value;
  if (asking) return;
  if (!text.trim()) return tell("Type a message first.");
  tell("");
  message.value = "";
  const mine = (asking = new AbortController());
  status.textContent = "Generating…";
  settle();
  try {
    const ends = await Promise.all(sides.map((side) => side.ask(text, mine.signal)));
    if (ends.every((end) => end.refused) && !message.value) message.value = text;
    status.textContent = ends.some((end) => end.refused) ? "Failed." : mine.signal.aborted ? "Stopped." : "Done.";
  } finally {
    if (asking === mine) asking = null;
    settle();
    write();
    message.focus();
  }
});

message.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  form.requestSubmit();
});
stop.addEventListener("click", () => asking?.abort());
clear.addEventListener("click", () => {
  begin();
  status.textContent = "Conversation cleared.";
  message.focus();
});
for (const field of [model, versus]) field.addEventListener("change", begin);
form.addEventListener("input", write);
addEventListener("pagehide", () => asking?.abort());
begin();
