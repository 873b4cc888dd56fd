// What a person has in hand stays when something is drawn anew: the focus, what is being written, what is open.

const all = (selector) => [...document.querySelectorAll(`:is(#tabs, #panel, #jobs) ${selector}`)];

// The elements that are called the same, drawn now: of the group, the photo or the button that somebody was at.
function namesakes(element) {
  const { key } = element.dataset;
  if (key) return all(`[data-key="${CSS.escape(key)}"]`);
  return all(element.localName).filter((one) => one.textContent === element.textContent);
}

export function keeping(draw) {
  const active = document.activeElement, place = namesakes(active).indexOf(active), written = active.value;
  const open = new Map(all("details").map((one) => [one.dataset.key, one.open]));
  draw();
  for (const one of all("details")) one.open = open.get(one.dataset.key) ?? one.open;
  if (place < 0) return;
  const again = namesakes(active), next = again[Math.min(place, again.length - 1)] ?? document.getElementById("panel");
  if (next.matches("input[data-key]")) next.value = written;
  next.focus({ preventScroll: true });
}
