// Photos: how they are dropped, sent a few at a time, and shown.

import { ask, attempt, button, count, h, say } from "./core.js";

const TOGETHER = 20; // files of a request
const BYTES = 24e6; // or so many bytes
const IMAGE = /\.(jpe?g|png|bmp|gif|webp|tiff?|ppm)$/i;

// A place where photos can be dropped; `take` is given files with `folder`, the name of the folder they were in.
export function dropZone(title, text, take, { folders = false } = {}) {
  const pick = (directory) => h("input", {
    type: "file", multiple: true, accept: directory ? null : "image/*", webkitdirectory: directory, hidden: true,
    onchange: (event) => take(chosen(event.target.files)),
  });
  const files = pick(false), directory = pick(true);
  const zone = h("section.drop", {
    ondragover: (event) => { if (hasFiles(event)) { event.preventDefault(); zone.classList.add("over"); } },
    ondragleave: () => zone.classList.remove("over"),
    ondrop: async (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      zone.classList.remove("over");
      take(await dropped(event.dataTransfer));
    },
  },
  h("strong", {}, title), h("p", {}, text),
  h("div.buttons", {}, folders ? null : button("Choose photos", () => files.click()),
    button(folders ? "Choose a folder of class folders" : "Choose a folder", () => directory.click())),
  files, directory);
  return zone;
}

export const hasFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");

export function chosen(files) {
  return [...files].filter((file) => IMAGE.test(file.name) || file.type.startsWith("image/"))
    .map((file) => ({ file, folder: file.webkitRelativePath.split("/").at(-2) ?? null }));
}

// Whether there are photos among what was given; if not, the page says so.
export function some(photos) {
  if (!photos.length) say("There is no photo among these.");
  return photos.length > 0;
}

export async function dropped(transfer) {
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  if (!entries.length) return chosen(transfer.files);
  const found = [];
  for (const entry of entries) await walk(entry, null, found);
  return found;
}

async function walk(entry, folder, found) {
  if (entry.name.startsWith(".")) return;
  if (entry.isFile) {
    if (IMAGE.test(entry.name)) found.push({ file: await new Promise((done, not) => entry.file(done, not)), folder });
    return;
  }
  const reader = entry.createReader();
  for (;;) { // a reader gives a hundred at a time
    const some = await new Promise((done, not) => reader.readEntries(done, not));
    if (!some.length) return;
    for (const inside of some) await walk(inside, entry.name, found);
  }
}

// Send photos, a few at a time; `group` says into which group of the board each goes, if into any.
export async function send(photos, { group = () => null, progress }) {
  const answered = [], refused = [];
  let sent = 0;
  for (const batch of batches(photos, group)) {
    const form = new FormData();
    if (batch.group) form.append("group", batch.group);
    for (const { file } of batch.photos) form.append("images", file, file.name);
    const answer = await attempt(() => ask("/api/photos", form));
    if (answer) { answered.push(...answer.photos); refused.push(...answer.refused); }
    sent += batch.photos.length;
    if (!progress(sent, photos.length)) break;
  }
  if (refused.length) {
    const more = refused.length > 1 ? ` (and ${count(refused.length - 1, "other")})` : "";
    say(`Left out: ${refused[0].error}${more}`);
  }
  return answered;
}

function* batches(photos, group) {
  let batch = null, bytes = 0;
  for (const photo of photos) {
    const name = group(photo);
    if (batch && (batch.group !== name || batch.photos.length === TOGETHER || bytes + photo.file.size > BYTES)) {
      yield batch;
      batch = null;
    }
    if (!batch) { batch = { group: name, photos: [] }; bytes = 0; }
    batch.photos.push(photo);
    bytes += photo.file.size;
  }
  if (batch) yield batch;
}

export function thumbnail(photo, name = "") {
  return h("img", { src: `/api/thumbnails/${photo}`, alt: name, loading: "lazy", decoding: "async", draggable: false });
}
