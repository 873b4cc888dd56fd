// Try: photos and what the model says of them; how sure it has to be is a slider.

import { ask, attempt, button, change, count, h, percent, state } from "./core.js";
import { watch } from "./jobs.js";
import { keeping } from "./keep.js";
import { dropZone, send, some, thumbnail } from "./photos.js";

const view = { where: "sent", show: "all", page: 0, photos: [], count: 0, pages: 1, stamp: "", accept: null };

function thresholdOf(accept) {
  const steps = state.overview.model?.thresholds ?? [];
  return steps.findLast(([share]) => share <= accept + 1e-9)?.[1] ?? steps[0]?.[1] ?? null;
}

const isKnown = (answer, threshold) => answer.score !== null && (threshold === null || answer.score >= threshold);

export function renderTry() {
  const { overview } = state;
  overview.accept = view.accept ?? overview.accept; // while what was chosen is on its way
  const panel = h("div.try", {},
    dropZone("Drop photos here", "or paste them, or choose some: the model says what they show.", take),
    overview.folder && folderCard(overview.folder),
    slider(), filters(), h("div.grid", { id: "photos", "aria-live": "polite" }), pager());
  queueMicrotask(loadPage); // once this is on the page
  return panel;
}

export async function take(photos) {
  if (!some(photos)) return;
  Object.assign(view, { where: "sent", show: "all", page: 0, stamp: "" });
  await watch(`Looking at ${count(photos.length, "photo")}`, (progress) => send(photos, { progress }));
  document.dispatchEvent(new Event("stale"));
}

function folderCard(folder) {
  return h("section.card.line", {}, h("div", {}, h("strong", {}, folder.name),
    h("p.quiet", {}, `${count(folder.photos, "photo")} in the folder that the studio was started with`)),
  h("div.buttons", {},
    button("Show", () => { Object.assign(view, { where: "folder", show: "all", page: 0, stamp: "" }); redraw(); }),
    button("Look through all", () => { view.where = "folder"; change("/folder/look"); })));
}

function slider() {
  const { overview } = state;
  if (!overview.model.thresholds.length) {
    return h("p.quiet", {}, "The model keeps no known photos to compare with, so nothing is called unknown.");
  }
  const told = h("output", { for: "accept" }, percent(overview.accept, 1));
  const input = h("input", {
    id: "accept", "data-key": "accept", type: "range", min: 0.5, max: 1, step: 0.005, value: overview.accept,
    oninput: () => { overview.accept = Number(input.value); told.textContent = percent(overview.accept, 1); mark(); },
    onchange: () => keep(Number(input.value)),
  });
  return h("section.card.slider", {},
    h("label", { for: "accept" }, "Known photos to accept"), told, input,
    h("div.ends", {}, h("span", {}, "stricter: more is unknown"), h("span", {}, "more is accepted")));
}

// Of several positions in a row the last one counts, however answers come back.
async function keep(accept) {
  view.accept = accept;
  const overview = await attempt(() => ask("/api/accept", { accept }));
  if (view.accept !== accept) return;
  view.accept = null;
  if (!overview) return;
  state.overview = overview;
  redraw();
}

function filters() {
  const kinds = [["all", "All"], ["known", "Known"], ["unknown", "Unknown"]];
  const places = state.overview.folder ? [["sent", "Sent here"], ["folder", state.overview.folder.name]] : [];
  const choice = (key, values) => values.length > 0 && h("div.choice", { role: "group" }, values.map(([value, text]) =>
    button(text, () => { Object.assign(view, { [key]: value, page: 0, stamp: "" }); redraw(); },
      { "aria-pressed": String(view[key] === value) })));
  return h("div.bar", {}, choice("where", places), choice("show", kinds), h("span.quiet", { id: "tally" }),
    view.where === "sent" && state.overview.sent > 0 && button("Clear", clear, { class: "quiet" }));
}

