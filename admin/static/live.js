// Keeps the part of a page that changes by itself up to date while something is on its way.
//
// The server renders the part; it is asked for again once a second while the page is looked at, and put in
// place of the old one unless the visitor is in the middle of answering a question in it. When what the page is
// about is no more, the page says so.

const INTERVAL_MS = 1000;
const SLOWEST_MS = 15000;

let wait = INTERVAL_MS;

async function refresh() {
  const old = document.getElementById("live");
  if (!old || !("pending" in old.dataset)) return;
  if (!document.hidden && !old.querySelector(":popover-open")) {
    try {
      const answer = await fetch(old.dataset.live || location.href, { headers: { accept: "text/html" } });
      if (answer.redirected) return location.reload();  // signed out meanwhile
      if (answer.status === 404) return gone();
      if (!answer.ok) throw new Error(String(answer.status));
      replace(old, await answer.text());
      wait = INTERVAL_MS;
    } catch {
      wait = Math.min(2 * wait, SLOWEST_MS);
    }
  }
  setTimeout(refresh, wait);
}

function replace(old, text) {
  const fresh = new DOMParser().parseFromString(text, "text/html").getElementById("live");
  if (!fresh || old.querySelector(":popover-open") || fresh.outerHTML === old.outerHTML) return;
  const focused = old.contains(document.activeElement) ? place(document.activeElement) : "";
  old.replaceWith(fresh);
  if (focused) (fresh.querySelector(focused) || beginning(fresh)).focus({ preventScroll: true });
  const heard = document.getElementById("heard");
  const said = fresh.dataset.announcement;
  if (heard && said && said !== old.dataset.announcement) heard.textContent = said;
}

// What the page is about was deleted: say so, and lead to the section it was in.
function gone() {
  const section = document.querySelector('nav [aria-current="page"]');
  const told = document.createElement("section");
  told.className = "card teach";
  const heading = document.createElement("h1");
  heading.textContent = "This page no longer exists";
  heading.tabIndex = -1;
  const words = document.createElement("p");
  words.textContent = "It was deleted in another window or by another member.";
  told.append(heading, words);
  if (section) {
    const link = document.createElement("a");
    link.className = "button";
    link.href = section.href;
    link.textContent = `Go to ${section.textContent.trim()}`;
    told.append(link);
  }
  document.getElementById("main").replaceChildren(told);
  document.title = "This page no longer exists · Rootstock";
  heading.focus({ preventScroll: true });
}

// A selector that finds the element's successor: its id, or what its form or link leads to.
function place(element) {
  if (element.id) return `#${CSS.escape(element.id)}`;
  if (element.form) return `form[action="${CSS.escape(element.form.getAttribute("action"))}"] button`;
  const href = element.getAttribute("href");
  return href ? `a[href="${CSS.escape(href)}"]` : "h1";
}

// Where to go on when what had the focus is no more.
function beginning(part) {
  const heading = part.querySelector("h1") || part;
  heading.tabIndex = -1;
  return heading;
}

setTimeout(refresh, INTERVAL_MS);
