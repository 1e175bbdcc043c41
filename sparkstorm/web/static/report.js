// One file with the sentence, the graph, the charts as they are drawn now, every table and the configuration: to be
// attached to an issue, and opened without a server. It has no script, and its policy lets none run.
import { html, render, get, place, session } from "./lib.js";
import { Components, Errors, Rows, Workers } from "./topology.js";

const POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:";
const isDark = () => document.documentElement.dataset.theme === "dark" || (document.documentElement.dataset.theme === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);
// What cannot be pressed in a file is text there.
function still(tree) {
  tree.querySelectorAll("th button, a").forEach((each) => { const plain = document.createElement("span"); plain.className = each.className; plain.append(...each.childNodes); each.replaceWith(plain); });
  tree.querySelectorAll("button, dialog, input, label, form, .bar, [role=tabpanel], .empty").forEach((each) => each.remove());
  tree.querySelectorAll("[tabindex]").forEach((each) => each.removeAttribute("tabindex"));
  tree.querySelectorAll(".scroll").forEach((each) => { each.tabIndex = 0; each.setAttribute("role", "region"); each.setAttribute("aria-label", each.getAttribute("aria-label") || "graph"); });
  return tree;
}
function seen() {
  const copy = document.querySelector("main").cloneNode(true), from = document.querySelectorAll("main .plot");
  copy.querySelectorAll(".plot").forEach((each, n) => {
    const drawn = from[n].querySelector("canvas");
    if (drawn) each.replaceChildren(Object.assign(document.createElement("img"), { src: drawn.toDataURL(), width: drawn.clientWidth, height: drawn.clientHeight, alt: each.getAttribute("aria-label") }));
  });
  copy.querySelector(".graphcard")?.classList.add("shown");
  const holder = document.createElement("div");
  holder.append(...copy.childNodes);
  return still(holder);
}
function part(title, content) {
  const holder = document.createElement("section");
  holder.className = "card";
  render(html`<h2>${title}</h2>${content}`, holder);
  return still(holder);
}
async function text(record) {
  const css = await (await fetch("/static/page.css")).text(), { topology, cluster } = record, parts = [seen()];
  if (topology) {
    const conf = await get(`/page/conf/${encodeURIComponent(topology.name)}`).catch(() => ({}));
    parts.push(part("Components", html`<${Components} topology=${topology} time=${cluster.time_ms} />`), part("Workers", html`<${Workers} topology=${topology} at=${{ worker: "" }} cluster=${cluster} />`), part("Errors", html`<${Errors} topology=${topology} />`), part("Configuration", html`<details><summary>${Object.keys(conf).length} keys</summary><${Rows} rows=${Object.entries(conf).sort()} /></details>`));
  }
  const head = part(`SparkStorm report: ${topology?.name || session.name}`, html`<p class="small">${session.name}, ${new Date(cluster.time_ms).toISOString()}, window ${place().window}</p>`);
  const all = part("All figures", html`<details><summary>as JSON</summary><pre>${JSON.stringify(record, null, 1)}</pre></details>`);
  const hatch = document.querySelector("svg.hide").outerHTML;
  return `<!doctype html><html lang="en" data-theme="${isDark() ? "dark" : "light"}"><head><meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="${POLICY}"><meta name="viewport" content="width=device-width"><title>SparkStorm report</title><style>${css}</style></head><body><main id="page" class="report">${hatch}${[head, ...parts, all].map((each) => each.outerHTML).join("")}</main></body></html>`;
}
export async function report(record) {
  const anchor = Object.assign(document.createElement("a"), { href: URL.createObjectURL(new Blob([await text(record)], { type: "text/html" })), download: `sparkstorm-${record.topology?.name || "cluster"}.html` });
  anchor.click();
  URL.revokeObjectURL(anchor.href);
}
