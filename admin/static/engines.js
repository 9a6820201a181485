// Keeps the page of an engine up to date: about once a second while it is looked at and not held still.
//
// The server renders the part; what differs is changed in place, so that focus, selection and what is pointed
// at stay where they are.

const INTERVAL_MS = 1000;
const SLOWEST_MS = 15000;

let wait = INTERVAL_MS;
let isHeld = false;

const live = () => document.getElementById("live");

async function refresh() {
  const part = live();
  if (part && part.dataset.live && !isHeld && !document.hidden) {
    try {
      const answer = await fetch(part.dataset.live, { headers: { accept: "text/html" } });
      if (answer.redirected) return location.reload();  // signed out meanwhile
      if (!answer.ok) throw new Error(String(answer.status));
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("live");
      if (fresh && !isHeld) show(part, fresh);
      wait = INTERVAL_MS;
    } catch {
      wait = Math.min(2 * wait, SLOWEST_MS);
    }
  }
  setTimeout(refresh, wait);
}

function show(part, fresh) {
  const before = part.dataset.announcement;
  dress(fresh);
  patch(part, fresh);
  if (part.dataset.announcement !== before) document.getElementById("heard").textContent = part.dataset.announcement;
}

// Make `old` what `fresh` is, leaving alone whatever is so already.
function patch(old, fresh) {
  if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName || old.id !== fresh.id) {
    old.replaceWith(document.importNode(fresh, true));
    return;
  }
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  const theirs = [...fresh.childNodes];
  [...old.childNodes].slice(theirs.length).forEach((node) => node.remove());
  theirs.forEach((node, at) => {
    if (at < old.childNodes.length) patch(old.childNodes[at], node);
    else old.append(document.importNode(node, true));
  });
}

// The server knows nothing of holding still: the button is this script's.
function dress(part) {
  const button = part.querySelector("#hold");
  if (!button) return;
  button.hidden = false;
  button.setAttribute("aria-pressed", String(isHeld));
}

document.addEventListener("click", (event) => {
  if (!event.target.closest("#hold")) return;
  isHeld = !isHeld;
  dress(live());
});

dress(document);
setTimeout(refresh, INTERVAL_MS);
