"""For any text of a replica, nothing raises: our pages and our list of models stay readable."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from random import Random

import httpx
import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_classic

from gateway.core.controller import Controller
from gateway.core.policy import Model
from gateway.core.pool_spec import EngineKind
from gateway.core.results import AttemptOutcome, AttemptResult
from gateway.core.sample import Sample
from gateway.fleet.board import ModelBoard
from gateway.fleet.fault import Failed
from gateway.fleet.metrics_text import read_page
from gateway.fleet.models_json import read_models
from gateway.observe.admin import Access, admin_app
from gateway.observe.metrics.metrics import Metrics
from gateway.observe.snapshots import snapshot_in_pieces
from gateway.wire.numbers import MAX_COUNT

from .made import FREE, POLICY, SOURCES, a_request

ANY = Model("*", ("short", "long"), any_name=True)
RULES = replace(POLICY, models={**POLICY.models, "*": ANY})
NUMBERS = st.sampled_from(
    [
        *("0", "1", "5.0", "-0", "-1", "0.5", "1.0001", "1e300", "1e308", "-1e308", "1e-320", "1e400", "1" * 400),
        *("9223372036854775807", "9223372036854775808", "NaN", "nan", "Inf", "+Inf", "-Inf", "Infinity"),
        *("0x10", "", "1_000", "٣"),
    ]
)
NAMES = st.sampled_from(
    [
        *("num_requests_running", "num_requests_waiting", "num_preemptions_total"),
        *("kv_cache_usage_perc", "gpu_cache_usage_perc", "cache_config_info", "other"),
    ]
)
LABELS = st.sampled_from(["", '{engine="0"}', '{engine="1"}', '{block_size="16",num_gpu_blocks="1e999"}', '{x="', "{"])
LINES = st.builds(lambda name, labels, value: f"vllm:{name}{labels} {value}\n".encode(), NAMES, LABELS, NUMBERS)
ODDITIES = st.sampled_from([b"\xff\xfe\n", b"\n" * 1000, b"# HELP x\n", b"x" * 2**20 + b"\n", b"\x00", b"\xed\xa0\x80"])
PAGES = st.lists(LINES | ODDITIES | st.binary(max_size=40), max_size=8).map(b"".join)
IDS = st.sampled_from(['"llama"', '"m"', '"\\ud800"', '"\\u0000"', '"\U0001f600"', '""', "1", "null"]) | st.text(
    max_size=5
).map(lambda text: json.dumps(text, ensure_ascii=False))
ENTRIES = st.builds(lambda name, length: f'{{"id": {name}, "max_model_len": {length or 0}}}', IDS, NUMBERS)
LISTS = (
    st.lists(ENTRIES, max_size=4).map(lambda entries: f'{{"data": [{", ".join(entries)}]}}'.encode(errors="replace"))
    | st.binary(max_size=40)
    | st.just(b'{"data": ' + b"[" * 100_000)
)
SUM_IS_INFINITE = b'vllm:num_requests_running{engine="0"} 1e308\nvllm:num_requests_running{engine="1"} 1e308\n'
SAMPLES = st.builds(
    Sample,
    waiting=st.none() | st.integers(0, MAX_COUNT),
    running=st.none() | st.integers(0, MAX_COUNT),
    kv_fraction=st.none() | st.floats(0, 1),
    preemptions=st.none() | st.integers(0, MAX_COUNT),
    context_tokens=st.none() | st.integers(1, MAX_COUNT),
)


class Gateway:
    """The parts between a replica's pages and readers of ours, without sockets."""

    def __init__(self) -> None:
        self.controller = Controller(RULES, Random(3))
        self.board = ModelBoard(0)
        self.now = 100.0
        self._asked = 0

    def read(self, page: bytes, models: bytes) -> None:
        """A scrape and a list of models of one replica."""
        samples, cards = read_page(EngineKind.VLLM, page), read_models(models)
        if not isinstance(samples, Failed):
            self.observe(samples[0].sample)
        if not isinstance(cards, Failed):
            self.board.put("r0", cards)
            lengths = [card.max_model_len for card in cards if card.max_model_len is not None]
            if lengths:
                self.observe(Sample(context_tokens=min(lengths)))

    def observe(self, sample: Sample) -> None:
        """Let the replica report this."""
        self.now += 1.0
        self.controller.observe("r0", sample, self.now)

    def serve(self) -> None:
        """Serve one request, with any outcome."""
        self._asked += 1
        request = replace(a_request(FREE, body_at=self.now), id=self._asked, head_at=self.now, policy=RULES)
        for command in self.controller.arrive(request, self.now):
            if hasattr(command, "attempt"):
                self.controller.sent(command.attempt, self.now)
                self.controller.finish(command.attempt, AttemptResult(AttemptOutcome.COMPLETE), self.now + 0.5)
        self.controller.leave(self._asked, self.now)

    def check(self) -> None:
        """All our pages can be read."""
        orjson.loads(orjson.dumps(self.board.listing(RULES)))
        for name in ("llama", "m", "x"):
            orjson.dumps(self.board.one(RULES, name))
        asyncio.run(self._pages())

    async def _pages(self) -> None:
        sources = replace(
            SOURCES,
            policy=lambda: RULES,
            snapshot=lambda: self.controller.snapshot(self.now),
            snapshot_in_pieces=lambda: snapshot_in_pieces(self.controller, lambda: self.now),
            find=lambda name, tier: (RULES.model(name), ""),
            explain=lambda asked: self.controller.explain(asked, self.now),
            now=lambda: self.now,
        )
        app = admin_app(Metrics(RULES), sources, {}, {}, Access(token=None))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
            for path in ("/livez", "/readyz", "/"):
                assert (await client.get(path)).status_code == 200
            for form, parse in (("text/plain", parse_classic), ("application/openmetrics-text", parse_openmetrics)):
                metrics = await client.get("/metrics", headers={"accept": form})
                assert metrics.status_code == 200
                assert list(parse(metrics.text))
            for answer in (await client.get("/admin/state"), await client.post("/admin/explain", content=b"{}")):
                assert answer.status_code == 200
                json.loads(answer.text, parse_constant=pytest.fail)


