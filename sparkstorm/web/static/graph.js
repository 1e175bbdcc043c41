// The graph as the server has laid it out: colour is load, a hatched stripe is back-pressure, width is the rate.
import { html, useState, users, rate, percent, num, step, go } from "./lib.js";

const held = (each) => Math.max(0, each.window?.paused?.pending || 0, each.window?.paused?.backlog || 0, each.window?.paused?.store || 0);
function along(topology, name) {
  const found = new Set([name]);
  for (const [from, to] of [["sender", "receiver"], ["receiver", "sender"]]) {
    const open = [name], seen = new Set(open);
    while (open.length) { const at = open.pop(); for (const edge of Object.values(topology.edges)) if (edge[from] === at && !seen.has(edge[to])) { seen.add(edge[to]); found.add(edge[to]); open.push(edge[to]); } }
  }
  return found;
}
// Only the browser knows how wide a name is: W is three times as wide as i.
const pen = document.createElement("canvas").getContext("2d");
const widthOf = (text, font) => { pen.font = `${font} ${getComputedStyle(document.body).fontFamily}`; return pen.measureText(text).width; };
function fitted(name, room) {
  const fits = (text) => widthOf(text, "650 14px") <= room;
  for (let kept = name.length; kept > 2; kept--) {
    const short = kept === name.length ? name : name.slice(0, Math.ceil(kept * 0.6)) + "…" + name.slice(-Math.floor(kept * 0.4));
    if (fits(short)) return short;
  }
  return "…";
}
// A large graph is read at its own size, by scrolling; as an overview it is a map of its components in flow order.
export const isLarge = ({ width, height }) => width > 1500 || height > 560;
const said = (each) => `${each.kind} ${each.id}, ${percent(each.window?.busy)} busy, ${each.task_count} tasks${held(each) > 0.1 ? ", held back" : ""}${each.faults.length ? ", " + each.faults.join(", ") : ""}`;
export function Overview({ topology }) {
  return html`<div class="slots">${topology.graph.order.map((name) => topology.components[name]).filter(Boolean).map((each) => html`<button key=${each.id} class="slot" title=${said(each)} aria-label=${said(each)} onClick=${() => go({ component: each.id })}><svg viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true"><rect class="trackfill" width="100" height="8" /><rect class="f${step(each.window?.busy)}" width=${100 * Math.min(1, each.window?.busy || 0)} height="8" />${held(each) > 0.1 && html`<rect y="5" width="100" height="3" fill="url(#hatch)" />`}</svg><div>${each.faults.length ? "▲ " : ""}${each.id}</div><div>${percent(each.window?.busy)}</div></button>`)}</div><${Legend} />`;
}
export function Graph({ topology }) {
  const [over, setOver] = useState(null);
  const graph = topology.graph, lit = over && along(topology, over);
  if (!graph.order.length) return null;
  const flow = (edge) => edge.keys.reduce((sum, key) => { const value = topology.edges[key]?.sent_per_s; return value === null || value === undefined ? sum : (sum || 0) + value; }, null);
  return html`<div class="scroll graphbox"><svg class=${"graph" + (lit ? " lit" : "")} width=${graph.width} height=${graph.height} viewBox="0 0 ${graph.width} ${graph.height}" role="group" aria-label="graph of ${topology.name}">
    ${Object.entries(graph.edges).map(([key, edge]) => {
      const per_s = flow(edge), dim = lit && !(lit.has(edge.sender) && lit.has(edge.receiver)) ? "dim" : "";
      const anchor = edge.back ? "start" : edge.sender === edge.receiver ? "middle" : "end";
      // Below the rate where there is room, else behind it: edges that end together are a line apart.
      const isAlone = Object.values(graph.edges).filter((other) => other.receiver === edge.receiver).length === 1;
      return html`<g key=${key} class=${dim}><path class="edge" d=${edge.d} stroke-width=${1.2 + Math.log10(1 + (per_s || 0)) * 0.7} stroke-dasharray=${edge.back ? "5 4" : "none"} marker-end="url(#arrow)" />
        <text class="soft label" x=${edge.x} y=${edge.y} text-anchor=${anchor}>${isAlone ? rate(per_s) : `${edge.label}, ${rate(per_s)}`}<title>${edge.label}</title></text>
        ${isAlone && html`<text class="soft label" x=${edge.x} y=${edge.y + 20} text-anchor=${anchor}>${edge.label}</text>`}</g>`;
    })}
    ${graph.order.map((name) => {
      const each = topology.components[name], box = graph.boxes[name], share = each?.window?.busy;
      if (!each) return null;
      const open = () => go({ component: name });
      const wait = each.kind === "spout" ? `${num(each.pending)} open` : each.queued ? `${num(each.queued)} wait` : "";
      const label = said(each), count = `×${each.executors}`;
      return html`<g key=${name} class=${"node" + (lit && !lit.has(name) ? " dim" : "")} transform="translate(${box.x} ${box.y})" role="button" tabindex="0" aria-label=${label} onClick=${open} onKeyDown=${(e) => (e.key === "Enter" || e.key === " ") && (e.preventDefault(), open())}
          onMouseEnter=${() => setOver(name)} onMouseLeave=${() => setOver(null)}><title>${label}</title>
        <rect class="box" width=${graph.wide} height=${graph.tall} rx="9" />
        <text class="name" x="12" y="22">${fitted(name, graph.wide - 30 - widthOf(count, "400 11.5px"))}</text>
        <text class="soft" x=${graph.wide - 12} y="22" text-anchor="end">${count}</text>
        <text class="soft" x="12" y="41">${percent(share)}${(each.faults[0] || "").length > 9 ? "" : " busy"}</text><text class="soft" x=${graph.wide - 12} y="41" text-anchor="end">${each.faults.length ? "▲ " + each.faults[0] : wait}</text>
        <rect class="trackfill" x="12" y="48" width=${graph.wide - 24} height="8" rx="4" /><rect class="f${step(share)}" x="12" y="48" width=${(graph.wide - 24) * Math.min(1, share || 0)} height="8" rx="4" />
        ${held(each) > 0.1 && html`<rect x="12" y="57" width=${graph.wide - 24} height="5" fill="url(#hatch)" />`}</g>`;
    })}</svg></div><${Legend} />`;
}
const Legend = () => html`<div class="legend">busy ${["idle", "from 15 %", "from 40 %", "from 70 %", "from 90 %"].map((words, n) => html`<span key=${words}><svg viewBox="0 0 14 10" aria-hidden="true"><rect class="f${n}" width="14" height="10" rx="2" /></svg>${words}</span>`)}
      <span><svg viewBox="0 0 14 10" aria-hidden="true"><rect width="14" height="10" fill="url(#hatch)" /></svg>held back by what follows</span><span>line: rows per second</span></div>`;
export { held };
