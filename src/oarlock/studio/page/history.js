// History: lessons, whether promises hold, and the model to take away.

import { ask, attempt, button, change, count, h, question, state } from "./core.js";
import { learning, watch } from "./jobs.js";
import { keeping } from "./keep.js";
import { changed } from "./unknowns.js";

const view = { version: null, tasks: [], edits: [], bytes: 0, promise: null };

export function renderHistory() {
  const box = h("div", { id: "history" });
  load(box);
  return h("div.history", {}, box);
}

async function load(box) {
  const { version } = state.overview.model;
  if (view.version !== version) {
    const found = await attempt(() => ask("/api/classes"));
    if (!found) return;
    Object.assign(view, found, { promise: null });
  }
  draw(box);
}

function draw(box) {
  keeping(() => box.replaceChildren(actions(box), ...[view.promise && promised(view.promise)].filter(Boolean),
    h("ol.lessons", {}, view.edits.toReversed().map(edited), view.tasks.toReversed().map(lesson)),
    ...state.overview.reports.map(changed)));
}

function actions(box) {
  const { overview } = state;
  return h("section.card.line", {}, h("div", {}, h("strong", {}, overview.file), h("p.quiet", {},
    `${(view.bytes / 1e6).toFixed(1)} MB · ${overview.model.method} on ${overview.model.trunk} · version ${overview.model.version}`)),
  h("div.buttons", {},
    button("Verify", () => verify(box)), h("a.button", { href: "/api/model.oar", download: overview.file }, "Download .oar"),
    overview.onnx && button("Export ONNX", exported),
    overview.undo && button("Undo the last change", undo, { disabled: learning() })));
}

async function verify(box) {
  const found = await watch("Asking every finished task again", () => attempt(() => ask("/api/verify", {})));
  if (found) { view.promise = found; draw(box); }
}

async function exported() {
  const there = await watch("Writing the model as a graph", () => attempt(() => ask("/api/export", {})));
  if (there) location.assign("/api/model.onnx"); // is saved, and the page stays
}

async function undo() {
  const sure = await question("Undo?", "The model becomes what it was before its last lesson or correction.", { yes: "Undo", danger: true });
  if (sure) change("/undo");
}

function promised(promise) {
  if (!promise.tasks.length) return h("section.card", {}, h("strong", {}, `${promise.method} promises nothing about earlier tasks`));
  return h("section.card", { id: "promise" }, h("strong", {}, promise.holds ? "✓ Every promise holds" : "✗ A promise is broken"),
    h("ul", {}, promise.tasks.map((task) => h("li", {}, `Task ${task.task}: ${task.compared.toLocaleString("en")} values, `
      + (task.identical ? "bit for bit as when it was learned" : `changed by up to ${task.difference} of the largest`)))));
}

function lesson(task) {
  const names = task.classes.map(({ label, images }) => `${label} (${count(images, "photo")})`).join(", ");
  return h("li.card", {}, h("strong", {}, `Lesson ${task.task}`), h("span.quiet", {}, ` ${(task.learned ?? "").replace("T", " ").slice(0, 16)}`),
    h("p", {}, names), h("p.quiet", {}, task.verifiable ? "promised: can be verified" : "nothing was promised"));
}

const EDITS = { rename: ([old, name]) => `${old} was renamed ${name}`, merge: ([kept, other]) => `${other} was merged into ${kept}`,
  more: (names) => `more photos of ${names.join(", ")}`, forget: () => "a class was forgotten" };

function edited(edit) {
  return h("li.card", {}, h("strong", {}, "Correction"), h("span.quiet", {}, ` ${(edit.when ?? "").replace("T", " ").slice(0, 16)}`),
    h("p", {}, EDITS[edit.edit](edit.labels)));
}
