// The code of an invitation, or of a reset, stands behind the # of its link, which browsers do not send. It goes into the form,
// and out of the address, so that no history keeps it.

const field = document.getElementById("token");
const code = location.hash.slice(1);
if (code) {
  field.value = code;
  field.closest("[data-token]").hidden = true;
  history.replaceState(null, "", location.pathname);
}
