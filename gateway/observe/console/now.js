const LEVELS = { bad: ["bad", "✗"], warn: ["wait", "!"], good: ["good", "✓"], idle: ["soft", "–"] };

function headline(h) {
  const [name, mark] = LEVELS[h.level];
  const since = h.since_s === null ? "" : ` since ${ago(h.since_s)}`;
  return el("p", { class: name }, `${mark} ${h.what}${since}`, span("details", h.details && `: ${h.details}`));
}

const NAMES = { ttft: "TTFT", tpot: "TPOT", itl: "ITL", e2e: "e2e", queue: "queue" };

// What was promised is promised to all who ask: a refused request misses it too.
function objective(o) {
  const [name, word] = o.kept === false ? ["bad", `✗ broken for ${time(o.broken_s)}`]
    : o.window.kept === null ? ["soft", "no data"]
    : o.window.kept ? ["good", "✓ kept"] : ["bad", `✗ ${percent(1 - o.window.attainment)} missed`];
  return [span(name, word), `${NAMES[o.metric]} ${o.percentile} ≤ ${time(o.threshold_s)}`, percent(o.window.attainment), percent(o.answered.attainment)];
}

function comebacks({ comebacks, newcomers }) {
  if (!comebacks.offered) return "";
  return div("row soft", span("", `${whole(comebacks.offered)} came back: ${percent(comebacks.admitted)} admitted`),
    span("", `newcomers ${percent(newcomers.admitted)}`));
}

// Red if an objective is missed among all who asked; never green while requests are lost.
function verdict(t) {
  const w = t.window;
  if (w.goodput === null) return "soft";
  if (t.objectives.some(o => o.kept === false || o.window.kept === false)) return "bad";
  return w.offered > w.finished ? "wait" : "good";
}

// Good, late and lost requests, as parts of one bar.
function outcome(w) {
  if (!w.offered) return div("row soft", span("", "nobody asked"), "");
  const parts = [["good", "good", w.good], ["wait", "late", w.finished - w.good], ["bad", "refused or failed", w.offered - w.finished]];
  const words = parts.filter(([, , n]) => n > 0).map(([name, word, n]) => span(name, `${percent(n / w.offered)} ${word}  `));
  const track = el("div", { class: "bar parts", role: "img", "aria-label": words.map(word => word.textContent).join("") },
    parts.map(([name, , n]) => { const part = div(name); part.style.width = n / w.offered * 100 + "%"; return part; }));
  return [div("row", span("", ...words), span("soft", `${whole(w.offered)} asked`)), track];
}

function tier(t, window_s) {
  const w = t.window;
  return div("card",
    div("row", el("h3", {}, t.name), span("big " + verdict(t), percent(w.goodput))),
    div("row soft", span("", `priority ${t.priority}, weight ${t.weight}` + (t.value === "tokens" ? " by tokens" : "")), span("", "goodput")),
    outcome(w),
    refusals(t.refusals),
    t.objectives.length ? div("scroll", table(["", "objective", "of all", "of answers"], t.objectives.map(objective))) : "",
    div("scroll", table(["", "p50", "p95", "p99"],
      Object.entries(t.latencies).map(([name, l]) => [NAMES[name], time(l.p50_s), time(l.p95_s), time(l.p99_s)]), { name: "" })),
    t.binds ? div("row soft", span("", `replicas are at their bound: ${t.binds}`)) : "",
    div("row soft", span("", `${(w.offered / window_s).toFixed(1)}/s offered, ${(w.finished / window_s).toFixed(1)}/s finished`),
      span("", `since start ${percent(t.total.goodput)}`)),
    stages(t.stages),
    comebacks(t.admissions));
}

const STAGES = { receive: "received", queue: "waiting here", "engine-queue": "in the engine's queue", prefill: "reading the prompt", "first-token": "at the replica before the first token", rest: "the rest of the answer" };

// Where the time of streamed requests goes.
function stages(shares) {
  if (shares.queue === null) return "";
  return div("row soft", span("", "time: " + Object.entries(STAGES).filter(([name]) => shares[name]).map(([name, words]) => `${percent(shares[name])} ${words}`).join(", ")));
}

function refusals(r) {
  const told = r["all-but-failures"], failures = r.failure.count;
  return told.count + failures ? div("row bad", span("", `${whole(r["at-once"].count)} refused at once, ${whole(r.waited.count)} after a wait, ${whole(failures)} by failures`),
    span("soft", told.count ? `told in p95 ${time(told.p95_s)}` : "")) : "";
}

function split(s, window_s) {
  return [el("h2", {}, `Split of ${s.model}, last ${window_s} s`),
    div("card scroll", table(["arm", "weight", "share", "good", "TTFT p50", "p99", "e2e p50", "p99", "errors"],
      s.arms.map(a => [a.name, percent(a.weight), percent(a.share), percent(a.window.goodput), time(a.latencies.ttft.p50_s),
        time(a.latencies.ttft.p99_s), time(a.latencies.e2e.p50_s), time(a.latencies.e2e.p99_s), percent(a.window.error_rate)])))];
}

