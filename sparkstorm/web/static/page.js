// The page: head, live record, keys, and the screen that the address names.
import { html, render, useState, useEffect, begin, usePlace, useStream, useTick, go, link, clock, session, place, plain, Hatch } from "./lib.js";
import { ClusterScreen } from "./cluster.js";
import { TopologyScreen } from "./topology.js";
import { ActionDialog } from "./dialogs.js";

const THEMES = ["auto", "light", "dark"];
const KEYS = [["g c", "cluster"], ["space", "pause"], ["[ ]", "shorter or longer window"], ["Esc", "close"], ["?", "these keys"]];
function usePage() {
  const [theme, set] = useState(document.documentElement.dataset.theme);
  return [theme, () => { const next = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length]; document.documentElement.dataset.theme = next; localStorage.setItem("theme", next); set(next); }];
}
function Page() {
  const at = usePlace();
  const [isPaused, pause] = useState(false), [action, ask] = useState(null), [toast, setToast] = useState(null), [keys, showKeys] = useState(false);
  const [record, heard, late] = useStream(at, isPaused), [theme, nextTheme] = usePage();
  useTick(1000);
  useEffect(() => {
    let before = "";
    const press = (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) || document.querySelector("dialog[open]")) return;
      const names = session.windows, now = names.indexOf(place().window);
      if (event.key === " " && event.target === document.body) { event.preventDefault(); pause((is) => !is); }
      else if (event.key === "[" && now > 0) go({ window: names[now - 1] });
      else if (event.key === "]" && now < names.length - 1) go({ window: names[now + 1] });
      else if (event.key === "?") showKeys((is) => !is);
      else if (event.key === "Escape") { showKeys(false); setToast(null); }
      else if (before === "g" && (event.key === "c" || event.key === "t")) go({ topology: "", component: "", worker: "", tab: "" });
      before = event.key;
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, []);
  const cluster = record?.cluster, topology = record?.topology;
  const isSilent = !isPaused && !at.at && Date.now() - heard > 5000, isLate = !isSilent && late > 5, isStale = isSilent || isLate || !!cluster?.stale_since_ms;
  document.title = topology ? `${topology.name} · SparkStorm` : "SparkStorm";
  const bar = html`<div class="bar">${session.windows.map((each) => html`<button key=${each} aria-pressed=${each === at.window} onClick=${() => go({ window: each })}>${each}</button>`)}<span class="grow"></span><button aria-pressed=${isPaused} onClick=${() => pause(!isPaused)}>${isPaused ? "go on" : "pause"}</button>
    <button class="wide" aria-pressed=${at.as === "table"} onClick=${() => go({ as: at.as === "table" ? "" : "table" })}>as table</button>${record && html`<button class="wide" onClick=${() => import("./report.js").then((found) => found.report(record))}>Report</button>`}</div>`;
  return html`<div class=${isStale ? "stale" : ""}><${Hatch} /><header><a class="brand" ...${link({})}>SparkStorm</a><nav><a ...${link({})}>cluster</a>${cluster && Object.values(cluster.topologies).slice(0, 6).map((each) => html`<a key=${each.id} class="wide" ...${link({ topology: each.name })}>${each.name}</a>`)}</nav><button title="keys" onClick=${() => showKeys(!keys)} class="wide">?</button><button onClick=${nextTheme} aria-label="theme: ${theme}">${{ auto: "◐", light: "☀", dark: "☾" }[theme]}</button></header>
    ${isSilent && html`<p class="alert" role="status">No news from the server since ${clock(heard)}; trying again. Topologies run on without this page.</p>`}${isLate && html`<p class="alert" role="status">The cluster's stores have not answered for ${late} s; trying again.</p>`}${cluster?.stale_since_ms && html`<p class="alert" role="status">No news from the cluster since ${clock(cluster.stale_since_ms)}: ${cluster.stale_reason}. Workers go on as far as they reach Redis.</p>`}
    ${at.at && html`<p class="alert" role="status">This is the moment ${new Date(cluster?.time_ms ?? Number(at.at)).toLocaleString("en-GB")}. <a href="#" onClick=${(e) => { e.preventDefault(); go({ at: "" }); }}>Back to now</a></p>`}${isPaused && html`<p class="alert" role="status">Paused at ${clock(heard)}.</p>`}
    ${keys && html`<section class="card" aria-label="keys"><h2>Keys</h2>${KEYS.map(([key, words]) => html`<div key=${key}><b>${key}</b> ${words}</div>`)}</section>`}
    <main>${!record ? html`<p class="empty">Reading the cluster …</p>` : record.problem ? html`<div class="head"><h1>${session.name}</h1></div><p class="alert">▲ ${record.problem}</p>` : at.topology ? (topology ? html`<${TopologyScreen} topology=${topology} cluster=${cluster} at=${at} ask=${ask} bar=${bar} />` : html`<div class="head"><h1>${plain(at.topology)}</h1></div><p class="empty">${record.gone || "Reading the topology …"} <a ...${link({})}>to the cluster</a></p>`) : html`<${ClusterScreen} cluster=${cluster} />`}</main>
    ${action && html`<${ActionDialog} action=${action} close=${() => ask(null)} say=${(text, isBad) => setToast({ text, isBad })} />`}${toast && html`<div class="toast" role="status"><span>${toast.isBad ? "▲ " : ""}${toast.text}</span><button onClick=${() => setToast(null)}>Close</button></div>`}</div>`;
}
begin().then(() => { const holder = document.getElementById("page"); holder.textContent = ""; render(html`<${Page} />`, holder); }, (error) => { document.getElementById("page").textContent = error.message; });
