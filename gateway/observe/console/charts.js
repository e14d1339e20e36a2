// Charts over time. All share one cursor, moved by pointer or by arrow keys.
let cursorAt = null;
let range_s = 3600;
const MAX_GAP_STEPS = 2.5;

// `lines`: { name, values, color, shape }; `bounds`: { label, value }, drawn dashed. `at`: Unix seconds.
function chart({ id, title, at, step_s, lines, bounds = [], format }) {
  const end = at.length ? at[at.length - 1] : Date.now() / 1000, shown_s = Math.min(range_s, Math.max(60, end - at[0] || 0)), begin = end - shown_s;
  const first = at.findIndex(t => t >= begin), shown = first < 0 ? [] : at.slice(first);
  const visible = lines.map(line => ({ ...line, values: first < 0 ? [] : line.values.slice(first) }));
  const highest = Math.max(0, ...visible.flatMap(line => line.values.filter(v => v !== null)));
  // A bound far above all values would flatten them, so it is drawn only if it is near.
  const near = bounds.filter(bound => bound.value <= Math.max(3 * highest, 1e-9));
  const top = nice(Math.max(highest, ...near.map(bound => 1.05 * bound.value)) || 1);
  const x = t => ((t - begin) / shown_s * 1000).toFixed(1), y = v => (100 - v / top * 100).toFixed(2);
  const place = cursorAt === null || !shown.length ? shown.length - 1 : nearest(shown, cursorAt);
  const value = line => line.values[place] ?? null;
  const spoken = place < 0 ? "no figures yet" : `${clock(shown[place], true)}: ${visible.map(line => `${line.name} ${format(value(line))}`).join(", ")}`;
  const paths = visible.flatMap(line => drawn(line, shown, step_s, x, y));
  const dashed = near.map(bound => svg("path", { class: "bound bad", d: `M0 ${y(bound.value)}H1000` }));
  const mark = cursorAt === null || place < 0 ? [] : [svg("path", { class: "cursor", d: `M${x(shown[place])} 0V100` })];
  const labels = near.map(bound => { const label = span("label of-bound", bound.label); label.style.top = y(bound.value) + "%"; return label; });
  return el("figure", { class: "card" },
    el("figcaption", {}, el("b", {}, title + (cursorAt === null || place < 0 ? "" : `, ${clock(shown[place], true)}`)),
      visible.map(line => span("", span(`swatch ${line.color} ${line.shape ?? ""}`), `${line.name} ${format(value(line))}`))),
    el("div", { class: "plot", id, tabindex: 0, role: "slider", "aria-label": `${title}, over time`, "aria-valuemin": 0,
      "aria-valuemax": Math.max(shown.length - 1, 0), "aria-valuenow": Math.max(place, 0), "aria-valuetext": spoken,
      "data-begin": begin, "data-range": shown_s },
      svg("svg", { viewBox: "0 0 1000 100", preserveAspectRatio: "none", "aria-hidden": "true" }, paths, dashed, mark),
      span("label top", format(top)), labels),
    div("ends", span("", clock(begin)), span("", clock(end))));
}

// Paths of one line. It breaks where a value is missing, or where no points were taken.
function drawn({ values, color, shape = "" }, at, step_s, x, y) {
  const parts = [];
  let part = [];
  values.forEach((v, i) => {
    if (v === null || (part.length && at[i] - at[i - 1] > MAX_GAP_STEPS * step_s)) { if (part.length) parts.push(part); part = []; }
    if (v !== null) part.push(i);
  });
  if (part.length) parts.push(part);
  const line = part => "M" + part.map(i => `${x(at[i])} ${y(values[i])}`).join("L") + (part.length === 1 ? "h.1" : "");
  const paths = parts.length ? [svg("path", { class: `${color} ${shape === "area" ? "" : shape}`, d: parts.map(line).join("") })] : [];
  if (shape === "area" && parts.length)
    paths.unshift(svg("path", { class: `area ${color}`, stroke: "none", d: parts.map(part => `${line(part)}L${x(at[part[part.length - 1]])} 100L${x(at[part[0]])} 100Z`).join("") }));
  return paths;
}

// The next of 1, 2, 5, 10, 20, ... that is not below.
function nice(value) {
  const ten = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map(step => step * ten).find(step => step >= value * 0.999);
}

function nearest(at, t) {
  let best = 0;
  at.forEach((each, i) => { if (Math.abs(each - t) < Math.abs(at[best] - t)) best = i; });
  return best;
}

// A small line without axes. `label`: for those who hear it.
function spark(values, label, format, most = 0) {
  if (!values || values.filter(v => v !== null).length < 2) return "";
  const known = values.filter(v => v !== null), top = Math.max(most, ...known) || 1, slots = Math.max(values.length - 1, 1);
  let d = "", gap = true;
  values.forEach((v, i) => {
    if (v !== null) d += `${gap ? "M" : "L"}${(i / slots * 100).toFixed(1)} ${(19 - v / top * 18).toFixed(1)}`;
    gap = v === null;
  });
  const words = `${label} over the last ${time(values.length * sparks.step_s)}: ${format(Math.min(...known))} to ${format(Math.max(...known))}`;
  return svg("svg", { class: "spark", viewBox: "0 0 100 20", preserveAspectRatio: "none", role: "img", "aria-label": words },
    svg("title", {}, words), svg("path", { d }));
}

const plotOf = event => event.target instanceof Element ? event.target.closest(".plot") : null;
let drawing = false;
function moveCursor(t) {
  cursorAt = t;
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => { drawing = false; drawHistory(); });
}
document.addEventListener("pointermove", event => {
  const plot = plotOf(event);
  if (!plot) return;
  const box = plot.getBoundingClientRect();
  moveCursor(Number(plot.dataset.begin) + (event.clientX - box.left) / box.width * Number(plot.dataset.range));
});
document.addEventListener("pointerout", event => { if (plotOf(event) && !event.relatedTarget?.closest?.(".plot")) moveCursor(null); });
document.addEventListener("focusout", event => { if (plotOf(event)) moveCursor(null); });
document.addEventListener("keydown", event => {
  const at = past.at_unix_s, plot = plotOf(event);
  if (!plot || !at.length) return;
  const last = at.length - 1, place = cursorAt === null ? last : nearest(at, cursorAt);
  const begin = at.findIndex(t => t >= at[last] - range_s);
  const moves = { ArrowLeft: place - 1, ArrowDown: place - 1, ArrowRight: place + 1, ArrowUp: place + 1, PageDown: place - 12,
    PageUp: place + 12, Home: begin, End: last };
  if (event.key === "Escape") moveCursor(null);
  else if (event.key in moves) { event.preventDefault(); moveCursor(at[Math.min(Math.max(moves[event.key], begin), last)]); }
});
document.addEventListener("change", event => {
  if (event.target.name === "range") { range_s = Number(event.target.value); drawHistory(); }
});
