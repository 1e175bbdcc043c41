// Actions: the plan, what it does to running tuples, the same as a command line, and the request.
import { html, useState, useEffect, useRef, counted, post, session } from "./lib.js";

const ABOUT = {
  activate: ["Activate", "Spouts emit again."],
  deactivate: ["Deactivate", "Spouts rest; tuples under way are finished. Nothing is lost."],
  rebalance: ["Rebalance", "Executors that move stop and go on elsewhere from their last commit. Nothing is lost or counted twice."],
  restart: ["Restart worker", "The worker goes on from its last commit, in its slot. Nothing is lost."],
  "log-level": ["Log level", "All workers of the topology take the level over within a second or two."],
  upgrade: ["Upgrade", "Workers restart with the other code and go on from their last commits."],
  replay: ["Replay dead letters", "Each letter is taken off the dead letters and given to its task again, in one step."],
  drop: ["Drop dead letters", "The letters are deleted. This cannot be undone."],
  kill: ["Kill", "Spouts rest for the wait, then workers are stopped and the topology's data is deleted. This cannot be undone."],
};
const isReady = (action, body) => action.verb !== "kill" || body.typed === action.body.topology;

export function ActionDialog({ action, close, say }) {
  const holder = useRef(null);
  const [body, setBody] = useState(action.body);
  const [plan, setPlan] = useState({});
  const [title, about] = ABOUT[action.verb];
  const change = (more) => setBody({ ...body, ...more });
  useEffect(() => { holder.current.showModal(); }, []);
  useEffect(() => {
    const { typed, ...rest } = body;
    const timer = setTimeout(() => post(`/page/plan/${action.verb}`, rest).then(setPlan, (error) => setPlan({ error: error.message })), 200);
    return () => clearTimeout(timer);
  }, [JSON.stringify({ ...body, typed: "" })]);
  const run = (event) => {
    event.preventDefault();
    if (!isReady(action, body)) return;
    close();
    say(`${title}: the request is being carried out …`);
    post(`/page/do/${action.verb}`, body).then((found) => say(found.done), (error) => say(`${title} was refused: ${error.message}`, true));
  };
  const number = (name, label, now = "") => html`<label>${label} <input type="number" min="0" placeholder=${now} value=${body[name] ?? ""} onInput=${(e) => change({ [name]: e.target.value === "" ? undefined : Number(e.target.value) })} /></label>`;
  return html`<dialog ref=${holder} aria-labelledby="title" onClose=${close}><form onSubmit=${run}><h1 id="title">${title}: ${body.topology}</h1><p>${about}</p>
    ${action.verb === "rebalance" && html`${number("workers", "workers", action.workers)}${action.components.map((name) => html`<label key=${name}>executors of ${name} <input type="number" min="1" placeholder=${action.executors[name]} value=${body.executors?.[name] ?? ""} onInput=${(e) => { const executors = { ...body.executors }; if (e.target.value) executors[name] = Number(e.target.value); else delete executors[name]; change({ executors }); }} /></label>`)}${number("wait", "wait, seconds")}
      <label><input type="checkbox" checked=${!!body.reassign} onChange=${(e) => change({ reassign: e.target.checked })} /> place every worker afresh</label>`}
    ${action.verb === "log-level" && html`<label>logger <input value=${body.logger || ""} placeholder="root" onInput=${(e) => change({ logger: e.target.value })} /></label><label>level <select value=${body.level} onChange=${(e) => change({ level: e.target.value })}>${["DEBUG", "INFO", "WARNING", "ERROR", ""].map((each) => html`<option key=${each} value=${each}>${each || "reset"}</option>`)}</select></label>${number("secs", "for so many seconds (none: until changed)")}`}
    ${action.verb === "kill" && html`${number("wait", "wait, seconds")}<label>type <b>${action.body.topology}</b> to go on <input value=${body.typed || ""} autocomplete="off" onInput=${(e) => change({ typed: e.target.value })} /></label>`}
    <div aria-live="polite">${plan.error && html`<p class="alert">${plan.error}</p>`}
    ${plan.move && html`<p>${plan.workers[0]} → ${plan.workers[1]} workers, ${counted(plan.stay, "executor stays", "executors stay")}${plan.shortfall ? `; ${plan.workers[2]} wanted: ${plan.shortfall}` : ""}</p>${(plan.move.length > 0 || plan.end.length > 0) && html`<pre>${[...plan.move.map(([name, from, to]) => `${name}: ${from} → ${to}`), ...plan.end.map(([name, slot]) => `${name}: ends on ${slot}`)].join("\n")}</pre>`}`}
    ${plan.command && html`<p class="small">the same on a command line</p><pre>${plan.command}</pre>`}</div>
    <div class="bar">${plan.command && html`<button type="button" onClick=${() => navigator.clipboard?.writeText(plan.command)}>Copy command</button>`}<button type="button" onClick=${close}>Cancel</button><button class=${["kill", "drop"].includes(action.verb) ? "danger" : ""} disabled=${!isReady(action, body) || !!plan.error}>${title}</button></div></form></dialog>`;
}
// Absent where nothing may be changed; the head says why.
export const Act = ({ ask, verb, body, label, ...more }) => (session.read_only ? null : html`<button class=${verb === "kill" || verb === "drop" ? "danger" : ""} onClick=${() => ask({ verb, body, ...more })}>${label}</button>`);
