// The command palette: Ctrl+K (on a Mac ⌘K) opens a search that is used by the keyboard alone. Its link leads to
// the same search as a page. Names are put in as text, never as markup.

const dialog = document.getElementById("palette");
const link = document.querySelector("[data-palette]");

if (dialog && link) {
  const field = dialog.querySelector("input");
  const list = dialog.querySelector("[role=listbox]");
  const status = dialog.querySelector("[role=status]");
  const isMac = /Mac|iPhone|iPad/.test(navigator.platform);
  let asking = null;
  let timer = 0;
  let chosen = -1;

  link.querySelector("kbd").textContent = isMac ? "⌘K" : "Ctrl K";
  link.querySelector("kbd").hidden = false;

  const choose = (at) => {
    const options = [...list.children];
    chosen = options.length ? (at + options.length) % options.length : -1;
    options.forEach((option, place) => option.setAttribute("aria-selected", String(place === chosen)));
    if (chosen < 0) return field.removeAttribute("aria-activedescendant");
    field.setAttribute("aria-activedescendant", options[chosen].id);
    options[chosen].scrollIntoView({ block: "nearest" });
  };

  const show = (matches) => {
    list.replaceChildren(
      ...matches.map(({ kind, title, path }, at) => {
        const option = document.createElement("a");
        option.id = `match-${at}`;
        option.href = path;
        option.tabIndex = -1;
        option.setAttribute("role", "option");
        const name = document.createElement("span");
        name.textContent = title;
        const type = document.createElement("small");
        type.textContent = kind;
        option.append(name, " ", type);
        return option;
      }),
    );
    const count = matches.length;
    status.textContent = count ? `${count} ${count === 1 ? "match" : "matches"}` : "Nothing found.";
    choose(0);
  };

  const search = async () => {
    asking?.abort();
    const mine = (asking = new AbortController());
    try {
      const address = `${link.href}?q=${encodeURIComponent(field.value)}`;
      const answer = await fetch(address, { headers: { accept: "application/json" }, signal: mine.signal });
      if (answer.status === 401) return location.reload();
      if (!answer.ok) throw new TypeError("refused");
      show((await answer.json()).matches);
    } catch (error) {
      if (error.name === "AbortError") return;
      list.replaceChildren();
      choose(-1);
      status.textContent = "The search didn't work. Try again.";
    }
  };

  const open = () => {
    if (dialog.open) return;
    field.value = "";
    list.replaceChildren();
    dialog.showModal();
    search();
  };

  addEventListener("keydown", (event) => {
    if (event.key.toLowerCase() !== "k" || !(event.ctrlKey || event.metaKey) || event.altKey || event.shiftKey) return;
    event.preventDefault();
    open();
  });
  link.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    document.querySelector(".side:popover-open")?.hidePopover();
    open();
  });
  field.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(search, 100);
  });
  field.addEventListener("keydown", (event) => {
    if (event.isComposing) return;
    const steps = { ArrowDown: 1, ArrowUp: -1 };
    if (event.key in steps) {
      event.preventDefault();
      choose(chosen + steps[event.key]);
    } else if (event.key === "Enter") {
      event.preventDefault();
      list.children[chosen]?.click();
    }
  });
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });
  dialog.addEventListener("close", () => {
    clearTimeout(timer);
    asking?.abort();
  });
}
