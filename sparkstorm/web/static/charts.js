// Five small charts; a time without samples is a gap. Dragging or clicking on one goes to that moment.
import { html, useEffect, useRef, useState, get, go, num, millis, bytes, place, useScheme } from "./lib.js";

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
let library = null;
const load = () => (library ||= (document.head.append(Object.assign(document.createElement("link"), { rel: "stylesheet", href: "/static/vendor/uplot.css" })), import("/static/vendor/uplot.js").then((module) => module.default)));

function withGaps(times, columns) {
  const steps = times.slice(1).map((at, n) => at - times[n]).sort((a, b) => a - b);
  const usual = Math.max(25_000, 3 * (steps[Math.floor(steps.length / 2)] || 0));
  const made = [[], ...columns.map(() => [])];
  times.forEach((at, n) => {
    if (n && at - times[n - 1] > usual) { made[0].push((times[n - 1] + 1) / 1000); columns.forEach((_, c) => made[c + 1].push(null)); }
    made[0].push(at / 1000); columns.forEach((column, c) => made[c + 1].push(column[n]));
  });
  return made;
}
function Plot({ times, columns, label, format }) {
  const holder = useRef(null), plot = useRef(null);
  const theme = document.documentElement.dataset.theme, isDark = useScheme();
  useEffect(() => {
    let isOver = false;
    load().then((UPlot) => {
      if (isOver || !holder.current) return;
      const colors = [css("--l2"), css("--soft")];
      const options = { width: holder.current.clientWidth || 200, height: 64, legend: { show: false }, padding: [4, 0, 2, 0], axes: [{ show: false }, { show: false }],
        cursor: { y: false, points: { show: false }, drag: { x: true, y: false, setScale: false } }, select: { show: true }, scales: { y: { range: (_, low, high) => [0, Math.max(high || 0, 1e-9) * 1.08] } },
        series: [{}, ...columns.map((_, n) => ({ stroke: colors[n], width: 1.6, fill: n ? undefined : css("--l2") + "28", spanGaps: false, points: { show: false } }))],
        hooks: { setSelect: [(u) => { const from = u.posToVal(u.select.left + u.select.width, "x"); if (u.select.width > 2) go({ at: String(Math.round(from * 1000)) }); }],
          setCursor: [(u) => { const n = u.cursor.idx; holder.current.title = n === null || n === undefined ? "" : `${new Date(u.data[0][n] * 1000).toLocaleTimeString("en-GB")}  ${columns.map((_, c) => format(u.data[c + 1][n])).join(" / ")}`; }] } };
      plot.current = new UPlot(options, withGaps(times, columns), holder.current);
    });
    const resize = new ResizeObserver(() => plot.current?.setSize({ width: holder.current.clientWidth, height: 64 }));
    resize.observe(holder.current);
    return () => { isOver = true; resize.disconnect(); plot.current?.destroy(); plot.current = null; };
  }, [columns.length, theme, isDark]);
  useEffect(() => { plot.current?.setData(withGaps(times, columns)); });
  return html`<div class="plot" ref=${holder} role="img" aria-label=${label}></div>`;
}
// The newest figure at a moment; what was measured longer before is no figure of it.
const NEW = 5;
const last = (column, count) => column.slice(Math.max(0, count - NEW), count).reduceRight((found, each) => found ?? each, null);
// What is drawn already is not asked for again: a long window has thousands of numbers.
function joined(old, found, spanMs) {
  if (!old?.time_ms.length) return found;
  const times = [...old.time_ms, ...found.time_ms], from = times.findIndex((at) => at >= times[times.length - 1] - spanMs);
  return Object.fromEntries(Object.keys(found).map((name) => [name, [...old[name], ...found[name]].slice(from)]));
}
const SPANS_MS = { "10m": 600_000, "3h": 10_800_000, "24h": 86_400_000 };
export function Charts({ topology, component, time }) {
  const [drawn, draw] = useState({});
  const { window } = place();
  const span = window === "all" ? "24h" : window === "1m" ? "10m" : window;
  const second = Math.floor(time / (window === "24h" ? 30_000 : 2_000));
  const path = `/page/series/${encodeURIComponent(topology)}?window=${span}${component ? "&component=" + encodeURIComponent(component) : ""}`;
  const data = drawn.path === path ? drawn.data : null;
  useEffect(() => {
    let isOver = false;
    get(data?.time_ms.length ? `${path}&since_ms=${data.time_ms[data.time_ms.length - 1]}` : path).then((found) => isOver || draw({ path, data: joined(data, found, SPANS_MS[span]) }), () => {});
    return () => { isOver = true; };
  }, [path, second]);
  if (!data) return html`<div class="charts">${[1, 2, 3, 4, 5].map((n) => html`<div class="card" key=${n}><div class="plot"></div></div>`)}</div>`;
  const kinds = [["executed", "/s", [data.executed_per_s], num], ["latency p99, p50", "", [data.p99_ms, data.p50_ms], millis], ["pending", "trees", [data.pending], num], ["waits in Redis", "", [data.backlog_bytes], bytes], ["failed", "/s", [data.failed_per_s], num]];
  const count = data.time_ms.filter((at) => at <= time).length;
  return html`<div class="charts">${kinds.map(([title, unit, columns, format]) => html`<div class="card" key=${title}><div class="small">${title}</div><div class="big">${format(last(columns[0], count))}<small> ${unit}</small></div>
    <${Plot} times=${data.time_ms} columns=${columns} format=${format} label="${title} over the last ${span}, now ${format(last(columns[0], count))} ${unit}" /></div>`)}</div>`;
}
