// Unknowns: photos that look like nothing learned, in groups that are named and taught.

import { button, change, count, h, percent, question, state } from "./core.js";
import { learning } from "./jobs.js";
import { thumbnail } from "./photos.js";

const selected = new Set();
let wanted = ""; // number of groups

export function renderUnknowns() {
  const { overview } = state;
  const there = new Set([...overview.groups.flatMap((group) => group.photos), ...overview.thrown]);
  for (const photo of selected) if (!there.has(photo)) selected.delete(photo);
  return h("div.unknowns", {},
    overview.interrupted && interrupted(overview.interrupted),
    overview.reports.length > 0 && changed(overview.reports[0]),
    waiting(), h("div.groups", {}, overview.groups.map(group)), thrown(), knownNames(), learnBar());
}

function waiting() {
  const { unknown, groups } = state.overview;
  const text = unknown ? `${count(unknown, "unknown photo")} in no group`
    : groups.length ? "Every unknown photo has a group" : "Nothing is unknown";
  const how = unknown ? "Photos that show the same kind of thing are put together; you then say what it is."
    : groups.length ? "Drag photos to where they belong, give groups a name, and have the named ones learned."
      : "Drop photos on the Try tab. What looks like nothing learned turns up here.";
  return h("section.card.line", {}, h("div", {}, h("strong", {}, text), h("p.quiet", {}, how)),
    (unknown > 0 || groups.some((one) => !one.name)) && sorting(unknown));
}

function sorting(unknown) {
  const number = h("input", { type: "number", min: 1, max: 50, placeholder: "as many as it takes", "data-key": "groups",
    "aria-label": "Number of groups", value: wanted, oninput: () => { wanted = number.value; } });
  const sort = (anew) => change("/unknowns/group", { groups: Number(number.value) || null, anew });
  return h("div.buttons", {}, number, unknown > 0 && button("Sort into groups", () => sort(false), { main: true }),
    state.overview.groups.some((one) => !one.name) && button("Sort anew", () => sort(true), { title: "Sort all photos of groups without a name again" }));
}

function group(one) {
  const known = state.overview.model?.tasks.flat().includes(one.name);
  const input = h("input.name", {
    value: one.name ?? "", placeholder: "What is this?", "data-key": `name-${one.id}`, list: "known-names",
    "aria-label": `Name of a group of ${count(one.count, "photo")}`, maxlength: 200, autocomplete: "off",
    onchange: () => rename(one, input), onkeydown: (event) => { if (event.key === "Enter") input.blur(); },
  });
  const box = h("section.card.group", {
    "data-group": one.id,
    ondragover: (event) => { if (isPhotos(event)) { event.preventDefault(); box.classList.add("over"); } },
    ondragleave: () => box.classList.remove("over"),
    ondrop: (event) => {
      if (!isPhotos(event)) return;
      event.preventDefault();
      move(JSON.parse(event.dataTransfer.getData("application/x-photos")), one.id);
    },
  },
  h("header", {}, input, h("span.quiet", {}, count(one.count, "photo") + (known ? ", more of a known class" : "")),
    h("span.buttons", {}, others(one).length > 0 && button("Merge", () => merge(one)),
      button("Select all", () => { one.photos.forEach((photo) => selected.add(photo)); redraw(); }),
      button("Throw away", () => change("/groups/throw", { photos: one.photos })))),
  h("div.thumbs", {}, one.photos.map(thumb)),
  one.count > one.photos.length && h("p.quiet", {}, `and ${count(one.count - one.photos.length, "more photo")}`));
  return box;
}

async function rename(one, input) {
  if (!await change("/groups/rename", { group: one.id, name: input.value })) input.value = one.name ?? "";
}

const isPhotos = (event) => event.dataTransfer.types.includes("application/x-photos");
const redraw = () => document.dispatchEvent(new Event("changed"));
const others = (one) => state.overview.groups.filter((other) => other.id !== one.id);
const called = (one) => `${one.name ?? "no name"} (${count(one.count, "photo")}, group ${one.id})`;

async function merge(one) {
  const list = others(one).map(called);
  const answer = await question("Merge groups", `Put into ${called(one)}:`, { list, yes: "Merge" });
  const other = others(one)[list.indexOf(answer)];
  if (other) change("/groups/merge", { group: one.id, other: other.id });
}

