"""The admin port: probes, state, console, and who may change something."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from functools import partial
from typing import Any

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics

from gateway.core.history import EarlyRefusal
from gateway.core.results import Outcome, Reason
from gateway.observe.admin import Access, Done, admin_app
from gateway.observe.metrics.metrics import Metrics
from gateway.observe.snapshots import REPLICAS_AT_ONCE
from gateway.observe.sources import Reload, Sources
from gateway.observe.state import document, state_pieces
from gateway.observe.state import state as state_of

from .made import FREE, OK, POLICY, REFUSED, SNAPSHOT, SOURCES, a_request, a_snapshot

TOKEN = "canary-admin-token"


class Process:
    """Metrics, and a reload that counts its calls."""

    def __init__(self) -> None:
        self.metrics = Metrics(POLICY)
        self.reloads = 0
        self.stops = 0
        self.drained: list[tuple[str, str]] = []
        self.answer = Done(True, "generation 2")

    async def reload(self) -> Done:
        self.reloads += 1
        return self.answer

    async def stop(self) -> Done:
        self.stops += 1
        return Done(True, "draining")

    def drain(self, what: str, replica: str) -> Done:
        self.drained.append((what, replica))
        return Done(True, f"{what} {replica}")

    def client(
        self,
        *,
        token: str | None = TOKEN,
        trusted: bool = False,
        sources: Sources = SOURCES,
        base: str = "http://127.0.0.1:9090",
    ) -> httpx.AsyncClient:
        actions = {"reload": self.reload, "drain": self.stop}
        of_replicas = {what: partial(self.drain, what) for what in ("drain", "undrain")}
        names = {"admin.example"}
        app = admin_app(self.metrics, sources, actions, of_replicas, Access(token, trusted, names))
        return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=base)


@pytest.fixture
def process() -> Process:
    return Process()


async def state(process: Process, **sources: Any) -> dict[str, Any]:
    async with process.client(sources=replace(SOURCES, **sources)) as client:
        answer = await client.get("/admin/state")
    assert answer.status_code == 200
    found: dict[str, Any] = answer.json()
    return found


@pytest.mark.parametrize("path", ["/livez", "/health"])
async def test_liveness_is_200_while_the_process_drains(process: Process, path: str) -> None:
    async with process.client(sources=replace(SOURCES, not_ready=lambda: "draining")) as client:
        assert (await client.get(path)).status_code == 200


@pytest.mark.parametrize("path", ["/readyz", "/ready"])
@pytest.mark.parametrize(("reason", "status", "text"), [("", 200, "ready"), ("draining", 503, "draining")])
async def test_readiness_503_says_its_reason(process: Process, path: str, reason: str, status: int, text: str) -> None:
    async with process.client(sources=replace(SOURCES, not_ready=lambda: reason)) as client:
        answer = await client.get(path)
    assert (answer.status_code, answer.text.strip()) == (status, text)


async def test_metrics_page_has_the_requested_format(process: Process) -> None:
    process.metrics.ended(OK)
    async with process.client() as client:
        classic = await client.get("/metrics")
        modern = await client.get("/metrics", headers={"accept": "application/openmetrics-text;version=1.0.0"})
    assert classic.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert modern.headers["content-type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    assert modern.text.endswith("# EOF\n")
    assert "EOF" not in classic.text
    names = {family.name for family in parse_openmetrics(modern.text)}
    assert {"tailgate_ttft_seconds", "tailgate_queue_depth", "process_open_fds", "python_info"} <= names


async def test_admin_state_counts_goodput_over_all_offered_requests(process: Process) -> None:
    process.metrics.ended(OK)
    process.metrics.ended(replace(OK, good=False, ttft_s=3.0))
    process.metrics.ended(REFUSED)
    process.metrics.ended(replace(REFUSED, outcome=Outcome.INVALID, why=Reason.CONTEXT_LENGTH))
    premium, free = (await state(process))["tiers"]
    counts = {"offered": 3, "finished": 2, "good": 1, "goodput": pytest.approx(1 / 3)}
    assert (premium["name"], premium["window"], premium["total"]) == ("premium", counts, counts)
    assert free["window"]["goodput"] is None


async def test_the_window_of_the_admin_state_leaves_out_requests_that_are_too_old(process: Process) -> None:
    process.metrics.ended(OK)
    premium, _ = (await state(process, now=lambda: 200.0))["tiers"]
    assert premium["window"]["offered"] == 0
    assert premium["total"]["offered"] == 1
    assert premium["latencies"]["ttft"]["p99_s"] is None


async def test_admin_state_has_quantiles_of_every_latency(process: Process) -> None:
    for _ in range(99):
        process.metrics.ended(OK)
    process.metrics.ended(replace(OK, ttft_s=2.0))
    for pool, gap_s in (("short", 0.02), ("short", 0.02), ("long", 0.5)):
        process.metrics.gaps("premium", pool).add(gap_s)
    premium, free = (await state(process))["tiers"]
    close = {"p50_s": 0.2, "p95_s": 0.2, "p99_s": 0.2, "count": 100}
    assert premium["latencies"]["ttft"] == pytest.approx(close, rel=0.02)
    assert premium["latencies"]["itl"] == pytest.approx(
        {"p50_s": 0.02, "p95_s": 0.5, "p99_s": 0.5, "count": 3}, rel=0.02
    )
    assert premium["latencies"]["e2e"]["p50_s"] == pytest.approx(3.0, rel=0.02)
    assert premium["latencies"]["tpot"]["p50_s"] == pytest.approx(0.05, rel=0.02)
    assert premium["latencies"]["queue"]["p50_s"] == pytest.approx(0.002, rel=0.02)
    assert free["latencies"]["itl"] == {"count": 0, "p50_s": None, "p95_s": None, "p99_s": None}


@pytest.mark.parametrize(("late", "kept"), [(0, True), (3, True), (4, False)])
async def test_admin_state_judges_whether_an_objective_is_kept_by_answers_alone(
    process: Process, late: int, kept: bool
) -> None:
    for _ in range(100):
        process.metrics.ended(REFUSED)
    for number in range(100):
        process.metrics.ended(replace(OK, ttft_s=3.0) if number < late else OK)
    premium, free = (await state(process))["tiers"]
    p99 = next(o for o in premium["objectives"] if (o["metric"], o["percentile"]) == ("ttft", "p99"))
    assert p99["window"] == {
        "good": 100 - late,
        "total": 200,
        "attainment": pytest.approx((100 - late) / 200),
        "kept": False,
    }
    assert p99["answered"] == {"total": 100, "attainment": pytest.approx(1 - late / 100)}
    assert (p99["threshold_s"], p99["target"], p99["kept"]) == (2.2, 0.99, kept)
    assert [o["kept"] for o in free["objectives"]] == [None]


async def test_admin_state_shows_pools_replicas_tenants_and_reasons(process: Process) -> None:
    process.metrics.ended(replace(REFUSED, request=a_request(FREE)))
    process.metrics.refused_early(EarlyRefusal(100.0, Reason.UNAUTHORIZED.value))
    shown = await state(process)
    assert [pool["name"] for pool in shown["pools"]] == ["short", "long"]
    r0 = shown["pools"][0]["replicas"][0]
    assert (r0["name"], r0["state"], r0["in_flight"], r0["sample"]["kv_fraction"]) == ("r0", "up", 4, 0.25)
    demand = shown["pools"][0]["demand"]
    assert (demand["replicas"], demand["serving"], demand["prompt_tokens_per_s"]) == (1.5, 2, 12_000)
    assert shown["pools"][1]["demand"] is None
    assert shown["tenants"][0]["requests_left"] == 41.5
    assert shown["tenants_total"] == 1
    assert shown["reasons"] == {kind: {"queue-full": 1, "unauthorized": 1} for kind in ("window", "total")}


async def test_the_admin_state_has_the_error_of_a_failed_reload(process: Process) -> None:
    shown = await state(process, reload=lambda: Reload(1_700_000_000.0, "policy.yaml:3: tiers: unknown"))
    assert shown["policy"] == {
        "generation": 1,
        "digest": "digest-1",
        "reloaded_at_unix_s": 1_700_000_000.0,
        "reload_error": "policy.yaml:3: tiers: unknown",
    }


async def test_admin_state_shows_only_the_busiest_of_many_tenants(process: Process) -> None:
    one = SNAPSHOT.tenants[0]
    many = tuple(replace(one, tenant=f"t{number:04}", in_flight=number % 7) for number in range(5000))
    shown = await state(process, snapshot_in_pieces=lambda: a_snapshot(replace(SNAPSHOT, tenants=many)))
    assert shown["tenants_total"] == 5000
    assert len(shown["tenants"]) == 100
    assert {tenant["in_flight"] for tenant in shown["tenants"]} == {6}


@pytest.mark.parametrize("path", ["/", "/admin/state", "/metrics"])
async def test_no_admin_page_shows_a_secret(process: Process, path: str) -> None:
    async with process.client() as client:
        answer = await client.get(path)
    assert answer.status_code == 200
    assert "canary" not in answer.text + str(answer.headers)


@pytest.mark.parametrize(
    ("host", "known"),
    [
        ("127.0.0.1:9090", True),
        ("10.1.2.3", True),
        ("[::1]:9090", True),
        ("[::1]", True),
        ("localhost:9090", True),
        ("LOCALHOST", True),
        ("admin.example:9090", True),
        ("evil.example", False),
        ("evil.example:9090", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example:9090", False),
        ("evil.example:127.0.0.1", False),
        ("", False),
    ],
)
@pytest.mark.parametrize("path", ["/", "/admin/state"])
async def test_admin_pages_are_refused_under_an_unknown_host(
    process: Process, path: str, host: str, known: bool
) -> None:
    async with process.client() as client:
        answer = await client.get(path, headers={"host": host})
    assert answer.status_code == (200 if known else 403)
    assert known or "tier" not in answer.text


async def test_probes_and_metrics_answer_to_any_host(process: Process) -> None:
    async with process.client(base="http://tailgate-admin.monitoring.svc:9090") as client:
        for path in ("/livez", "/readyz", "/metrics"):
            assert (await client.get(path)).status_code == 200


@pytest.mark.parametrize(
    "authorization", [f"Bearer {TOKEN}", f"bearer {TOKEN}", f"BEARER  {TOKEN}"], ids=["as-is", "lower", "upper"]
)
async def test_admin_token_permits_a_change(process: Process, authorization: str) -> None:
    async with process.client() as client:
        answer = await client.post("/admin/reload", headers={"authorization": authorization})
    assert (answer.status_code, answer.json()) == (200, {"ok": True, "message": "generation 2"})
    assert process.reloads == 1


@pytest.mark.parametrize("authorization", ["", "Bearer", "Bearer x", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN}x"])
async def test_admin_change_without_the_token_is_refused(process: Process, authorization: str) -> None:
    async with process.client() as client:
        answer = await client.post("/admin/reload", headers={"authorization": authorization})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert "canary" not in answer.text
    assert process.reloads == 0


@pytest.mark.parametrize("token", [None, ""])
async def test_admin_action_without_a_configured_token_is_refused_with_a_hint(
    process: Process, token: str | None
) -> None:
    async with process.client(token=token) as client:
        answer = await client.post("/admin/reload", headers={"authorization": "Bearer "})
    assert answer.status_code == 403
    assert "TAILGATE_ADMIN_TOKEN" in answer.json()["detail"]
    assert process.reloads == 0


async def test_admin_unix_socket_needs_no_token(process: Process) -> None:
    async with process.client(token=None, trusted=True) as client:
        assert (await client.post("/admin/reload")).status_code == 200
    assert process.reloads == 1


async def test_an_admin_reload_that_fails_answers_409_with_the_error_of_the_policy(process: Process) -> None:
    process.answer = Done(False, "policy.yaml:3: tiers: unknown field")
    async with process.client(trusted=True) as client:
        answer = await client.post("/admin/reload")
    assert (answer.status_code, answer.json()["message"]) == (409, "policy.yaml:3: tiers: unknown field")


@pytest.mark.parametrize("action", ["drain", "undrain"])
async def test_admin_drain_with_a_replica_name_drains_that_replica(process: Process, action: str) -> None:
    async with process.client() as client:
        headers = {"authorization": f"Bearer {TOKEN}"}
        answer = await client.post(f"/admin/{action}", content='{"replica": "r1"}', headers=headers)
        assert (answer.status_code, answer.json()["message"]) == (200, f"{action} r1")
        assert (await client.post(f"/admin/{action}", content='{"replica": "r1"}')).status_code == 401
    assert process.drained == [(action, "r1")]


@pytest.mark.parametrize("body", ["{", "{}", "[]", '{"replika": "r1"}', '{"replica": 1}', '{"replica": "r1", "x": 1}'])
@pytest.mark.parametrize("action", ["drain", "undrain"])
async def test_admin_drain_with_an_invalid_body_drains_nothing(process: Process, action: str, body: str) -> None:
    async with process.client(trusted=True) as client:
        answer = await client.post(f"/admin/{action}", content=body)
    assert (answer.status_code, process.drained, process.stops) == (400, [], 0)
    assert "replica" in answer.json()["detail"]


async def test_admin_drain_without_a_body_drains_the_gateway_and_undrain_is_refused(process: Process) -> None:
    async with process.client(trusted=True) as client:
        assert (await client.post("/admin/drain")).status_code == 200
        assert (await client.post("/admin/undrain")).status_code == 400
    assert (process.drained, process.stops) == ([], 1)


async def test_an_unknown_admin_action_gets_a_404_that_lists_the_known_ones(process: Process) -> None:
    async with process.client(trusted=True) as client:
        answer = await client.post("/admin/explode")
    assert answer.status_code == 404
    assert "reload" in answer.json()["detail"]


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
async def test_an_admin_reload_by_another_method_than_post_is_refused(process: Process, method: str) -> None:
    async with process.client(trusted=True) as client:
        assert (await client.request(method, "/admin/reload")).status_code == 405
    assert process.reloads == 0


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ("/admin/requests?limit=0", "limit: input should be greater than or equal to 1"),
        ("/admin/requests?good=perhaps", "good: input should be a valid boolean"),
        ("/admin/history?since=never", "since: input should be a valid number"),
        ("/admin/history/replicas", "pool: field required"),
    ],
)
async def test_parameter_of_the_wrong_form_is_refused_by_its_name(process: Process, asked: str, error: str) -> None:
    async with process.client() as client:
        answer = await client.get(asked)
    assert answer.status_code == 400
    assert answer.json()["detail"].startswith(error)


@pytest.mark.parametrize("path", ["/docs", "/redoc", "/openapi.json", "/admin", "/v1/models"])
async def test_other_admin_paths_are_not_found(process: Process, path: str) -> None:
    async with process.client() as client:
        assert (await client.get(path)).status_code == 404


async def test_console_page_loads_nothing_from_elsewhere_and_runs_only_its_own_code(process: Process) -> None:
    async with process.client() as client:
        answer = await client.get("/")
    assert not re.search(r"""(https?:)?//[\w.]+\.\w""", answer.text)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", answer.text)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for element in ("script", "style"):
        code = re.search(f"<{element}>(.*?)</{element}>", answer.text, re.DOTALL)
        assert code is not None
        digest = base64.b64encode(hashlib.sha256(code[1].encode()).digest()).decode()
        assert f"{element}-src 'sha256-{digest}'" in policy


