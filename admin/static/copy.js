// Buttons that copy a text. What is shown once is not asked for again when the page is loaded anew: its address
// becomes that of the thing itself.

for (const button of document.querySelectorAll("[data-copy]")) {
  const field = document.getElementById(button.dataset.copy);
  const said = button.closest(".copy").nextElementSibling;
  button.hidden = false;
  button.addEventListener("click", async () => {
    field.select();
    try {
      await navigator.clipboard.writeText(field.value);
      button.textContent = "Copied";
      said.textContent = "Copied.";
    } catch {
      said.textContent = "";
      button.textContent = "Press Ctrl+C";
      field.focus();
    }
    setTimeout(() => (button.textContent = "Copy"), 3000);
  });
}

const once = document.querySelector("[data-once]");
if (once) history.replaceState(null, "", once.dataset.once);
