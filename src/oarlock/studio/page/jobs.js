// What is going on: work of the server, told by server-sent events, and photos that are being sent.

import { button, change, h, state } from "./core.js";

const own = new Map(); // photos that are being sent from this page
const closed = new Set(); // finished jobs that were read
const READ = 6000; // milliseconds in which that something is done can be read
const BRIEF = ["look", "group"]; // whose end need not stay on the page

export async function watch(title, work) {
  const key = Symbol(title);
  const progress = (done, all) => { own.set(key, { title, share: done / all, text: `${done} of ${all}` }); renderJobs(); };
  own.set(key, { title, share: 0, text: "" });
  renderJobs();
  try {
    return await work(progress);
  } finally {
    own.delete(key);
    renderJobs();
  }
}

export const learning = () => state.overview?.jobs.some((job) => job.kind === "lesson" && job.state === "running");

export function renderJobs() {
  const jobs = (state.overview?.jobs ?? []).filter((job) => !closed.has(job.number) && isNews(job));
  document.getElementById("jobs").replaceChildren(...[...own.values()].map(sending), ...jobs.map(working));
}

// What ended before this page was opened is no news.
let first = null;
function isNews(job) {
  first ??= new Set(state.overview.jobs.filter((old) => old.state !== "running").map((old) => old.number));
  return !first.has(job.number) && !(job.state === "done" && BRIEF.includes(job.kind));
}

const sending = (one) => h("div.job", {}, h("b", {}, one.title), h("progress", { value: one.share, max: 1 }), one.text);

function working(job) {
  const line = h("div.job", { class: `job ${job.state}` }, h("b", {}, job.title));
  if (job.state === "running") {
    line.append(h("progress", { value: job.share, max: 1 }), h("span", {}, job.stopping ? "stopping…" : job.text),
      button("Stop", () => change("/jobs/stop", { job: job.number }), { disabled: job.stopping }));
  } else {
    if (job.state === "done" && !job.notes.length) setTimeout(() => { closed.add(job.number); renderJobs(); }, READ);
    const notes = job.notes.map((note) => h("small", {}, note));
    line.append(h("span", {}, job.text, notes.length > 0 && h("span.notes", {}, notes)),
      button("✕", () => { closed.add(job.number); renderJobs(); }, { "aria-label": "Close" }));
  }
  return line;
}
