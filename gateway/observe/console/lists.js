// ---- requests

function story(r) {
  return div("card",
    el("dl", { class: "story" }, r.story.flatMap(([label, text]) => [el("dt", {}, label), el("dd", {}, text)])),
    el("details", {}, el("summary", {}, "The whole record"), el("pre", {}, JSON.stringify({ ...r, story: undefined }, null, 2))));
}

function requests(list) {
  if (!list.length) return div("card soft", "none");
  return div("card scroll", table(["ended", "id", "tier", "tenant", "outcome", "reason", "TTFT", "e2e"], list.map(r => [
    r.ended.slice(11, 19), el("a", { href: "#requests/" + encodeURIComponent(r.request_id) }, r.request_id), r.tier ?? "–", r.tenant ?? "–",
    r.outcome, r.reason ?? (r.missed?.length ? `late: ${r.missed.join(" ")}` : ""), time(r.ttft_s ?? null), time(r.e2e_s ?? null)])));
}

// The stages of the slow requests: the longest is where to look.
function budget(rows) {
  if (!rows.length) return div("card soft", "no streamed request yet");
  const told = Object.keys(STAGES).filter(stage => rows.some(r => r.stages[stage]));
  return div("card scroll", table(["tier", "slowest", "from", "requests", ...told.map(stage => STAGES[stage])], rows.map(r => [
    r.tier, `${NAMES[r.latency]} ${r.percentile}`, time(r.from_s), whole(r.requests), ...told.map(stage => percent(r.stages[stage] ?? null))])),
    told.includes("prefill") ? div("soft", "Engine's queue and prompt: divided by the mean of each replica, as its engine tells it.") : "");
}

async function showBudget() {
  await showIn("budget", async () => [budget((await ask("/admin/stages")).stages)]);
}

async function findRequest(id) {
  $("find").elements.request.value = id;
  await showIn("found", async () => (await ask("/admin/requests/" + encodeURIComponent(id))).requests.map(story));
}

async function listRequests() {
  const asked = new URLSearchParams([...new FormData($("filter"))].map(([name, value]) => [name, value.trim()]).filter(([, value]) => value));
  await showIn("found", async () => [requests((await ask("/admin/requests?" + asked)).requests)]);
}

async function showIn(id, make) {
  try {
    fill(id, await make());
  } catch (error) {
    fill(id, div("card bad", error.message));
  }
}

// ---- usage

const USED = { requests: whole, good: whole, refused: whole, failed: whole, prompt_tokens: whole, cached_tokens: whole, output_tokens: whole,
  reasoning_tokens: whole, slot_s: s => whole(s) };
const money = (amount, currency) => amount === null ? "–" : `${amount.toPrecision(4)} ${currency}`;

function usage(told) {
  const cost = told.total.cost === null ? {} : { cost: amount => money(amount, told.currency) };
  const columns = { ...USED, ...cost }, cells = row => Object.entries(columns).map(([name, format]) => format(row[name]));
  const rows = told.rows.map(row => [...told.by.map(name => row[name] || "–"), ...cells(row)]);
  rows.push([...told.by.map((_, i) => i ? "" : "total"), ...cells(told.total)]);
  const f = told.fleet;
  const fleet = f.requests_per_replica === null ? [] : [`${f.replica_hours.toFixed(1)} replica hours, ${f.requests_per_replica.toFixed(2)} requests at a time on each`];
  if (told.gateways > 1) fleet.unshift(`of ${told.gateways} gateways`);
  if (f.cost !== null) fleet.push(`${money(f.cost, told.currency)} for the fleet`);
  if (f.cost_per_good_request !== null) fleet.push(`${money(f.cost_per_good_request, told.currency)} for a good request`);
  if (f.cost_per_million_good_tokens !== null) fleet.push(`${money(f.cost_per_million_good_tokens, told.currency)} for a million tokens of good requests`);
  return [div("card scroll", table([...told.by, ...Object.keys(columns).map(name => name.replace("_", " "))], rows), div("soft", fleet.join("; "))),
    told.unpriced.length && told.total.cost !== null ? div("card wait", `without a price, and missing in the costs: ${told.unpriced.join(", ")}`) : "",
    told.error ? div("card bad", told.error) : ""];
}

async function sumUsage() {
  await showIn("used", async () => usage(await ask("/admin/usage?" + new URLSearchParams(new FormData($("usage"))))));
}

// ---- policy

function inForce(p, i) {
  return [el("h3", {}, i ? `Generation ${p.generation}` : `Generation ${p.generation}, in force`),
    div("soft", `digest ${p.digest.slice(0, 12)}, since ${clock(p.at_unix_s)}`),
    p.changes.length ? el("pre", {}, p.changes.join("\n")) : div("soft", "no policy before it is known")];
}

async function showPolicies() {
  await showIn("policies", async () => {
    const { before, ...present } = await ask("/admin/policy");
    return [div("card", inForce(present, 0)),
      before.length ? el("details", { class: "card" }, el("summary", {}, `${before.length} before it`), before.map((p, i) => div("", inForce(p, i + 1)))) : ""];
  });
}