const MAX_SHOWN = 50;
const shown_whole = new Set();

// The replicas of a pool: those that are out first, then the busiest; all of them if asked for.
function replicas(p) {
  if (p.replicas.length <= MAX_SHOWN || shown_whole.has(p.name)) return p.replicas;
  return [...p.replicas].sort((a, b) => (a.state === "up") - (b.state === "up") || b.in_flight - a.in_flight).slice(0, MAX_SHOWN);
}

const STATES = { up: ["good", "●"], probing: ["wait", "◐"], down: ["bad", "○"], ejected: ["bad", "⊘"],
  absent: ["soft", "○"], drained: ["wait", "◌"] };

// Why it gets no requests, or may not for long: what the core says, then what could not be read from it.
function why(r, unreadable) {
  const readings = new Map();
  for (const u of unreadable.filter(u => u.pool === r.pool && u.replica === r.name))
    for (const [reading, error] of Object.entries(u.errors)) readings.set(error, [...readings.get(error) ?? [], reading]);
  return [r.health.why, ...[...readings].map(([error, of]) => `${of.join(", ")}: ${error}`)].filter(Boolean).join("; ");
}

function replica(r) {
  const [name, mark] = STATES[r.state] ?? ["wait", "?"];
  const s = r.sample ?? { waiting: null, running: null, kv_fraction: null };
  const hour = sparks.pools[r.pool]?.[r.name] ?? {};
  const ttft = (hour.ttft_s ?? []).findLast(v => v !== null) ?? null;
  return [el("span", { class: name, title: r.url }, `${mark} ${r.name}${r.state === "up" ? "" : " " + r.state}`),
    whole(r.in_flight), ttft === null ? "" : [spark(hour.ttft_s, "mean TTFT", time), time(ttft)], r.step_s === null ? "" : time(r.step_s) + (r.step_limit_s === null ? "" : ` of ${time(r.step_limit_s)}`),
    r.bound ?? "", whole(r.unprefilled_tokens), whole(s.running), whole(s.waiting),
    [spark(hour.kv, "KV cache in use", percent, 1), percent(s.kv_fraction)], [spark(hour.hit_rate, "hit rate", percent, 1), percent(r.cache.hit_rate)],
    r.adapters.join(" "), r.sample_age_s === null ? "never" : time(r.sample_age_s),
    el("button", { type: "button", "data-do": r.state === "drained" ? "undrain" : "drain", "data-replica": r.name,
      "aria-label": `${r.state === "drained" ? "undrain" : "drain"} ${r.name}` }, r.state === "drained" ? "Undrain" : "Drain")];
}

const TRUST = { trusted: ["good", "✓ forecast decides"], cold: ["wait", "forecast is cold: static bounds decide"] };

const reliability = (r, event) => r.labels
  ? `off by ${percent(r.ece)}, skill ${r.skill.toFixed(2)}, ${percent(r.base_rate)} ${event}` : "";

function forecast(f) {
  if (!f) return "";
  const [name, word] = TRUST[f.trust];
  return div("row soft", span(name, word), span("", reliability(f.reliability, "missed")));
}

function work(demand) {
  return demand ? `work for ${demand.replicas.toFixed(1)} fully busy replicas` : "";
}

function pool(p, learned, unreadable) {
  const listed = replicas(p);
  return div("card",
    div("row", el("h3", {}, p.name), span("soft", [work(p.demand), p.drain_rate === null ? "" : `drains ${p.drain_rate.toFixed(1)}/s`].filter(Boolean).join(", "))),
    forecast(learned.pools.find(f => f.pool === p.name)),
    bar("slots in use", p.in_flight, p.slots),
    bar("waiting", p.queued, p.queue_limit),
    p.on_hold ? bar("on hold, until a replica serves", p.on_hold, null) : "",
    div("scroll", tableOfSaid(["replica", "in flight", "TTFT", "step", "bound by", "prefill", "runs", "waits", "KV", "cached", "adapters", "scraped", "action"],
      listed.map(replica), listed.map(r => why(r, unreadable)))),
    listed.length < p.replicas.length ? el("button", { type: "button", "data-do": "show", "data-pool": p.name }, `Show all ${p.replicas.length} replicas`) : "");
}

function reasons(r) {
  const rows = Object.entries(r.total).sort((a, b) => (r.window[b[0]] ?? 0) - (r.window[a[0]] ?? 0) || b[1] - a[1]);
  if (!rows.length) return span("soft", "nothing");
  return table(["reason", "last minute", "since start"], rows.map(([why, n]) => [why, whole(r.window[why] ?? 0), whole(n)]));
}

const left = (of, limit) => limit === null ? "–" : `${whole(of)} of ${whole(limit)}`;

