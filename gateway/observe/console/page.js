// ---- the state, asked for again and again

const EVERY_MS = 2000;
const HISTORY_MS = 5000;
const SPARKS_MS = 20000;
const MAX_SPARKED = 200;
let state = null;

function show(s) {
  const generation = state?.policy.generation;
  state = s;
  $("ready").textContent = s.ready ? "ready" : "not ready: " + s.not_ready;
  $("ready").className = s.ready ? "good" : "bad";
  $("facts").textContent = `${s.version} (${s.build}) · up ${time(s.uptime_s)} · policy ${s.policy.generation} (${s.policy.digest.slice(0, 8)})`
    + ` · ${whole(s.connections)} connections · loop lag ${time(s.loop_lag_s)}`;
  fill("headlines", s.headlines.map(headline));
  document.title = `${LEVELS[s.headlines[0].level][1]} ${s.headlines[0].what} – tailgate`;
  $("notice").textContent = s.policy.reload_error
    ? "The last reload failed, the policy before it is in force:\n" + s.policy.reload_error : "";
  $("tiers-title").textContent = `Tiers, last ${s.window_s} s`;
  fill("tiers", s.tiers.map(t => tier(t, s.window_s)));
  fill("splits", s.splits.flatMap(m => split(m, s.window_s)));
  fill("pools", s.pools.map(p => pool(p, s.forecast, s.unreadable)));
  fill("reasons", reasons(s.reasons));
  $("tenants-title").textContent = s.tenants.length < s.tenants_total
    ? `Tenants, the ${s.tenants.length} busiest of ${s.tenants_total}` : "Tenants";
  fill("tenants", tenants(s.tenants));
  if (generation !== undefined && generation !== s.policy.generation && page() === "policy") showPolicies();
}

async function update() {
  if (document.hidden) return;
  try {
    const first = state === null;
    show(await ask("/admin/state"));
    if (first) { await updateHistory(); await updateSparks(); }
  } catch (error) {
    $("ready").textContent = "out of reach";
    $("ready").className = "bad";
    fill("headlines");
    document.title = "? out of reach – tailgate";
    $("notice").textContent = `No news of the gateway (${error.message}): what is below is old.`;
  }
}

async function updateHistory() {
  if (document.hidden) return;
  addHistory(await ask("/admin/history?since=" + (past.at_unix_s[past.at_unix_s.length - 1] ?? 0)));
  if (cursorAt === null) drawHistory();
}

async function updateSparks() {
  if (document.hidden || !state) return;
  for (const { name, replicas } of state.pools) {
    if (!replicas.length || replicas.length > MAX_SPARKED) continue;
    const told = await ask("/admin/history/replicas?pool=" + encodeURIComponent(name));
    sparks.step_s = told.step_s;
    sparks.pools[name] = told.replicas;
  }
}

// `update` shows on the page that the gateway is away, so the others only say it in the browser's log.
function every(ms, work) {
  const again = async () => {
    try { await work(); } catch (error) { console.warn(error.message); }
    setTimeout(again, ms);
  };
  again();
}

// ---- pages, by the part of the address behind #

const PAGES = ["now", "requests", "usage", "policy"];
const page = () => PAGES.find(name => location.hash.slice(1).split("/")[0] === name) ?? "now";
function openPage() {
  const open = page(), id = location.hash.slice(1).split("/").slice(1).join("/");
  for (const name of PAGES) $("page-" + name).hidden = name !== open;
  for (const link of document.querySelectorAll("nav a"))
    if (link.hash === "#" + open) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
  if (open === "requests") {
    id ? findRequest(decodeURIComponent(id)) : listRequests();
    showBudget();
  }
  if (open === "usage") sumUsage();
  if (open === "policy") showPolicies();
}
addEventListener("hashchange", openPage);

// ---- what one can do

async function act(what, replica) {
  const token = $("token").value.trim();
  if (!token) {
    location.hash = "policy";
    $("told").textContent = "Enter the admin token first (TAILGATE_ADMIN_TOKEN of the gateway), then do it again.";
    setTimeout(() => $("token").focus());
    return;
  }
  const body = replica === undefined ? {} : { body: JSON.stringify({ replica }) };
  try {
    const told = await ask("/admin/" + what, { method: "POST", headers: { authorization: "Bearer " + token, "content-type": "application/json" }, ...body });
    $("told").textContent = told.message;
    $("told").className = told.ok ? "box good" : "box bad";
  } catch (error) {
    $("told").textContent = `${what}: ${error.message}`;
    $("told").className = "box bad";
  }
  await update();
  if (page() === "policy") showPolicies();
}

document.addEventListener("click", event => {
  const button = event.target.closest("button[data-do]");
  if (!button) return;
  const { do: what, replica, pool } = button.dataset;
  if (what === "show") { shown_whole.add(pool); update(); }
  else if (what === "undrain" || confirm(`Drain ${replica}? It gets no new requests until it is undrained; its running ones finish.`)) act(what, replica);
});
document.addEventListener("submit", event => {
  event.preventDefault();
  const open = { find: () => {
      const id = event.target.elements.request.value.trim(), hash = "#requests/" + encodeURIComponent(id);
      if (location.hash === hash) findRequest(id); else location.hash = hash;
    },
    filter: () => { history.replaceState(null, "", "#requests"); listRequests(); },
    usage: sumUsage, actions: () => act("reload"),
  };
  open[event.target.id]();
});

openPage();
every(EVERY_MS, update);
every(HISTORY_MS, updateHistory);
every(SPARKS_MS, updateSparks);
