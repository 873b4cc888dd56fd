// What can be asked over HTTP, from the server's own description of it.

import { h } from "./core.js";

const api = await (await fetch("/openapi.json")).json();
const origin = location.origin;

function example(path, method, what) {
  if (method === "get") return `curl ${origin}${path}`;
  if (what.requestBody?.content["multipart/form-data"]) return `curl -F images=@a.jpg -F images=@b.jpg -F accept=0.95 ${origin}${path}`;
  return `curl -H "Content-Type: application/json" -d '{…}' ${origin}${path}`;
}

const refusals = (what) => Object.entries(what.responses ?? {}).filter(([status]) => status >= "400")
  .map(([status, { description }]) => h("li", {}, h("b", {}, status), ` ${description}`));

document.getElementById("panel").append(
  h("h1", {}, `${api.info.title} ${api.info.version}`), h("p.quiet", {}, api.info.description),
  ...Object.entries(api.paths).flatMap(([path, methods]) => Object.entries(methods).map(([method, what]) =>
    h("section.card", {}, h("h2", {}, h("code", {}, `${method.toUpperCase()} ${path}`)), h("strong", {}, what.summary ?? ""),
      h("p", {}, what.description ?? ""), h("pre", {}, example(path, method, what)),
      what.requestBody?.content["application/json"]?.example && h("pre", {}, JSON.stringify(what.requestBody.content["application/json"].example, null, 1)),
      h("ul.quiet", {}, refusals(what))))));
