// Buttons that copy a text: of a field (data-copy), or of the code sample that is shown (data-copy-code). A page
// that shows a secret once changes its address to that of the thing itself, so that reloading does not create
// another one.

async function copy(button, said, text, fallback) {
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
    said.textContent = "Copied.";
  } catch {
    said.textContent = "";
    button.textContent = "Press Ctrl+C";
    fallback();
  }
  setTimeout(() => (button.textContent = "Copy"), 3000);
}

for (const button of document.querySelectorAll("[data-copy]")) {
  const field = document.getElementById(button.dataset.copy);
  const said = button.closest(".copy").nextElementSibling;
  button.hidden = false;
  button.addEventListener("click", () => {
    field.select();
    copy(button, said, field.value, () => field.focus());
  });
}

for (const button of document.querySelectorAll("[data-copy-code]")) {
  button.hidden = false;
  button.addEventListener("click", () => {
    const samples = [...button.closest(".snippets").querySelectorAll("pre")];
    const shown = samples.find((sample) => getComputedStyle(sample).display !== "none");
    copy(button, button.nextElementSibling, shown.textContent, () => getSelection().selectAllChildren(shown));
  });
}

const once = document.querySelector("[data-once]");
if (once) history.replaceState(null, "", once.dataset.once);