async def test_console_page_reads_only_fields_of_the_admin_state(process: Process) -> None:
    """A field renamed in the state would show as "undefined": every `s.field` of the script must be there."""
    process.metrics.ended(OK)
    async with process.client() as client:
        script = (await client.get("/")).text
        shown = (await client.get("/admin/state")).json()
    keys = set(re.findall(r'"(\w+)":', json.dumps(shown)))
    javascript = {"map", "length", "slice", "toFixed"}
    for name in ("show", "tier", "pool", "replica"):
        body = re.search(rf"function {name}\((.*?)\n}}\n", script, re.DOTALL)
        assert body is not None
        read = set(re.findall(r"\b[strlpow]\.(\w+)", body[1]))
        assert read - javascript <= keys, name
        assert read & keys, name


# ---- explain


async def question(process: Process, body: str, host: str = "127.0.0.1") -> httpx.Response:
    async with process.client(token=None) as client:
        return await client.post("/admin/explain", content=body, headers={"host": host})


async def test_admin_explanation_needs_no_token() -> None:
    answer = await question(Process(), '{"tier": "free", "prompt_tokens": 900, "stream": false, "max_tokens": null}')
    assert (answer.status_code, answer.json()["detail"]) == (200, "900 tokens for free")


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ("{", "the body is not JSON"),
        ("[]", "not a JSON object"),
        ('{"teir": "free"}', "teir: unknown field; known: tier, model"),
        ('{"tier": "gold"}', "tier: 'gold' is unknown; known: premium"),
        ('{"model": "nope"}', "model: 'nope' is unknown"),
        ('{"prompt_tokens": 0}', "prompt_tokens: 0 is not a whole number above 0"),
        ('{"prompt_tokens": true}', "prompt_tokens: True is not a whole number"),
        ('{"stream": "yes"}', "stream: 'yes' is not true or false"),
    ],
)
async def test_admin_explanation_of_an_invalid_question_is_refused_by_field(body: str, named: str) -> None:
    answer = await question(Process(), body)
    assert answer.status_code == 400
    assert named in answer.json()["detail"]


