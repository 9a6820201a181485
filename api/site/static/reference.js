// The filter above the list of operations: by words of title, method and path. Enter goes to the first.

const field = document.getElementById("filter");
const none = document.getElementById("none");
const groups = [...document.querySelectorAll(".toc details")];
const isOpen = new Map(groups.map((group) => [group, group.open]));

function show() {
  const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
  let count = 0;
  for (const group of groups) {
    let shown = 0;
    for (const item of group.querySelectorAll("li")) {
      const link = item.querySelector("a");
      const text = `${link.textContent} ${link.title}`.toLowerCase();
      item.hidden = !words.every((word) => text.includes(word));
      shown += item.hidden ? 0 : 1;
    }
    group.hidden = shown === 0;
    group.open = words.length ? shown > 0 : isOpen.get(group);
    count += shown;
  }
  none.hidden = count > 0;
}

field.hidden = false;
field.addEventListener("input", show);
field.addEventListener("keydown", (event) => {
  if (event.key !== "Enter") return;
  const first = document.querySelector(".toc details:not([hidden]) li:not([hidden]) a");
  if (first) location.hash = first.getAttribute("href");
});

// A link to an operation opens its section in the list.
function openSection() {
  const link = [...document.querySelectorAll(".toc a")].find((one) => one.getAttribute("href") === location.hash);
  if (link) link.closest("details").open = true;
}
addEventListener("hashchange", openSection);
openSection();
