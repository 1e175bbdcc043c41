// One topology: a sentence, its graph, five charts, and tabs.
import { html, useState, useEffect, useRef, num, exact, counted, figure, rate, percent, millis, bytes, lasted, clock, users, link, tight, go, useGet, Load, session } from "./lib.js";
import { Graph, Overview, held, isLarge } from "./graph.js";
import { Charts } from "./charts.js";
import { Status } from "./cluster.js";
import { Act } from "./dialogs.js";
import { Journey, Message, Stacks } from "./journey.js";

const TABS = [["components", "Components"], ["workers", "Workers"], ["errors", "Errors"], ["letters", "Dead letters"], ["journey", "Journey"], ["upgrade", "Upgrade"], ["conf", "Configuration"]];

export function TopologyScreen({ topology, cluster, at, ask, bar }) {
  const [isShown, show] = useState(false);
  const body = { topology: topology.name };
  const parts = users(topology), executors = Object.fromEntries(parts.map((each) => [each.id, each.executors]));
  const tab = TABS.find(([id]) => id === at.tab) ? at.tab : "components";
  const count = { errors: topology.failures.length, letters: topology.dead_letters };
  return html`<div class="head"><h1>${topology.name}</h1><${Status} status=${topology.status} isWell=${topology.is_well} /><span class="pill">${lasted(cluster.time_ms - topology.launch_ms)}</span><span class="grow"></span>
      ${session.read_only ? html`<span class="pill" title="started with the read-only connection file">read-only: no actions</span>` : html`<${Act} ask=${ask} verb="rebalance" body=${body} components=${parts.map((each) => each.id)} executors=${executors} workers=${topology.workers_given} label="Rebalance …" />
      <${Act} ask=${ask} verb=${topology.status === "INACTIVE" ? "activate" : "deactivate"} body=${body} label=${topology.status === "INACTIVE" ? "Activate …" : "Deactivate …"} /><${Act} ask=${ask} verb="log-level" body=${{ ...body, level: "DEBUG", secs: 60 }} label="Log level …" /><${Act} ask=${ask} verb="kill" body=${body} label="Kill …" />`}</div>
    <p class="sentence">${tight(topology.sentence)}</p>
    ${unsaid(topology).map(([words, isGrave]) => html`<p class=${isGrave ? "alert" : "alert note"} key=${words}>${isGrave ? "▲ " : ""}${tight(words)}</p>`)}
    ${bar}<button class="narrow" aria-expanded=${isShown} onClick=${() => show(!isShown)}>${isShown ? "Hide graph" : "Show graph"}</button>
    ${at.as === "table" ? null : html`<section class=${"card graphcard" + (isShown ? " shown" : "")}>${isLarge(topology.graph) && html`<div class="bar"><span class="small grow">${counted(parts.length, "component")} in flow order, line by line</span><button aria-pressed=${at.as === "overview"} onClick=${() => go({ as: at.as === "overview" ? "" : "overview" })}>overview</button></div>`}<${at.as === "overview" ? Overview : Graph} topology=${topology} /></section>`}
    <${Tiles} topology=${topology} span=${at.window} /><${Charts} topology=${topology.name} time=${cluster.time_ms} />
    <div class="bar" role="tablist" aria-label="parts of ${topology.name}" onKeyDown=${(event) => turn(event, tab)}>${TABS.map(([id, words]) => html`<button key=${id} id="tab-${id}" role="tab" tabindex=${id === tab ? 0 : -1} aria-selected=${id === tab} aria-controls="panel" onClick=${() => go({ tab: id, component: "", worker: "", message: "" })}>${words}${count[id] ? ` ${num(count[id])}` : ""}</button>`)}</div>
    <section class="card" id="panel" role="tabpanel" aria-label=${tab}>${tab === "components" ? html`<${Components} topology=${topology} time=${cluster.time_ms} />` : tab === "workers" ? html`<${Workers} topology=${topology} at=${at} cluster=${cluster} ask=${ask} />` : tab === "errors" ? html`<${Errors} topology=${topology} />` : tab === "letters" ? html`<${Letters} topology=${topology} ask=${ask} />` : tab === "journey" ? html`<${Journey} topology=${topology} message=${at.message} time=${cluster.time_ms} />` : tab === "upgrade" ? html`<${Upgrade} topology=${topology} ask=${ask} />` : html`<${Conf} topology=${topology} />`}</section>
    ${at.component && topology.components[at.component] && html`<${Drawer} topology=${topology} component=${topology.components[at.component]} time=${cluster.time_ms} />`}`;
}
// Causes of lost or missing results: a number each, red from the first one on. Of the chosen window but for what stays.
function Tiles({ topology, span }) {
  const counts = topology.window?.counts || {}, deaths = Object.values(topology.workers).reduce((sum, each) => sum + each.deaths, 0);
  const all = [["late inputs", counts.late, span], ["bad records", counts.bad, span], ["failed tries", counts.failed, span], ["dead letters", topology.dead_letters, "kept"], ["worker deaths", deaths, "since assigned"]];
  return html`<div class="tiles">${all.map(([name, count, of]) => html`<div class="card" key=${name}><div class="small">${name}, ${of}</div><div class=${"big" + (count ? " bad" : "")} title=${count ? exact(count) : ""}>${count ? "▲ " : ""}${num(count || 0)}</div></div>`)}</div>`;
}
// What is wrong in addition to what the sentence says already, and whether it needs a person: a part that is the limit of the
// rate does not, for some part always is.
const LIMITS = ["slow", "skewed", "held back"];
function unsaid({ sentence, paused, problem, problems, culprits }) {
  const found = new Map([...[paused, problem, ...problems].map((each) => [each, true]), ...culprits.map((each) => [each.sentence, !LIMITS.includes(each.fault)])]);
  return [...found].filter(([words]) => words && !sentence.includes(words));
}
// Arrow keys turn the tabs, as in every tab list; Tab leaves them.
function turn(event, tab) {
  const ids = TABS.map(([id]) => id), now = ids.indexOf(tab);
  const next = { ArrowRight: (now + 1) % ids.length, ArrowLeft: (now + ids.length - 1) % ids.length, Home: 0, End: ids.length - 1 }[event.key];
  if (next === undefined) return;
  event.preventDefault();
  go({ tab: ids[next], component: "", worker: "", message: "" });
  document.getElementById("tab-" + ids[next]).focus();
}
const COLUMNS = [["component", (c) => c.id, ""], ["tasks", (c) => c.task_count, "n wide"], ["emitted", (c) => c.window?.emitted_per_s, "n wide"], ["executed", (c) => c.window?.executed_per_s, "n"], ["busy", (c) => c.window?.busy, ""], ["execute", (c) => c.window?.execute_ms, "n wide"], ["waits", (c) => c.queued, "n"], ["watermark", (c) => c.watermark_ms, "n wide"], ["late", (c) => c.window?.counts.late, "n wide"], ["failed", (c) => c.window?.counts.failed, "n"]];
// Event time up to which windows and timers may fire: how far behind the clock, or its date where events are of another day.
const watermark = (ms, now) => ((ms ?? null) === null ? "-" : now - ms > 86_400_000 || ms > now ? new Date(ms).toISOString().slice(0, 16).replace("T", " ") : lasted(now - ms) + " behind");
export function Components({ topology, time }) {
  const [[by, sign], sort] = useState(["busy", -1]);
  const value = COLUMNS.find(([name]) => name === by)[1];
  const rows = users(topology).sort((a, b) => { const [x, y] = [value(a) ?? -1, value(b) ?? -1]; return sign * (x < y ? -1 : x > y ? 1 : 0); });
  return html`<table><thead><tr>${COLUMNS.map(([name, , kind]) => html`<th key=${name} class=${kind} aria-sort=${by === name ? (sign > 0 ? "ascending" : "descending") : "none"}><button onClick=${() => sort([name, by === name ? -sign : name === "component" ? 1 : -1])}>${name}${by === name ? (sign > 0 ? " ▲" : " ▼") : ""}</button></th>`)}</tr></thead><tbody>
    ${rows.map((each) => html`<tr key=${each.id}><td><a href="#" onClick=${(e) => { e.preventDefault(); go({ component: each.id }); }}>${each.id}</a> <span class="small"><span class="wide">${each.kind}</span>${each.faults.length ? " ▲ " + each.faults.join(", ") : ""}</span></td><td class="n wide">${each.task_count}</td><td class="n wide" title=${exact(each.counts.emitted)}>${rate(each.window?.emitted_per_s)}</td><td class="n" title=${exact(each.counts.executed)}>${each.kind === "spout" ? "-" : rate(each.window?.executed_per_s)}</td>
      <td class="busy"><${Load} share=${each.window?.busy} held=${held(each)} /></td><td class="n wide">${millis(each.window?.execute_ms)}</td><td class="n">${num(each.kind === "spout" ? each.pending : each.queued)}</td><td class="n wide" title=${each.watermark_ms ? new Date(each.watermark_ms).toISOString() : ""}>${watermark(each.watermark_ms, time)}</td><td class="n wide" title=${exact(each.counts.late)}>${num(each.window?.counts.late)}</td><td class="n" title=${exact(each.counts.failed)}>${num(each.window?.counts.failed)}</td></tr>`)}</tbody></table>`;
}
function Drawer({ topology, component, time }) {
  const holder = useRef(null), close = () => go({ component: "" });
  useEffect(() => { holder.current.showModal(); }, [component.id]);
  const tasks = Object.values(component.tasks || {}), total = tasks.reduce((sum, each) => sum + each.counts.executed, 0);
  const waits = Object.entries(component.window?.paused || {}).map(([cause, share]) => `${percent(share)} held back (${cause})`);
  return html`<dialog class="drawer" ref=${holder} aria-labelledby="drawer" onClose=${close}><div class="bar"><h1 id="drawer" class="grow">${component.id}</h1><button onClick=${close} autofocus>Close</button></div><p>${component.kind}, ${counted(component.executors, "executor")}, ${counted(component.task_count, "task")}${component.has_state ? ", keeps state" : ""}; ${[`${percent(component.window?.busy)} busy`, ...waits].join(", ")}</p>
    <p>${component.inputs.length ? html`input: ${component.inputs.map((each) => `${each.component}/${each.stream} ${each.fields.length ? "by " + each.fields.join(", ") : each.grouping}`).join("; ")}` : "no inputs"}; output: ${Object.entries(component.streams).filter(([name]) => !name.startsWith("__")).map(([name, fields]) => `${name}(${fields.join(", ")})`).join("; ") || "none"}</p>
    <p>execute p50 ${millis((component.execute_us.p50 ?? null) === null ? null : component.execute_us.p50 / 1000)}, p99 ${millis((component.execute_us.p99 ?? null) === null ? null : component.execute_us.p99 / 1000)} (since its process began)</p>
    <div class="scroll" tabindex="0" role="region" aria-label="tasks"><table><thead><tr><th>task</th><th>worker</th><th>busy</th><th class="n">executed</th><th class="n">share</th></tr></thead><tbody>${tasks.map((each) => html`<tr key=${each.task}><td>#${each.task}</td><td>${each.slot || "not assigned"}</td><td class="busy"><${Load} share=${each.busy} /></td><td class="n">${rate(each.executed_per_s)}</td><td class="n">${total ? percent(each.counts.executed / total) : "-"}</td></tr>`)}</tbody></table></div>
    <${Windows} windows=${component.windows || {}} />
    <${Metrics} metrics=${topology.user_metrics.filter((each) => each.component === component.id)} />
    ${component.last_error && html`<h2>Last error, ${clock(component.last_error.time_ms)}</h2><pre>${component.last_error.text + "\n" + component.last_error.traceback}</pre>`}</dialog>`;
}
const OF_WINDOW = ["emitted", "executed", "acked", "failed", "late", "parked"];
const Windows = ({ windows }) => html`<h2>Counts by window</h2><div class="scroll" tabindex="0" role="region" aria-label="counts by window"><table><thead><tr><th>window</th>${OF_WINDOW.map((name) => html`<th class="n" key=${name}>${name}</th>`)}<th class="n">execute</th></tr></thead><tbody>${Object.entries(windows).map(([name, each]) => html`<tr key=${name}><td>${name}</td>${OF_WINDOW.map((count) => html`<td class="n" key=${count} title=${exact(each.counts[count])}>${num(each.counts[count])}</td>`)}<td class="n">${millis(each.execute_ms)}</td></tr>`)}</tbody></table></div>`;
const Metrics = ({ metrics }) => metrics.length > 0 && html`<h2>Metrics of its code</h2><div class="scroll" tabindex="0" role="region" aria-label="metrics"><table><thead><tr><th>metric</th><th>kind</th><th class="n">value</th></tr></thead><tbody>${metrics.map((each) => html`<tr key=${each.name + each.task}><td>${each.name}${each.task === null ? "" : ` #${each.task}`}</td><td>${each.kind}</td>
    <td class="n">${each.kind === "histogram" ? `${exact(each.count)} values, mean ${figure(each.count ? each.value / each.count : null)}, p50 ${figure(each.p50)}, p99 ${figure(each.p99)}` : exact(each.value)}</td></tr>`)}</tbody></table></div>`;
const inside = (worker) => Object.entries(worker.tasks).filter(([name]) => !name.startsWith("__")).map(([name, n]) => `${name}×${n}`);
export function Workers({ topology, at, cluster, ask }) {
  const rows = Object.values(topology.workers), chosen = topology.workers[at.worker];
  if (!rows.length) return html`<p class="empty">It has no worker yet: ${topology.problems[0] || "Nimbus has not placed it; free slots are on the cluster's screen"}.</p>`;
  return html`<table><thead><tr><th>worker</th><th>state</th><th class="n wide">pid</th><th class="n wide">up</th><th class="n wide">memory</th><th class="n">CPU</th><th class="n wide">commits</th><th class="wide">loop time</th><th class="n">beat</th></tr></thead><tbody>${rows.map((each) => html`<tr key=${each.slot} class=${each === chosen ? "on" : ""}><td><a href="#" onClick=${(e) => { e.preventDefault(); go({ worker: each.slot }); }}>${each.slot}</a> <span class="small" title=${inside(each).join(", ")}>${inside(each).slice(0, 8).join(", ")}${inside(each).length > 8 ? ` and ${inside(each).length - 8} more` : ""}</span></td><td class="state">${each.state === "RUNNING" ? "● " : "▲ "}${each.state}${each.deaths ? `, ${counted(each.deaths, "death")}` : ""}</td><td class="n wide">${each.pid ?? "-"}</td><td class="n wide">${each.start_ms ? lasted(cluster.time_ms - each.start_ms) : "-"}</td><td class="n wide">${each.memory_mb === null ? "-" : num(each.memory_mb, 0) + " MB"}</td><td class="n">${each.cpu_percent === null ? "-" : num(each.cpu_percent, 0) + " %"}</td><td class="n wide">${rate(each.commits_per_s)}<span class="small">${each.commits_per_s && each.loop.commit ? `, ${millis((1000 * each.loop.commit) / each.commits_per_s)} each` : ""}</span></td><td class="wide small">${Object.entries(each.loop).filter(([, share]) => share > 0.005).sort((a, b) => b[1] - a[1]).map(([name, share]) => `${name} ${percent(share)}`).join(", ") || "-"}</td><td class="n">${each.beat_ms ? lasted(cluster.time_ms - each.beat_ms) + " ago" : "-"}</td></tr>`)}</tbody></table>
    ${chosen && html`<div class="bar part"><h2 class="grow">Worker ${chosen.slot}</h2><${Act} ask=${ask} verb="restart" body=${{ topology: topology.name, worker: chosen.slot }} label="Restart this worker …" /></div>${chosen.message && html`<p class="alert">${chosen.message}</p>`}<${Stacks} topology=${topology.name} slot=${chosen.slot} /><${Log} topology=${topology.name} slot=${chosen.slot} />`}`;
}
function Log({ topology, slot }) {
  const [wanted, want] = useState("");
  const { found, error } = useGet(`/page/log/${encodeURIComponent(topology)}/${encodeURIComponent(slot)}?q=${encodeURIComponent(wanted)}`, 3000);
  return html`<div class="bar part"><h2>Log</h2><label class="small">search <input type="search" value=${wanted} onInput=${(e) => want(e.target.value)} /></label></div>${error ? html`<p class="alert">${error}</p>` : found && html`<p class="small">${exact(found.found)} of ${counted(found.all, "kept line")}${found.found > found.lines.length ? `, the last ${found.lines.length} are shown` : ""}</p><pre class="log" tabindex="0">${found.lines.join("\n") || "nothing is kept, or nothing matches"}</pre>`}`;
}
export function Errors({ topology }) {
  const last = users(topology).filter((each) => each.last_error);
  if (!topology.failures.length && !last.length) return html`<p class="empty">Nothing has failed.</p>`;
  return html`<table><thead><tr><th>component</th><th>error</th><th>at</th><th class="n">times</th></tr></thead><tbody>${topology.failures.map((each) => html`<tr key=${each.component + each.error + each.place}><td>${each.component}</td><td>${each.error}</td><td>${each.place}</td><td class="n">${exact(each.count)}</td></tr>`)}</tbody></table>${last.map((each) => html`<details key=${each.id}><summary>${each.id}, ${clock(each.last_error.time_ms)} on ${each.last_error.place}: ${each.last_error.text}</summary><pre>${each.last_error.traceback}</pre></details>`)}`;
}
function Letters({ topology, ask }) {
  const { found, error } = useGet(`/page/letters/${encodeURIComponent(topology.name)}`, 5000);
  if (error) return html`<p class="alert">${error}</p>`;
  if (!found) return html`<p class="empty">Reading …</p>`;
  const groups = {};
  for (const [id, letter] of Object.entries(found.letters)) (groups[letter.cause] ||= []).push([id, letter]);
  if (!found.count) return html`<p class="empty">No tuple was given up. One that fails its tries is parked here, with its input, its state and the line that raised; it can be replayed when the code is fixed.</p>`;
  return html`<p>${counted(found.count, "tuple")} parked${found.count > Object.keys(found.letters).length ? `; the oldest ${Object.keys(found.letters).length} are shown` : ""}, ${Object.keys(groups).length === 1 ? "one cause" : Object.keys(groups).length + " causes"}</p>${Object.entries(groups).map(([cause, several]) => { const ids = several.map(([id]) => id), body = { topology: topology.name, ids }; return html`<div key=${cause}><div class="bar"><h2>${cause} ×${several.length}</h2><${Act} ask=${ask} verb="replay" body=${body} label="Replay all of this cause …" /><${Act} ask=${ask} verb="drop" body=${body} label="Drop …" /></div>
    ${several.slice(0, 20).map(([id, letter]) => html`<details key=${id}><summary>${id} · ${letter.from} → ${letter.component}#${letter.task} · ${counted(letter.attempts, "try", "tries")} · ${clock(letter.time_ms)}</summary><pre>${Object.entries(letter.values).map(([name, value]) => `${name} = ${value}`).join("\n")}</pre><pre>${letter.reason + "\n" + letter.traceback}</pre>${letter.state && html`<pre>${"state\n" + letter.state.join("\n")}</pre>`}
      <div class="bar"><${Act} ask=${ask} verb="replay" body=${{ ...body, ids: [id] }} label="Replay …" /><${Act} ask=${ask} verb="drop" body=${{ ...body, ids: [id] }} label="Drop …" /><a href="/page/capsule/${encodeURIComponent(topology.name)}/${encodeURIComponent(id)}">Save as test</a>${letter.roots.map((root) => html`<span class="small" key=${root}>journey of <${Message} root=${root} /></span>`)}</div></details>`)}</div>`; })}`;
}
function Upgrade({ topology, ask }) {
  const { found, error } = useGet(`/page/upgrade/${encodeURIComponent(topology.name)}`, 2000), body = { topology: topology.name };
  if (error) return html`<p class="alert">${error}</p>`;
  if (!found) return html`<p class="empty">Reading …</p>`;
  if (found.stage === "NONE") return html`<p class="empty">No upgrade is under way. New code is given to some workers at a time:<pre>sparkstorm upgrade start JOB.yaml --num 1 --live-shadow BOLT</pre></p>`;
  return html`<p>${found.stage}, batch ${found.batches}: ${counted(found.upgraded.length, "worker")} on the new code, ${found.upgrading.length} change, ${found.remaining.length} wait${found.rollback ? `; taken back: ${found.rollback}` : ""}</p>${found.shadow && html`<${Comparison} shadow=${found.shadow} wanted=${found.shadow_tuples} />`}
    <div class="bar">${["continue", "complete", "rollback"].map((each) => html`<${Act} key=${each} ask=${ask} verb="upgrade" body=${{ ...body, step: each }} label=${each + " …"} />`)}</div>`;
}
// The new code and the old on the same tuples, before any worker has it.
function Comparison({ shadow, wanted }) {
  return html`<h2>New code and old code, ${shadow.component}#${shadow.task}</h2><progress max=${wanted || 1} value=${shadow.compared} aria-label="tuples compared"></progress><p>${exact(shadow.compared)} of ${counted(wanted, "tuple")} compared, ${shadow.different ? `${exact(shadow.different)} came out differently` : "no difference"}${shadow.skipped ? `; ${exact(shadow.skipped)} were not compared, since the new code fell behind` : ""}</p>
    ${shadow.problem && html`<p class="alert">▲ ${shadow.problem}</p>`}${shadow.first.length > 0 && html`<pre>${shadow.first.join("\n")}</pre>`}`;
}
export const Rows = ({ rows }) => html`<table class="conf"><tbody>${rows.map(([name, value]) => html`<tr key=${name}><td>${name}</td><td>${JSON.stringify(value)}</td></tr>`)}</tbody></table>`;
function Conf({ topology }) {
  const [wanted, want] = useState("");
  const { found, error } = useGet(`/page/conf/${encodeURIComponent(topology.name)}`);
  if (error) return html`<p class="alert">${error}</p>`;
  const rows = Object.entries(found || {}).filter(([name]) => name.includes(wanted)).sort();
  return html`<label class="small">search <input type="search" value=${wanted} onInput=${(e) => want(e.target.value)} /></label>${rows.length ? html`<${Rows} rows=${rows} />` : html`<p class="empty">Nothing is configured here, or this connection may not read it. <code>sparkstorm explain KEY</code> says what a key does.</p>`}`;
}
