"use strict";
const $ = id => document.getElementById(id);

// Everything is set as text, never as markup: names come from the policy file.
function fitted(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) if (value !== null && value !== false) node.setAttribute(name, value);
  node.append(...children.flat());
  return node;
}
const el = (tag, attributes, ...children) => fitted(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) => fitted(document.createElementNS($("svg").namespaceURI, tag), attributes, children);
const div = (name, ...children) => el("div", { class: name }, ...children);
const span = (name, ...children) => el("span", { class: name }, ...children);

// Changes only what differs, so that focus, scrolling and the place of a screen reader stay.
function morph(old, fresh) {
  if (old.isEqualNode(fresh)) return;
  if (old.nodeName !== fresh.nodeName || old.nodeType !== fresh.nodeType) { old.replaceWith(fresh); return; }
  if (old.nodeType === Node.TEXT_NODE) { old.data = fresh.data; return; }
  for (const { name } of [...old.attributes])
    if (!fresh.hasAttribute(name) && name !== "open" && name !== "style") old.removeAttribute(name);
  for (const { name, value } of fresh.attributes)
    if (name !== "style" && old.getAttribute(name) !== value) old.setAttribute(name, value);
  if (old.style && fresh.style && old.style.cssText !== fresh.style.cssText) old.style.cssText = fresh.style.cssText;
  morphChildren(old, [...fresh.childNodes]);
}
function morphChildren(node, fresh) {
  const old = [...node.childNodes];
  fresh.forEach((child, place) => place < old.length ? morph(old[place], child) : node.append(child));
  old.slice(fresh.length).forEach(child => child.remove());
}
function fill(id, ...children) {
  const holder = document.createElement("div");
  holder.append(...children.flat());
  holder.normalize();
  morphChildren($(id), [...holder.childNodes]);
}

const whole = n => n === null ? "–" : Math.round(n).toLocaleString("en");
const percent = x => x === null ? "–" : (x >= 0.9995 ? 100 : Math.floor(x * 1000) / 10) + " %";
const rate = x => x === null ? "–" : (x < 10 ? x.toFixed(1) : Math.round(x).toLocaleString("en")) + "/s";
function time(s) {
  if (s === null) return "–";
  if (s < 0.001) return (s * 1000).toFixed(2) + " ms";
  if (s < 1) return (s * 1000).toFixed(s < 0.01 ? 1 : 0) + " ms";
  if (s < 100) return s.toFixed(s < 10 ? 2 : 1) + " s";
  if (s < 7200) return Math.round(s / 60) + " min";
  return s < 172800 ? Math.round(s / 3600) + " h" : Math.round(s / 86400) + " d";
}
const clock = (unix_s, seconds = false) => new Date(unix_s * 1000).toLocaleString("en", { hour: "2-digit", minute: "2-digit",
  hourCycle: "h23", ...seconds ? { second: "2-digit" } : {}, ...Date.now() / 1000 - unix_s < 86400 ? {} : { month: "short", day: "numeric" } });
const ago = s => clock(Date.now() / 1000 - s);

function bar(label, value, most, isRoom = true) {
  const share = most ? Math.min(value / most, 1) : 0;
  const part = div("");
  part.style.width = share * 100 + "%";
  const words = whole(value) + (most === null ? " (no limit)" : " of " + whole(most));
  const track = el("div", {
    class: isRoom && share >= 1 ? "bar full" : "bar", role: "meter", "aria-label": label,
    "aria-valuenow": value, "aria-valuemin": 0, "aria-valuemax": most ?? Math.max(value, 1), "aria-valuetext": words,
  }, part);
  return [div("row", span("soft", label), span("", words)), track];
}

// A row may have a line of words below it, in `whys`. `name`: the class of the table, "stack" if it is wide.
function table(heads, rows, { whys = [], name = "stack" } = {}) {
  const words = head => head === "objective" || head === "tier" ? "words" : "";
  const row = (cells, number) => [
    el("tr", {}, cells.map((cell, column) => el("td", { class: words(heads[column]), "data-head": heads[column] }, cell))),
    ...whys[number] ? [el("tr", { class: "why" }, el("td", { colspan: heads.length }, whys[number]))] : []];
  return el("table", { class: name },
    el("thead", {}, el("tr", {}, heads.map(head => el("th", { class: words(head), scope: "col" }, head)))),
    el("tbody", {}, rows.flatMap(row)));
}

// Without the columns that say nothing in any row: few pools have adapters, and few replicas are at a bound.
function tableOfSaid(heads, rows, whys) {
  const said = heads.map((_, column) => rows.some(cells => cells[column] !== ""));
  const only = cells => cells.filter((_, column) => said[column]);
  return table(only(heads), rows.map(only), { whys });
}

// The JSON at a path. Throws an error with what the gateway said.
async function ask(path, options = {}) {
  const answer = await fetch(path, { signal: AbortSignal.timeout(5000), ...options });
  const told = await answer.json();
  if (answer.ok || told.message !== undefined) return told;
  throw new Error(typeof told.detail === "string" ? told.detail : "it answered " + answer.status);
}
