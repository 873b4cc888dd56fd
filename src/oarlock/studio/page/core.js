// What all parts of the page use: elements, requests, and the state that the server answers with.

export const state = { overview: null };

// An element. Text is only ever text: nothing that a user wrote becomes HTML.
export function h(tag, properties = {}, ...children) {
  const [name, ...classes] = tag.split(".");
  const element = document.createElement(name || "div");
  if (classes.length) element.className = classes.join(" ");
  for (const [key, value] of Object.entries(properties ?? {})) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value === true) element.setAttribute(key, "");
    else if (value !== false && value != null) element.setAttribute(key, value);
  }
  for (const child of children.flat(Infinity)) if (child != null && child !== false) element.append(child);
  return element;
}

export function button(text, onclick, properties = {}) {
  return h(properties.main ? "button.main" : "button", { type: "button", onclick, ...properties, main: null }, text);
}

export function count(number, one, many = `${one}s`) {
  return `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
}

export const percent = (share, digits = 0) => `${(100 * share).toFixed(digits)} %`;

// Ask the server; what it refuses is a sentence on the page.
export async function ask(path, body, headers = {}) {
  const options = { headers };
  if (body instanceof FormData) Object.assign(options, { method: "POST", body });
  else if (body !== undefined) {
    options.method = "POST";
    options.headers = { ...headers, "Content-Type": "application/json" };
    options.body = JSON.stringify(body);
  }
  let answer;
  try {
    answer = await fetch(path, options);
  } catch {
    throw new Error("The server does not answer. Is it still running?");
  }
  const content = await answer.json().catch(() => ({}));
  if (answer.status === 401) location.assign("/");
  if (!answer.ok) throw new Error(sentence(content.error ?? `The server answered ${answer.status}.`));
  return content;
}

const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?…]$/.test(text) ? "" : ".");

// Do something that may be refused, and have the page show what came of it.
export async function attempt(work) {
  try {
    return await work();
  } catch (problem) {
    say(problem.message);
    return null;
  }
}

export async function change(path, body = {}) {
  return attempt(async () => {
    state.overview = await ask(`/api${path}`, body);
    document.dispatchEvent(new Event("changed"));
    return state.overview;
  });
}

export function say(text, kind = "error") {
  const box = document.getElementById("said");
  const line = h("p", { class: kind }, h("span", {}, text), button("✕", () => line.remove(), { "aria-label": "Close" }));
  box.append(line);
  while (box.children.length > 3) box.firstChild.remove();
  if (kind !== "error") setTimeout(() => line.remove(), 6000);
}

// A question with an answer, as a dialog; what is resolved is the text that was entered, or null.
export function question(title, text, { value = null, list = null, yes = "OK", danger = false } = {}) {
  return new Promise((resolve) => {
    const input = value !== null && !list && h("input", { name: "answer", value, maxlength: 200, required: true });
    const select = list && h("select", { name: "answer" }, list.map((name) => h("option", { value: name }, name)));
    const form = h("form", { method: "dialog" },
      h("h2", {}, title), h("p", {}, text), input || select || null,
      h("div.buttons", {}, button("Cancel", () => dialog.close()),
        h(danger ? "button.danger" : "button.main", { type: "submit", value: "yes" }, yes)));
    const dialog = h("dialog", { onclose: () => {
      resolve(dialog.returnValue === "yes" ? (input || select || { value: "yes" }).value : null);
      dialog.remove();
    } }, form);
    document.body.append(dialog);
    dialog.showModal();
    if (input) input.select();
  });
}
