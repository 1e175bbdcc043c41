// Figures, addresses, requests and the live stream.
import { html, render, Component, createContext, useState, useEffect, useRef, useMemo, useCallback } from "/static/vendor/preact-htm.js";
export { html, render, Component, createContext, useState, useEffect, useRef, useMemo, useCallback };

const NB = "\u00a0"; // figures never wrap between number and unit
export function num(value, digits = 1) {
  if (value === null || value === undefined) return "-";
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) if (Math.abs(value) >= size) return (value / size).toFixed(value / size >= 100 ? 0 : digits) + NB + unit;
  return Number.isInteger(value) || Math.abs(value) >= 10 ? String(Math.round(value)) : value.toFixed(digits);
}
export const exact = (value) => (value === null || value === undefined ? "not known" : value.toLocaleString("en-US"));
export const counted = (value, one, many = one + "s") => `${exact(value)} ${value === 1 ? one : many}`;
export const figure = (value) => (value === null || value === undefined ? "-" : value !== 0 && Math.abs(value) < 0.01 ? value.toExponential(1) : num(value, 2));
export const rate = (value) => (value === null || value === undefined ? "-" : num(value) + "/s");
export const percent = (share) => (share === null || share === undefined ? "-" : Math.round(100 * share) + NB + "%");
export const millis = (value) => (value === null || value === undefined ? "-" : value === 0 ? "0" + NB + "ms" : (value < 0.1 ? Math.round(1000 * value) + NB + "µs" : (value >= 10 ? Math.round(value).toLocaleString("en-US") : value.toFixed(1)) + NB + "ms"));
export const bytes = (value) => (value === null || value === undefined ? "-" : Math.abs(value) < 1000 ? Math.round(value) + NB + "B" : num(value) + "B");
export function lasted(ms) {
  const s = Math.max(0, Math.round(ms / 1000));
  for (const [unit, size, smaller, part] of [["d", 86400, "h", 3600], ["h", 3600, "min", 60], ["min", 60, "s", 1]])
    if (s >= size) return `${Math.floor(s / size)}${NB}${unit} ${Math.floor((s % size) / part)}${NB}${smaller}`;
  return `${s}${NB}s`;
}
// A sentence of the server's: figures do not wrap there either.
export const tight = (text) => text?.replace(/(\d) (?=(?:ms|µs|min|s|h|d|k|M|G)\b|%)/g, "$1" + NB);
export const clock = (ms) => new Date(ms).toLocaleTimeString("en-GB");
export const step = (share) => (share === null || share === undefined ? 0 : share >= 0.9 ? 4 : share >= 0.7 ? 3 : share >= 0.4 ? 2 : share >= 0.15 ? 1 : 0);
export const users = (topology) => Object.values(topology.components).filter((each) => !each.id.startsWith("__"));

// The whole state of the page is its address, so a link can be sent.
export function place() {
  const query = new URLSearchParams(location.search);
  const get = (name, other = "") => query.get(name) || other;
  return { topology: get("topology"), window: get("window", "1m"), tab: get("tab", "components"), component: get("component"), worker: get("worker"), as: get("as"), at: get("at"), message: get("message") };
}
const listeners = new Set();
export function go(change) {
  const now = { ...place(), ...change };
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(now)) if (value && !(name === "window" && value === "1m") && !(name === "tab" && value === "components")) query.set(name, value);
  history.pushState(null, "", query.size ? "/?" + query : "/");
  listeners.forEach((each) => each());
}
export function usePlace() {
  const [now, set] = useState(place());
  useEffect(() => {
    const look = () => set(place());
    listeners.add(look);
    addEventListener("popstate", look);
    return () => { listeners.delete(look); removeEventListener("popstate", look); };
  }, []);
  return now;
}
export function link(change) {
  const now = { topology: "", window: place().window, ...change };
  const query = new URLSearchParams(Object.entries(now).filter(([, value]) => value));
  return { href: "/?" + query, onClick: (event) => { if (event.metaKey || event.ctrlKey) return; event.preventDefault(); go({ topology: "", tab: "", component: "", worker: "", at: "", as: "", message: "", ...change }); scrollTo(0, 0); } };
}

