// The cluster: is it well, which topologies run, and its slots as a map.
import { html, num, rate, percent, millis, lasted, step, link, tight, Load, session } from "./lib.js";

const SHAPE = { ACTIVE: "●", INACTIVE: "◐", KILLED: "✕" };
export const Status = ({ status, isWell = true }) => html`<span class=${"pill " + (status === "ACTIVE" ? (isWell ? "ok" : "bad") : "")}>${isWell ? SHAPE[status] || "◌" : "▲"} ${status}</span>`;

export function ClusterScreen({ cluster }) {
  const topologies = Object.values(cluster.topologies), window = cluster.windows["1m"] || {}, store = cluster.store;
  return html`<div class="head"><h1>${session.name}</h1></div><p class="sentence">${tight(cluster.sentence)}</p><${Problems} problems=${cluster.problems} />
    <div class="tiles"><div class="card"><div class="small">executed, last minute</div><div class="big">${rate(window.executed_per_s)}</div></div><div class="card"><div class="small">slowest p99</div><div class="big">${millis(topologies.reduce((most, each) => (each.p99_ms !== null && (most === null || each.p99_ms > most) ? each.p99_ms : most), null))}</div></div>
      <div class="card"><div class="small">slots in use</div><div class="big">${cluster.slots_used}<small> of ${cluster.slots}</small></div></div><div class="card"><div class="small">Redis</div><div class="big">${!store.is_up ? "away" : store.fullness === null ? "up" : percent(store.fullness)}<small> ${store.is_up && store.fullness !== null ? "of its memory" : ""}</small></div></div>
      <div class="card"><div class="small">leader</div><div class="big">${cluster.leader || "none"}<small> ${["", "one driver"][Object.keys(cluster.drivers).length] ?? Object.keys(cluster.drivers).length + " drivers"}</small></div></div></div>
    <section class="card"><h2>Topologies</h2>${topologies.length ? html`<div class="scroll" tabindex="0" role="region" aria-label="topologies"><table><thead><tr><th>name</th><th>status</th><th class="n">executed</th><th class="n wide">p99</th><th class="wide">busy</th><th class="n wide">pending</th><th class="n">dead letters</th><th class="n wide">workers</th><th class="n wide">runs for</th></tr></thead><tbody>
      ${topologies.map((each) => html`<tr key=${each.id}><td><a ...${link({ topology: each.name })}>${each.name}</a></td><td><${Status} status=${each.status} isWell=${each.is_well} /></td><td class="n">${rate(each.executed_per_s)}</td><td class="n wide">${millis(each.p99_ms)}</td><td class="busy wide"><${Load} share=${each.busy} /></td><td class="n wide">${num(each.pending)}</td><td class="n">${num(each.dead_letters)}</td><td class="n wide">${each.workers}</td><td class="n wide" title=${new Date(each.launch_ms).toLocaleString()}>${lasted(cluster.time_ms - each.launch_ms)}</td></tr>`)}</tbody></table></div>` : html`<${Teach} />`}</section>
    <section class="card"><h2>Hosts</h2><${Hosts} hosts=${cluster.hosts} topologies=${cluster.topologies} /></section>
    ${cluster.requests.length > 0 && html`<section class="card"><h2>Requests</h2><table><thead><tr><th>what</th><th>about</th><th class="wide">by</th><th>state</th></tr></thead><tbody>${cluster.requests.map((each) => html`<tr key=${each.id}><td>${each.kind}</td><td>${each.subject}</td><td class="wide">${each.client}</td><td>${each.error || each.step || each.state}</td></tr>`)}</tbody></table></section>`}`;
}
const Teach = () => html`<div class="empty"><p>No topology runs here. From a terminal, in your project's folder:</p><pre>export SPARKSTORM_CLUSTER=…/connection.json
sparkstorm init words ; cd words
sparkstorm submit job.yaml</pre></div>`;
export const Problems = ({ problems }) => Object.entries(problems).map(([about, several]) => several.map((each) => html`<p class="alert" key=${about + each}>▲ ${about}: ${each}</p>`));

function Hosts({ hosts, topologies }) {
  if (!Object.keys(hosts).length) return html`<p class="empty">No host has slots here now. A cluster's slots are Spark tasks: see the log of its driver.</p>`;
  return html`<div>${Object.values(hosts).map((host) => html`<div key=${host.host}><b>${host.host}</b> <span class="small">${host.slots_used} of ${host.slots.length} slots${host.mark ? `, ${host.mark}: ${host.mark_reason || "no reason given"}` : ""}</span>${host.store_problem && html`<p class="alert">▲ ${host.store_problem}</p>`}
    <div class="slots">${host.slots.map((slot) => {
      const topology = topologies[slot.topology_id], words = slot.topology_id ? topology?.name || slot.topology_id : "free";
      const inside = html`<svg viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true"><rect class="f${step(slot.busy)}" width=${100 * Math.min(1, slot.busy || 0)} height="6" /></svg><div>${slot.slot}</div><div>${words}</div>`;
      const title = `${slot.slot}: ${words}${slot.state ? ", " + slot.state : ""}, ${percent(slot.busy)} busy`;
      return topology ? html`<a key=${slot.slot} class="slot" title=${title} ...${link({ topology: topology.name, tab: "workers", worker: slot.slot })}>${inside}</a>` : html`<div key=${slot.slot} class="slot free" title=${title}>${inside}</div>`;
    })}</div></div>`)}</div>`;
}