function thumb(photo, place) {
  const toggle = () => { selected.has(photo) ? selected.delete(photo) : selected.add(photo); redraw(); };
  return h("button.thumb", {
    type: "button", draggable: true, "data-key": photo, "aria-pressed": String(selected.has(photo)), onclick: toggle,
    "aria-label": `Photo ${place + 1}: choose it to move it`,
    ondragstart: (event) => {
      const photos = selected.has(photo) ? [...selected] : [photo];
      event.dataTransfer.setData("application/x-photos", JSON.stringify(photos));
      event.dataTransfer.effectAllowed = "move";
    },
  }, thumbnail(photo));
}

async function move(photos, group) {
  selected.clear();
  await change("/groups/move", { photos, group });
}

async function onSelected(path) {
  const photos = [...selected];
  selected.clear();
  await change(path, { photos });
}

function thrown() {
  const { thrown: photos } = state.overview;
  return photos.length > 0 && h("details.card", { "data-key": "thrown" }, h("summary", {}, `Thrown away: ${count(photos.length, "photo")}`),
    h("div.thumbs", {}, photos.map(thumb)),
    button("Put all back", () => change("/groups/release", { photos })));
}

const knownNames = () => h("datalist", { id: "known-names" },
  [...new Set(state.overview.model?.tasks.flat())].map((name) => h("option", { value: name })));

function learnBar() {
  const named = state.overview.groups.filter((one) => one.name);
  if (selected.size) {
    const select = h("select", { "aria-label": "Move to", onchange: () => move([...selected], Number(select.value)) },
      h("option", { value: "" }, "Move to…"), state.overview.groups.map((one) => h("option", { value: one.id }, called(one))));
    return h("div.sticky", {}, h("span", {}, `${count(selected.size, "photo")} chosen`), h("span.buttons", {}, select,
      button("New group", () => onSelected("/groups/split")), button("Throw away", () => onSelected("/groups/throw")),
      button("Cancel", () => { selected.clear(); redraw(); })));
  }
  if (!named.length || learning()) return null;
  return h("div.sticky", {}, h("span", {}, named.map((one) => one.name).join(", ")),
    button(`Learn ${count(named.length, "named group")}`, () => learn(named), { main: true }));
}

export async function learn(groups, settings = {}) {
  if (await change("/learn", { groups: groups.map((one) => one.id), settings })) scrollTo({ top: 0 }); // where it will be told
}

function interrupted(lesson) {
  const names = Object.entries(lesson).map(([name, photos]) => `${name} (${count(photos, "photo")})`).join(", ");
  return h("section.card.line.warning", {}, h("div", {}, h("strong", {}, "Learning was interrupted"), h("p.quiet", {}, names)),
    h("div.buttons", {}, button("Go on", () => change("/learn/go-on"), { main: true }),
      button("Give up", () => change("/learn/leave"))));
}

// What the last lesson changed.
export function changed(report, place = 0) {
  const names = Object.keys(report.classes).join(", ") || "nothing new";
  const facts = [];
  if (report.unknown_before) {
    facts.push(h("li", {}, h("b", {}, `${report.known_now} of ${report.unknown_before}`), " former unknowns are now known"));
  }
  const { before, after, all } = report.accuracy ?? {};
  if (before != null && after != null) {
    facts.push(h("li", {}, h("b", {}, `${percent(before, 1)} → ${percent(after, 1)}`), " right of the earlier classes’ calibration photos"));
  }
  if (all != null) facts.push(h("li", {}, h("b", {}, percent(all, 1)), " right of all classes’ calibration photos"));
  if (report.promise?.tasks.length) {
    facts.push(h("li", {}, h("b", {}, report.promise.holds ? "Every promise holds" : "A promise is broken"),
      `: ${count(report.promise.tasks.length, "task")} asked again`));
  } else if (report.promise) facts.push(h("li", {}, `${report.promise.method} promises nothing about earlier tasks`));
  return h("details.card.changed", { "data-key": report.when, open: place === 0 && Date.now() - Date.parse(report.when) < 6e5 },
    h("summary", {}, h("strong", {}, `Learned: ${names}`)),
    h("ul", {}, facts),
    report.notes?.length > 0 && h("p.quiet", {}, report.notes.join(" ")),
    report.examples?.length > 0 && h("div.thumbs", {}, report.examples.map(({ photo, label }) =>
      h("figure.small", {}, thumbnail(photo, String(label)), h("figcaption", {}, String(label))))));
}
