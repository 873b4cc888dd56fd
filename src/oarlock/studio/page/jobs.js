// What is going on: work of the server, told by server-sent events, and photos that are being sent.

import { button, change, h, state } from "./core.js";
import { keeping } from "./keep.js";

const own = new Map(); // what this page is doing itself
const lines = new Map(); // of jobs, so that no button is drawn anew under a finger
const closed = new Set(); // finished jobs that were read
const READ = 6000; // milliseconds in which that something is done can be read
const BRIEF = ["look", "group"]; // whose end need not stay on the page

// Do something and show that; work that is told of `progress` says there how far it is, and is told whether to go on.
export async function watch(title, work) {
  let stopped = false;
  const stop = () => { stopped = true; tell(line, { text: "stopping…", stopping: true }); };
  const key = Symbol(title), line = running(title, work.length > 0 && stop);
  const progress = (done, all) => {
    tell(line, { share: done / all, text: stopped ? "stopping…" : `${done} of ${all}`, stopping: stopped });
    return !stopped;
  };
  own.set(key, line);
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
  const box = document.getElementById("jobs"), wanted = [...own.values(), ...jobs.map(working)];
  const same = wanted.length === box.children.length && wanted.every((line, place) => line === box.children[place]);
  if (!same) keeping(() => box.replaceChildren(...wanted));
}

// What ended before this page was opened is no news.
let first = null;
function isNews(job) {
  first ??= new Set(state.overview.jobs.filter((old) => old.state !== "running").map((old) => old.number));
  return !first.has(job.number) && !(job.state === "done" && BRIEF.includes(job.kind));
}

function working(job) {
  const key = `${job.number} ${job.state}`, stop = () => change("/jobs/stop", { job: job.number });
  if (!lines.has(key)) lines.set(key, job.state === "running" ? running(job.title, stop) : ended(job));
  if (job.state === "running") tell(lines.get(key), { ...job, text: job.stopping ? "stopping…" : job.text });
  return lines.get(key);
}

const running = (title, stop) => h("div.job.running", {}, h("b", {}, title), h("progress", { max: 1 }), h("span", {}), stop && button("Stop", stop));

function tell(line, { share, text, stopping }) {
  if (share !== undefined) line.querySelector("progress").value = share;
  line.querySelector("span").textContent = text;
  line.querySelector("button").disabled = stopping;
}

function ended(job) {
  const close = () => { closed.add(job.number); renderJobs(); };
  if (job.state === "done" && !job.notes.length) setTimeout(close, READ);
  const notes = job.notes.map((note) => h("small", {}, note));
  return h("div.job", { class: `job ${job.state}` }, h("b", {}, job.title),
    h("span", {}, job.text, notes.length > 0 && h("span.notes", {}, notes)), button("✕", close, { "aria-label": "Close" }));
}
