// One message's journey, traces of a sample, and the flame graph of a worker: each is read when it is asked for.
import { html, useState, useEffect, counted, millis, lasted, clock, useGet, post, go, session } from "./lib.js";

const look = (message) => go({ tab: "journey", message });
export const Message = ({ root }) => html`<a href="#" onClick=${(event) => { event.preventDefault(); look(root); }}>${root}</a>`;
export function Journey({ topology, message, time }) {
  const [typed, type] = useState(message);
  useEffect(() => type(message), [message]);
  const path = `/page/journey/${encodeURIComponent(topology.name)}`;
  const { found, error } = useGet(message ? `${path}?message=${encodeURIComponent(message)}` : path, 3000);
  return html`<form class="bar" onSubmit=${(event) => { event.preventDefault(); look(typed.trim()); }}><label class="small">message or its id <input type="search" value=${typed} onInput=${(e) => type(e.target.value)} /></label><button>Look</button>${message && html`<button type="button" onClick=${() => look("")}>Open messages</button>`}</form>
    ${error ? html`<p class="alert">${error}</p>` : !found ? html`<p class="empty">Reading …</p>` : found.journey ? html`<${One} journey=${found.journey} />` : html`<${Open} messages=${found.open || []} time=${time} />`}
    <${Traces} topology=${topology} />`;
}
function Open({ messages, time }) {
  if (!messages.length) return html`<p class="empty">No message is open. One is while its tree is neither acked nor failed; it needs an id from its spout, and ackers.</p>`;
  return html`<div class="scroll" tabindex="0" role="region" aria-label="open messages"><table><thead><tr><th>message</th><th>spout</th><th class="n">open for</th><th>id</th></tr></thead><tbody>${messages.map((each) => html`<tr key=${each.root}><td><${Message} root=${each.root} /></td><td>${each.component}#${each.task}</td><td class="n">${lasted(time - each.emit_ms)}</td><td>${each.message_id}</td></tr>`)}</tbody></table></div>`;
}
function One({ journey }) {
  return html`<p><b>${journey.sentence}</b></p>${journey.message && html`<p class="small">emitted ${clock(journey.message.emit_ms)} by ${journey.message.component}#${journey.message.task}, id ${journey.message.message_id}</p>`}
    ${(journey.stays.length > 0 || journey.parked.length > 0) && html`<div class="scroll" tabindex="0" role="region" aria-label="where it is"><table><thead><tr><th>task</th><th>state</th><th class="n">rows</th><th>from</th><th>since</th><th>what</th></tr></thead><tbody>
    ${journey.stays.map((each, n) => html`<tr key=${n}><td>${each.component}#${each.task}</td><td>${each.state}${each.attempts ? `, ${counted(each.attempts, "try", "tries")}` : ""}</td><td class="n">${each.rows}</td><td>${each.source}</td><td>${each.since_ms ? clock(each.since_ms) : "-"}</td><td>${each.failure || Object.entries(each.values).map(([name, value]) => `${name} = ${value}`).join(", ") || "-"}</td></tr>`)}
    ${journey.parked.map((each) => html`<tr key=${each.id}><td>${each.component}#${each.task}</td><td>given up, dead letter ${each.id}</td><td class="n">1</td><td>-</td><td>${clock(each.time_ms)}</td><td>${each.reason}</td></tr>`)}</tbody></table></div>`}`;
}
function Asked({ path, label, children }) {
  const [state, set] = useState({});
  const ask = () => { set({ isWaiting: true }); post(path, { seconds: 5 }).then((found) => set({ found }), (error) => set({ error: error.message })); };
  if (session.read_only) return null;
  return html`<div class="bar"><button onClick=${ask} disabled=${!!state.isWaiting}>${state.isWaiting ? "Looking for 5 s …" : label}</button></div><div aria-live="polite">${state.error && html`<p class="alert">${state.error}</p>`}${state.found && children(state.found)}</div>`;
}
const COLOR = { emitted: "f1", executed: "f2", held: "f3", failed: "f4", "given up": "f4", acked: "f1" };
function Traces({ topology }) {
  return html`<h2>Traces</h2><${Asked} path=${`/page/traces/${encodeURIComponent(topology.name)}`} label="Follow a sample of messages for 5 s">${(found) => !found.traces.length ? html`<p class="empty">No message was traced: none was emitted meanwhile, or the topology has no ackers, so that its rows have no roots.</p>` : html`<p class="small">${counted(found.count, "message was", "messages were")} followed; the failed ones come first, then the slowest</p>
    ${found.traces.map((trace) => html`<details key=${trace.root}><summary>${trace.has_failed ? "▲ " : ""}${millis(trace.took_ms)} · ${trace.events.map((each) => each.where).filter((each, n, all) => each !== all[n - 1]).join(" → ")}</summary><p class="small"><${Message} root=${trace.root} /></p>
      <div class="scroll" tabindex="0" role="region" aria-label="events of ${trace.root}"><table><tbody>${trace.events.map((each, n) => html`<tr key=${n}><td>${each.where}</td><td>${each.what}${each.text ? ": " + each.text : ""}</td><td class="busy"><svg viewBox="0 0 100 9" preserveAspectRatio="none" aria-hidden="true" width="180" height="9"><rect class="trackfill" width="100" height="9" /><rect class=${COLOR[each.what] || "f0"} x=${100 * Math.max(0, each.began_ms) / (trace.took_ms || 1)} width=${Math.max(0.8, 100 * each.took_ms / (trace.took_ms || 1))} height="9" /></svg></td><td class="n">${millis(each.began_ms)}</td><td class="n">commit ${millis(each.committed_ms)}</td><td class="small wide">${each.worker}</td></tr>`)}</tbody></table></div></details>`)}`}<//>`;
}
const ROW = 18, WIDE = 1200;
export function Stacks({ topology, slot }) {
  return html`<${Asked} key=${slot} path=${`/page/stacks/${encodeURIComponent(topology)}/${encodeURIComponent(slot)}`} label="Stacks, 5 s">${(found) => html`<${Flame} found=${found} slot=${slot} />`}<//>`;
}
function Flame({ found, slot }) {
  const [root, zoom] = useState({ x: 0, width: 1, depth: 0 });
  if (!found.boxes.length) return html`<p class="empty">No sample was taken.</p>`;
  const seen = found.boxes.filter((each) => each.x < root.x + root.width - 1e-9 && each.x + each.width > root.x + 1e-9);
  const tall = ROW * (1 + Math.max(...seen.map((each) => each.depth)));
  return html`<p class="small">${counted(found.samples, "sample")} in ${found.seconds} s; width: samples, colour: use of a core${found.idle.length ? `; waited all the time: ${found.idle.join(", ")}` : ""}. Click on a call to enlarge it, on a thread to see all.</p>
    <div class="scroll" tabindex="0" role="region" aria-label="flame graph of ${slot}"><svg class="graph flame" viewBox="0 0 ${WIDE} ${tall}" role="img" aria-label="flame graph of ${slot}">${seen.map((each, n) => {
      const x = Math.max(0, (each.x - root.x) / root.width) * WIDE, end = Math.min(1, (each.x + each.width - root.x) / root.width) * WIDE, most = Math.floor((end - x - 6) / 6.6);
      return html`<g key=${n} onClick=${() => zoom(each.depth ? each : { x: 0, width: 1, depth: 0 })}><title>${each.title}</title><rect class="f${each.load}" x=${x} y=${each.depth * ROW} width=${Math.max(0.5, end - x - 0.6)} height=${ROW - 1} rx="2" />${most > 2 && html`<text x=${x + 3} y=${each.depth * ROW + 12.5}>${each.name.length > most ? each.name.slice(0, most - 1) + "…" : each.name}</text>`}</g>`;
    })}</svg></div>`;
}
