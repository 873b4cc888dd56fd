// The page: tabs, and what keeps them up to date.

import { ask, attempt, h, say, state } from "./core.js";
import { renderClasses } from "./classes.js";
import { renderHistory } from "./history.js";
import { renderJobs } from "./jobs.js";
import { keeping } from "./keep.js";
import { chosen, dropped, hasFiles } from "./photos.js";
import { renderStart, take as takeClasses } from "./start.js";
import { renderTry, take } from "./try.js";
import { renderUnknowns } from "./unknowns.js";

const TABS = { try: ["Try", renderTry], unknowns: ["Unknowns", renderUnknowns], classes: ["Classes", renderClasses], history: ["History", renderHistory] };
const tab = () => (location.hash.slice(1) in TABS ? location.hash.slice(1) : "try");

function renderTabs() {
  const { overview } = state;
  const tabs = overview.model ? Object.entries(TABS) : [];
  const badge = overview.groups.length + (overview.unknown ? 1 : 0);
  document.getElementById("tabs").replaceChildren(...tabs.map(([name, [title]]) => h("a", {
    role: "tab", href: `#${name}`, "aria-selected": String(name === tab()), tabindex: name === tab() ? 0 : -1,
    "data-key": `tab-${name}`, onkeydown: turn,
  }, title, name === "unknowns" && badge > 0 && h("span.badge", {}, String(overview.unknown || overview.groups.length)))));
}

function turn(event) {
  const names = Object.keys(TABS), step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  location.hash = names[(names.indexOf(tab()) + step + names.length) % names.length];
}

function render() {
  const { overview } = state;
  document.getElementById("file").textContent = overview.model
    ? `${overview.file} · ${new Set(overview.model.tasks.flat()).size} classes` : overview.file;
  keeping(() => {
    renderTabs();
    const panel = document.getElementById("panel");
    panel.replaceChildren(overview.model ? TABS[tab()][1]() : renderStart());
    if (overview.problem) panel.prepend(h("p.card.warning", {}, overview.problem));
  });
  renderJobs();
}

async function refresh() {
  if (document.querySelector("input[type=range]:active")) { // nobody takes a slider out of a hand
    setTimeout(refresh, 300);
    return;
  }
  const overview = await attempt(() => ask("/api/overview"));
  if (overview) { state.overview = overview; render(); }
}

// News from the server: progress of jobs, and that something has changed, here or on another page.
function listen() {
  let lost = false;
  const events = new EventSource("/api/events");
  events.onmessage = ({ data }) => {
    if (lost) { lost = false; refresh(); }
    const news = JSON.parse(data), { overview } = state;
    const ended = news.jobs.some((job) => job.state !== "running"
      && overview.jobs.some((old) => old.number === job.number && old.state === "running"));
    const begun = news.jobs.some((job) => !overview.jobs.some((old) => old.number === job.number));
    overview.jobs = news.jobs;
    if (ended || begun || news.changes !== overview.changes || news.model !== (overview.model?.version ?? null)) refresh();
    else renderJobs();
  };
  events.onerror = () => {
    if (!lost) say("The server does not answer any more. What was named is kept; this page goes on when it is back.");
    lost = true;
  };
}

document.addEventListener("changed", render);
document.addEventListener("stale", refresh);
document.addEventListener("go", ({ detail }) => { location.hash = detail; refresh(); });
addEventListener("hashchange", () => {
  const onTab = document.activeElement?.role === "tab";
  render();
  (onTab ? document.querySelector("[aria-selected=true]") : document.getElementById("panel"))?.focus({ preventScroll: true });
});
addEventListener("paste", ({ clipboardData }) => {
  const photos = chosen(clipboardData?.files ?? []);
  if (photos.length && state.overview?.model) { location.hash = "try"; take(photos); }
});
// Photos dropped beside a place for them are not opened in place of the page.
addEventListener("dragover", (event) => { if (hasFiles(event)) event.preventDefault(); });
addEventListener("drop", async (event) => {
  if (event.defaultPrevented || !hasFiles(event)) return;
  event.preventDefault();
  const photos = await dropped(event.dataTransfer);
  if (state.overview?.model) { location.hash = "try"; take(photos); } else takeClasses(photos);
});

await refresh();
if (state.overview) listen();