async def test_admin_explanation_is_refused_under_an_unknown_host() -> None:
    assert (await question(Process(), "{}", host="evil.example")).status_code == 403


async def test_admin_state_shows_fallback_requests_under_the_requested_model() -> None:
    process = Process()
    for _ in range(2):
        process.metrics.ended(replace(OK, request=replace(a_request(FREE), fallback_of="large")))
    async with process.client() as client:
        shown = (await client.get("/admin/state")).json()
    served = a_request(FREE).model.name
    assert shown["fallbacks"] == [{"tier": FREE.name, "asked": "large", "served": served, "outcome": "ok", "total": 2}]


async def test_admin_state_of_a_large_fleet_comes_in_pieces_of_a_few_replicas() -> None:
    short, _ = SNAPSHOT.pools
    replicas = tuple(replace(short.replicas[0], name=f"r{number}") for number in range(1000))
    pools = (replace(short, replicas=replicas), replace(short, name="empty", replicas=()))
    sources = replace(SOURCES, snapshot_in_pieces=lambda: a_snapshot(replace(SNAPSHOT, pools=pools)))
    found = await state_of(Metrics(POLICY), sources, 0.0)
    pieces = [piece async for piece in state_pieces(found)]
    assert max(piece.count(b'"unprefilled_tokens"') for piece in pieces) == REPLICAS_AT_ONCE
    assert json.loads(b"".join(pieces)) == json.loads(document(found))


@pytest.mark.parametrize("path", ["/loads", "/metrics", "/admin/state"])
async def test_page_waits_for_a_snapshot_in_pieces_and_takes_none_at_once(process: Process, path: str) -> None:
    pool = replace(SNAPSHOT.pools[0], name="in-pieces")
    pieces = partial(a_snapshot, replace(SNAPSHOT, pools=(pool,)))
    sources = replace(SOURCES, snapshot=pytest.fail, snapshot_in_pieces=pieces)
    async with process.client(sources=sources) as client:
        answer = await client.get(path)
    assert answer.status_code == 200
    assert "in-pieces" in answer.text