function tenants(list) {
  if (!list.length) return span("soft", "none");
  return table(["tenant", "tier", "in flight", "requests left", "tokens left", "quotas"], list.map(t => [t.tenant, t.tier,
    t.concurrency_limit === null ? whole(t.in_flight) : left(t.in_flight, t.concurrency_limit),
    left(t.requests_left, t.requests_limit), left(t.tokens_left, t.tokens_limit),
    t.quotas.map(q => `${left(q.left, q.amount)} ${q.limit.replace("-", " a ")}`).join(", ") || "–"]));
}


// ---- the last hour

const past = { step_s: 5, at_unix_s: [], tiers: {}, waiting: {}, reasons: {} };
const sparks = { step_s: 20, pools: {} };
const MAX_POINTS = 720;
const MAX_REASONS = 4;
const blank = n => Array(n).fill(null);

// Adds new points to those that are known. A tier or reason that is missing on one side had no figures there.
function joined(old, fresh, before, added) {
  if (Array.isArray(old ?? fresh)) return [...old ?? blank(before), ...fresh ?? blank(added)].slice(-MAX_POINTS);
  const names = new Set([...Object.keys(old ?? {}), ...Object.keys(fresh ?? {})]);
  return Object.fromEntries([...names].map(name => [name, joined(old?.[name], fresh?.[name], before, added)]));
}
function addHistory(told) {
  const before = past.at_unix_s.length, added = told.at_unix_s.length;
  if (!added || told.at_unix_s[0] <= (past.at_unix_s[before - 1] ?? 0)) return;
  past.step_s = told.step_s;
  past.tiers = joined(past.tiers, told.tiers, before, added);
  past.waiting = joined(past.waiting, told.waiting, before, added);
  past.reasons = joined(past.reasons, told.reasons, before, added);
  past.at_unix_s = [...past.at_unix_s, ...told.at_unix_s].slice(-MAX_POINTS);
}

// The sum of columns, point by point; null where none has a value.
const summed = (columns, n) => blank(n).map((_, i) => columns.reduce((sum, c) => c[i] === null ? sum : (sum ?? 0) + c[i], null));
const perSecond = counts => counts.map(n => n === null ? null : n / past.step_s);

function throughput(id, title, tiers) {
  const n = past.at_unix_s.length, of = name => perSecond(summed(tiers.map(t => t[name]), n));
  return chart({ id, title, at: past.at_unix_s, step_s: past.step_s, format: rate, lines: [
    { name: "good", values: of("good"), color: "good", shape: "area" },
    { name: "finished", values: of("finished"), color: "c1" },
    { name: "asked", values: of("offered"), color: "soft", shape: "thin" }] });
}

function latency(tier, facts, metric) {
  const shapes = { p50: "thin", p95: "", p99: "thick" };
  const columns = facts?.[metric] ?? { p50: [], p95: [], p99: [] };
  return chart({ id: `${metric}-of-${tier.name}`, title: `${NAMES[metric]} of ${tier.name}`, at: past.at_unix_s, step_s: past.step_s, format: time,
    lines: Object.entries(columns).map(([name, values]) => ({ name, values: values.length ? values : blank(past.at_unix_s.length), color: "c1", shape: shapes[name] })),
    bounds: tier.objectives.filter(o => o.metric === metric).map(o => ({ label: `${o.percentile} ≤ ${time(o.threshold_s)}`, value: o.threshold_s })) });
}

function drawHistory() {
  if (!state) return;
  const n = past.at_unix_s.length, every = Object.values(past.tiers);
  const colors = ["c2", "c3", "c4", "c5"];
  const counted = Object.entries(past.reasons).map(([name, values]) => ({ name, values: perSecond(values.map(v => v ?? 0)), sum: values.reduce((a, b) => a + b, 0) }))
    .sort((a, b) => b.sum - a.sum);
  const others = counted.slice(MAX_REASONS);
  const reasons = counted.slice(0, MAX_REASONS).map((line, i) => ({ ...line, color: colors[i] }));
  if (others.length) reasons.push({ name: "others", values: summed(others.map(o => o.values), n), color: "soft" });
  if (!reasons.length) reasons.push({ name: "none", values: blank(n).map(() => 0), color: "soft" });
  fill("charts",
    throughput("throughput", "Goodput against throughput", every),
    chart({ id: "queue", title: "Requests waiting", at: past.at_unix_s, step_s: past.step_s, format: whole,
      lines: Object.entries(past.waiting).slice(0, 5).map(([name, values], i) => ({ name, values, color: `c${i + 1}` })) }),
    chart({ id: "refusals", title: "Not served, by reason", at: past.at_unix_s, step_s: past.step_s, format: rate, lines: reasons }),
    state.tiers.flatMap(t => [throughput(`throughput-of-${t.name}`, `Goodput of ${t.name}`, past.tiers[t.name] ? [past.tiers[t.name]] : []),
      latency(t, past.tiers[t.name], "ttft"), latency(t, past.tiers[t.name], "tpot")]));
}
