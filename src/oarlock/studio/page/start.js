// Start: a model that does not exist yet is made of class folders.

import { button, change, count, h, say, state } from "./core.js";
import { learning, watch } from "./jobs.js";
import { dropZone, send, some, thumbnail } from "./photos.js";
import { learn } from "./unknowns.js";

const chosen = { method: null, trunk: null, epochs: "" };
const PREVIEW = 8;

export function renderStart() {
  const { overview } = state;
  const named = overview.groups.filter((one) => one.name);
  return h("div.start", {},
    h("h1", {}, `Make ${overview.file}`),
    h("p.quiet", {}, "A model begins with photos of what it should know: one folder for each class. It keeps what it needs of them in one file."),
    dropZone("Drop class folders here", "apple/, pear/, … with some photos in each: ten are a start, fifty are good.", take, { folders: true }),
    overview.folder && classFolders(overview.folder),
    overview.interrupted && h("section.card.line.warning", {}, h("strong", {}, "Learning was interrupted"),
      h("div.buttons", {}, button("Go on", () => change("/learn/go-on"), { main: true }), button("Give up", () => change("/learn/leave")))),
    named.map(classCard), named.length > 0 && how(named));
}

export async function take(photos) {
  const inFolders = photos.filter((one) => one.folder);
  if (!some(photos)) return;
  if (!inFolders.length) { say("These photos are in no folder: drop the folders, for their names are those of the classes."); return; }
  await watch(`Taking ${count(inFolders.length, "photo")}`, (progress) =>
    send(inFolders, { group: (one) => one.folder, progress }));
  document.dispatchEvent(new Event("stale"));
}

function classFolders(folder) {
  const taken = new Set(state.overview.groups.map((one) => one.name));
  const classes = Object.entries(folder.classes).filter(([name]) => !taken.has(name));
  if (!classes.length) return null;
  const boxes = classes.map(([name, photos]) => h("label.check", {},
    h("input", { type: "checkbox", value: name, checked: true }), h("span", {}, `${name} (${count(photos, "photo")})`)));
  const form = h("form", { onsubmit: (event) => {
    event.preventDefault();
    change("/folder/classes", { names: [...form.querySelectorAll(":checked")].map((box) => box.value) });
  } }, h("strong", {}, `Class folders in ${folder.name}`), h("div.checks", {}, boxes), h("button", { type: "submit" }, "Take these"));
  return h("section.card", {}, form);
}

function classCard(one) {
  const input = h("input.name", {
    value: one.name, "aria-label": "Name of the class", "data-key": `name-${one.id}`, maxlength: 200,
    onchange: () => change("/groups/rename", { group: one.id, name: input.value }),
  });
  return h("section.card.group", {}, h("header", {}, input, h("span.quiet", {}, count(one.count, "photo")),
    h("span.buttons", {}, button("Leave out", () => change("/groups/throw", { photos: one.photos })))),
  h("div.thumbs", {}, one.photos.slice(0, PREVIEW).map((photo) => h("span.thumb", {}, thumbnail(photo)))));
}

function how(named) {
  const { choices } = state.overview;
  const select = (key, values, value) => h("select", { onchange: (event) => { chosen[key] = event.target.value; } },
    values.map((name) => h("option", { value: name, selected: name === (chosen[key] ?? value) }, name)));
  const epochs = h("input", { type: "number", min: 1, max: 1000, value: chosen.epochs, placeholder: "as the method sets it",
    onchange: () => { chosen.epochs = epochs.value; } });
  const make = () => {
    const settings = Object.fromEntries(Object.entries({ method: chosen.method, trunk: chosen.trunk }).filter(([, value]) => value));
    if (epochs.value) settings.epochs = Number(epochs.value);
    learn(named, settings);
  };
  return h("section.card", {},
    h("details", { "data-key": "how" }, h("summary", {}, "How it learns"), h("div.fields", {},
      h("label", {}, "Method", select("method", choices.methods, choices.method)),
      h("label", {}, "Trunk", select("trunk", choices.trunks, choices.trunk)),
      h("label", {}, "Epochs", epochs)),
    h("p.quiet", {}, "oar is the most accurate. slda takes seconds and promises nothing.")),
    h("div.buttons", {}, button(`Make the model of ${count(named.length, "class", "classes")}`, make, { main: true, disabled: learning() })));
}