export let session = { csrf: "", read_only: true, name: "", windows: ["1m"] };
export async function begin() { session = await get("/page/session"); }
export async function get(path) { return answer(await fetch(path)); }
export async function post(path, body) {
  return answer(await fetch(path, { method: "POST", headers: { "content-type": "application/json", "x-sparkstorm-csrf": session.csrf }, body: JSON.stringify(body) }));
}
// Marks that turn the direction of text are shown as what they are: they could make an error or a log line say another thing.
const TURNS = /[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;
export const plain = (text, escape = "\\u") => text.replace(TURNS, (mark) => escape + mark.charCodeAt(0).toString(16).padStart(4, "0"));
const parsed = (text) => JSON.parse(plain(text, "\\\\u"));
async function answer(response) {
  const found = await response.text().then(parsed).catch(() => ({}));
  if (!response.ok) throw new Error(found.errorMessage || `the server answered ${response.status}`);
  return found;
}
export function merge(old, change) {
  const made = { ...old, ...(change.set || {}) };
  for (const [key, inner] of Object.entries(change.sub || {})) made[key] = merge(old[key], inner);
  for (const key of change.del || []) delete made[key];
  return made;
}
// One stream per page, none while nobody looks.
export function useStream(at, isPaused) {
  const [record, set] = useState(null);
  const [heard, hear] = useState(Date.now());
  const [late, wait] = useState(0); // seconds since the last sample, while the server goes on
  const key = `topology=${encodeURIComponent(at.topology)}&window=${at.window}&component=${encodeURIComponent(at.component)}`;
  useEffect(() => {
    if (at.at) { get(`/page/at?time_ms=${at.at}&${key}`).then((found) => { set(found); hear(Date.now()); }, (error) => set({ problem: error.message })); return undefined; }
    let source = null, last = null;
    const open = () => {
      source = new EventSource("/page/stream?" + key);
      source.addEventListener("snapshot", (event) => { last = parsed(event.data); set(last); hear(Date.now()); wait(0); });
      source.addEventListener("delta", (event) => { if (last) { last = merge(last, parsed(event.data)); set(last); } hear(Date.now()); wait(0); });
      source.addEventListener("beat", (event) => { hear(Date.now()); wait(JSON.parse(event.data).seconds); });
    };
    const close = () => { if (source) source.close(); source = null; };
    const seen = () => { close(); if (!document.hidden && !isPaused) { hear(Date.now()); open(); } };
    seen();
    document.addEventListener("visibilitychange", seen);
    return () => { close(); document.removeEventListener("visibilitychange", seen); };
  }, [key, isPaused, at.at]);
  return [record, heard, late];
}
// Whether the browser's own scheme is dark: what is drawn in a canvas is drawn anew when it changes.
export function useScheme() {
  const media = useMemo(() => matchMedia("(prefers-color-scheme: dark)"), []);
  const [isDark, set] = useState(media.matches);
  useEffect(() => {
    const see = () => set(media.matches);
    media.addEventListener("change", see);
    return () => media.removeEventListener("change", see);
  }, []);
  return isDark;
}
export function useTick(ms) {
  const [, set] = useState(0);
  useEffect(() => { const timer = setInterval(() => set((n) => n + 1), ms); return () => clearInterval(timer); }, [ms]);
}
export function useGet(path, everyMs = 0) {
  const [state, set] = useState({});
  useEffect(() => {
    let isOver = false;
    const look = () => { if (!document.hidden) get(path).then((found) => isOver || set({ found }), (error) => isOver || set({ error: error.message })); };
    look();
    const timer = everyMs ? setInterval(look, everyMs) : 0;
    return () => { isOver = true; clearInterval(timer); };
  }, [path, everyMs]);
  return state;
}
export function Load({ share, held }) {
  return html`<div class="load"><div class="track"><svg viewBox="0 0 100 9" preserveAspectRatio="none" aria-hidden="true"><rect class="f${step(share)}" width=${100 * Math.min(1, share || 0)} height="9" />
    ${held > 0.1 && html`<rect width="100" y="6" height="3" fill="url(#hatch)" />`}</svg></div><b>${percent(share)}</b></div>`;
}
export const Hatch = () => html`<svg width="0" height="0" aria-hidden="true" class="hide"><defs><pattern id="hatch" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><path class="hatch" d="M0 0V5" stroke-width="2.5" /></pattern>
  <marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="9" markerHeight="9" markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0L8 4L0 8z" fill="var(--edge)" /></marker></defs></svg>`;
