// What the theme's script adds to a page, for people who type or hear: tables that scroll take the keyboard, and
// the buttons of a code block are no landmark of the page.
const amend = () => {
  for (const frame of document.querySelectorAll(".md-typeset__scrollwrap:not([tabindex])")) frame.tabIndex = 0;
  for (const buttons of document.querySelectorAll("nav.md-code__nav:not([role])")) buttons.setAttribute("role", "none");
};
new MutationObserver(amend).observe(document.body, { childList: true, subtree: true });
amend();
