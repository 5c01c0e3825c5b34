// Show the block a link of the token tree points at, even when it stands in a closed part.
function openTarget() {
  const block = document.getElementById(location.hash.slice(1));
  if (!block) return;
  for (let part = block; part; part = part.parentElement) {
    if (part.tagName === "DETAILS") part.open = true;
  }
  block.querySelectorAll("details").forEach((part) => { part.open = true; });
  block.scrollIntoView({ block: "center" });
}
window.addEventListener("hashchange", openTarget);
openTarget();