@settings(derandomize=True, deadline=None, max_examples=25)
@given(st.lists(st.tuples(PAGES, LISTS), min_size=1, max_size=3))
@example([(SUM_IS_INFINITE, b"")])
@example([(b"vllm:num_requests_waiting 1e300\n", b"")])
@example([(b"", b'{"data": [{"id": "m", "max_model_len": 9223372036854775808}]}')])
def test_no_metrics_page_or_model_list_of_a_replica_breaks_the_admin_pages(readings: list[tuple[bytes, bytes]]) -> None:
    gateway = Gateway()
    for page, models in readings:
        gateway.read(page, models)
        gateway.serve()
    gateway.check()


@settings(derandomize=True, deadline=None, max_examples=25)
@given(st.lists(SAMPLES, min_size=1, max_size=5))
def test_samples_with_extreme_numbers_break_no_rule_of_the_core(samples: list[Sample]) -> None:
    gateway = Gateway()
    for sample in samples:
        gateway.serve()
        gateway.observe(sample)
    gateway.check()


@pytest.mark.parametrize("number", [1, MAX_COUNT, 2**64 - 1, 2**64, 10**30])
@pytest.mark.parametrize("field", ["prompt_tokens", "max_tokens"])
def test_explanation_with_any_number_is_answered_or_refused(field: str, number: int) -> None:
    gateway = Gateway()

    async def explained() -> httpx.Response:
        sources = replace(
            SOURCES,
            policy=lambda: RULES,
            find=lambda name, tier: (RULES.model(name), ""),
            explain=lambda asked: gateway.controller.explain(asked, gateway.now),
        )
        app = admin_app(Metrics(RULES), sources, {}, {}, Access(token=None))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
            return await client.post("/admin/explain", content=b'{"%s": %d}' % (field.encode(), number))

    answer = asyncio.run(explained())
    assert answer.status_code == (200 if number <= MAX_COUNT else 400), answer.text
