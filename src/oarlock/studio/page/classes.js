// Classes: what the model knows, task by task, and how to correct it.

import { ask, attempt, button, change, count, h, question, state } from "./core.js";
import { watch } from "./jobs.js";
import { keeping } from "./keep.js";
import { chosen, send } from "./photos.js";

const view = { version: null, tasks: [] };

export function renderClasses() {
  const box = h("div");
  load(box);
  return h("div.classes", {}, box);
}

async function load(box) {
  const { version } = state.overview.model;
  if (view.version !== version) {
    const found = await attempt(() => ask("/api/classes"));
    if (!found) return;
    Object.assign(view, found);
  }
  keeping(() => box.replaceChildren(...view.tasks.map(task)));
}

function task(one) {
  const when = one.learned ? ` · learned ${one.learned.slice(0, 10)}` : "";
  return h("section", {}, h("h2", {}, `Task ${one.task}`, h("small.quiet", {}, when)),
    h("div.cards", {}, one.classes.map(card)));
}

function card(one) {
  const { confusions } = one;
  const others = confusions.others.map(({ label, photos }) => `${photos} × ${label}`).join(", ");
  const right = confusions.photos ? `${confusions.right} of ${confusions.photos} calibration photos right` : "no calibration photos";
  const files = h("input", { type: "file", multiple: true, accept: "image/*", hidden: true, onchange: () => more(one, files.files) });
  return h("article.card.class", { "data-class": one.label },
    h("div.strip", {}, one.photos.slice(0, 6).map((photo) =>
      h("img", { src: `/api/class-photos/${view.version}/${photo.replace("-", "/")}`, alt: "", loading: "lazy" }))),
    h("h3", {}, one.label),
    h("p.quiet", {}, `${count(one.images, "photo")} learned, ${one.memory + one.calibration} kept`),
    h("p.quiet", {}, right, others && `; taken for ${others}`),
    h("div.buttons", {}, button("More photos", () => files.click()), button("Rename", () => rename(one)),
      names(one).length > 0 && button("Merge", () => merge(one)), names(one).length > 0 && button("Forget", () => forget(one))),
    files);
}

const names = (one) => view.tasks.flatMap((some) => some.classes.map(({ label }) => label)).filter((label) => label !== one.label);

async function more(one, files) {
  await watch(`Taking photos of ${one.label}`, (progress) => send(chosen(files), { group: () => one.label, progress }));
  document.dispatchEvent(new CustomEvent("go", { detail: "unknowns" }));
}

async function rename(one) {
  const name = await question(`Rename ${one.label}`, "What is it called?", { value: one.label, yes: "Rename" });
  if (name && name !== one.label) change("/classes/rename", { old: one.label, new: name });
}

async function merge(one) {
  const other = await question(`Merge into ${one.label}`, "Which class is the same? Its photos are answered with this name from now on.",
    { list: names(one), yes: "Merge" });
  if (other) change("/classes/merge", { one: one.label, other });
}

async function forget(one) {
  const sure = await question(`Forget ${one.label}?`, "Its photos and all that was computed of them are removed from the model, "
    + "and nothing is kept to go back to: this cannot be undone. Photos that were sent stay on the Try tab until you clear them there.", { yes: "Forget", danger: true });
  if (sure) change("/classes/forget", { name: one.label });
}