async function clear() {
  const photos = view.photos.map((one) => one.photo);
  if (photos.length) await change("/photos/remove", { photos });
  view.stamp = "";
  redraw();
}

const redraw = () => document.dispatchEvent(new Event("changed"));

async function loadPage() {
  const { overview } = state;
  const stamp = [view.where, view.show, view.page, overview.model.version, overview.changes].join();
  if (stamp !== view.stamp) {
    if (view.photos.length) draw(); // what was there stays until there is something else
    const query = new URLSearchParams({ where: view.where, show: view.show, page: view.page, accept: overview.accept });
    const found = await attempt(() => ask(`/api/photos?${query}`));
    if (!found) return;
    Object.assign(view, found, { stamp });
  }
  draw();
  const missing = view.photos.filter((one) => !one.answer).map((one) => one.photo);
  if (!missing.length) return;
  const answers = await attempt(() => ask("/api/photos/look", { photos: missing }));
  if (answers && stamp === view.stamp) {
    for (const one of view.photos) one.answer ??= answers[one.photo];
    draw();
  }
}

const draw = () => keeping(drawPhotos);

function drawPhotos() {
  const grid = document.getElementById("photos");
  if (!grid) return;
  grid.replaceChildren(...view.photos.map(card));
  if (!view.photos.length) {
    grid.append(h("p.empty", {}, view.show === "all" ? "No photos yet." : `No ${view.show} photos here.`));
  }
  document.getElementById("pager")?.replaceWith(pager());
  mark();
}

function card(one) {
  const { answer } = one;
  const figure = h("figure.photo", { tabindex: 0, "data-photo": one.photo }, thumbnail(one.photo, one.name));
  if (!answer) figure.append(h("figcaption", {}, h("span.quiet", {}, "…")));
  else if (answer.error) figure.append(h("figcaption", {}, h("span.new", {}, answer.error)));
  else {
    figure.append(h("figcaption", {}, h("b.label", {}), h("small.what", {}),
      h("ol.top", {}, answer.top.map(({ label, probability }) => h("li", {}, h("span", {}, String(label)),
        h("meter", { min: 0, max: 1, value: probability ?? 0, "aria-label": `probability of ${label}` }),
        h("span", {}, percent(probability ?? 0)))))));
  }
  return figure;
}

// What the slider changes at once: which photos are known, and how many.
function mark() {
  const threshold = thresholdOf(state.overview.accept);
  let known = 0, unknown = 0;
  for (const figure of document.querySelectorAll("#photos [data-photo]")) {
    const { answer } = view.photos.find((one) => one.photo === figure.dataset.photo) ?? {};
    if (!answer || answer.error) continue;
    const accepted = isKnown(answer, threshold);
    accepted ? known++ : unknown++;
    figure.classList.toggle("unknown", !accepted);
    const [{ label, probability }] = answer.top;
    figure.querySelector(".label").textContent = accepted ? String(label) : "unknown";
    figure.querySelector(".what").textContent = accepted
      ? `${percent(probability ?? 0)} · task ${answer.task}` : `nearest: ${label}, task ${answer.task}`;
    const score = answer.score === null ? "none" : answer.score.toPrecision(4);
    figure.title = `${figure.querySelector("img").alt} · score ${score}, known from ${threshold?.toPrecision(4)}`;
  }
  const tally = document.getElementById("tally");
  if (tally) tally.textContent = known + unknown ? `${known} known, ${unknown} unknown on this page` : "";
}

function pager() {
  const turn = (by) => { view.page += by; view.stamp = ""; redraw(); };
  return h("nav.bar", { id: "pager", "aria-label": "Pages" }, view.pages > 1 && [
    button("← Earlier", () => turn(-1), { disabled: view.page === 0 }),
    h("span.quiet", {}, `page ${view.page + 1} of ${view.pages}, ${count(view.count, "photo")}`),
    button("Later →", () => turn(1), { disabled: view.page + 1 >= view.pages })]);
}
