"""Every replica of the policy in force is watched, and none other."""

from __future__ import annotations

import asyncio
import logging
import random
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import orjson
import pytest

from gateway.core.policy import Model, Policy
from gateway.core.pool_spec import EngineKind, Health
from gateway.core.sample import Sample
from gateway.fleet.board import ModelBoard
from gateway.fleet.fault import ReadFault
from gateway.fleet.target import Reading, ReplicaReport
from gateway.fleet.watch import READS_PER_S, FleetWatcher

from .replicas import MODELS, OFTEN, VLLM_PAGE, FakeReplica, answer, policy, pool, replica, until, watched

LOAD = Sample(waiting=2, running=3, kv_fraction=0.25)


class Fleet:
    """A running watcher, and all its reports."""

    def __init__(self, models_interval_s: float, clock: Callable[[], float]) -> None:
        self.samples: list[tuple[str, Sample]] = []
        self.bugs: list[Exception] = []
        self.raises = 0
        """How many of the next loads that it is told make the receiver raise."""
        self.board = ModelBoard(0)
        self.pauses: list[float] = []
        self.watcher = FleetWatcher(
            self.hear,
            self.board,
            clock=clock,
            random=random.Random(1),
            on_bug=self.bugs.append,
            is_out=lambda _: False,
            pause=self.pause,
            models_interval_s=models_interval_s,
        )

    def hear(self, name: str, sample: Sample) -> None:
        self.samples.append((name, sample))
        if sample == LOAD and self.raises:
            self.raises -= 1
            raise ZeroDivisionError

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await asyncio.sleep(seconds)

    async def says(self, name: str, sample: Sample) -> None:
        """Wait until the watcher reports `sample` for the replica `name` once more."""
        seen = self.samples.count((name, sample))
        await until(lambda: self.samples.count((name, sample)) > seen)

    def report(self, name: str) -> ReplicaReport:
        return next(report for report in self.watcher.reports() if report.name == name)

    def failed(self, name: str, reading: Reading) -> int:
        """How often a reading has failed."""
        return sum(count for (read, _), count in self.report(name).failures.items() if read is reading)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Level and text of all log lines."""
    return [f"{record.levelname} {record.getMessage()}" for record in caplog.records]


@asynccontextmanager
async def watching(
    rules: Policy, *, models_interval_s: float = 3600.0, clock: Callable[[], float] = lambda: 42.0
) -> AsyncIterator[Fleet]:
    fleet = Fleet(models_interval_s, clock)
    async with watched(fleet.watcher, rules):
        yield fleet


@pytest.fixture
async def fake() -> AsyncIterator[FakeReplica]:
    async with replica() as fake:
        yield fake


@pytest.fixture
async def other() -> AsyncIterator[FakeReplica]:
    async with replica() as fake:
        yield fake


async def test_large_fleet_is_read_less_often_so_that_reads_take_a_part_of_a_core() -> None:
    often = Health(interval_s=0.001, scrape_interval_s=0.001, timeout_s=10.0)
    async with replica() as fake, watching(policy(pool(*[fake] * 5, health=often))) as fleet:
        await until(lambda: len(fleet.pauses) >= 30)
        starts, later = fleet.pauses[:5], fleet.pauses[5:]
        assert max(starts) < 0.001, "starts are spread over one interval"
        assert min(later) >= 0.9 * 5 * 2 / READS_PER_S


async def test_health_load_and_models_of_every_replica_are_read(fake: FakeReplica, other: FakeReplica) -> None:
    rules = policy(pool(fake, name="short"), pool(other, name="long"))
    async with watching(rules) as fleet:
        for name in ("short-0", "long-0"):
            await fleet.says(name, Sample(healthy=True))
            await fleet.says(name, LOAD)
        await until(lambda: fleet.board.known(rules.pools["long"]) == {"m"})
        await until(lambda: fleet.board.max_model_len(rules.pools["short"], "m") == 8192)
        report = fleet.report("long-0")
        assert (report.pool, report.url, report.healthy) == ("long", other.url, True)
        assert (report.errors, report.failures) == ({}, {})
    assert fake.connections <= 3
    await until(lambda: fake.open_connections == 0)


async def test_a_replica_that_refuses_connections_is_unhealthy_until_it_is_back(fake: FakeReplica) -> None:
    port = int(fake.url.rsplit(":", 1)[1])
    async with watching(policy(pool(fake))) as fleet:
        await fleet.says("main-0", Sample(healthy=True))
        await fake.stop()
        await fleet.says("main-0", Sample(healthy=False))
        assert fleet.report("main-0").errors[Reading.HEALTH] == "unreachable: Connection refused"
        await fake.start(port)
        await fleet.says("main-0", Sample(healthy=True))
        assert Reading.HEALTH not in fleet.report("main-0").errors
        assert fleet.report("main-0").failures[Reading.HEALTH, ReadFault.UNREACHABLE] >= 1


@pytest.mark.parametrize("status", [302, 404, 500, 503])
async def test_only_a_2xx_health_check_is_healthy_at_a_path_of_the_policy(fake: FakeReplica, status: int) -> None:
    fake.answers["/health"] = answer("", status=status, headers="Location: /metrics\r\n")
    async with watching(policy(pool(fake, health=replace(OFTEN, path="/health")))) as fleet:
        await fleet.says("main-0", Sample(healthy=False))
        assert fleet.report("main-0").errors[Reading.HEALTH] == f"status: answered {status}"
    assert (("main-0", Sample(healthy=True))) not in fleet.samples


@pytest.mark.parametrize("status", [302, 401, 404, 405, 429])
async def test_any_answer_below_500_is_life_without_a_path_in_the_policy(fake: FakeReplica, status: int) -> None:
    fake.answers["/health"] = answer("", status=status)
    async with watching(policy(pool(fake))) as fleet:
        await fleet.says("main-0", Sample(healthy=True))
        assert Reading.HEALTH not in fleet.report("main-0").errors
    assert (("main-0", Sample(healthy=False))) not in fleet.samples


@pytest.mark.parametrize("status", [500, 503])
async def test_an_answer_of_500_or_above_fails_the_health_check(fake: FakeReplica, status: int) -> None:
    fake.answers["/health"] = answer("", status=status)
    async with watching(policy(pool(fake))) as fleet:
        await fleet.says("main-0", Sample(healthy=False))
        assert fleet.report("main-0").errors[Reading.HEALTH] == f"status: answered {status}"


async def test_openai_server_is_checked_at_its_list_of_models_with_the_key_of_the_pool(fake: FakeReplica) -> None:
    del fake.answers["/health"]
    async with watching(policy(pool(fake, engine=EngineKind.OPENAI, upstream_key="sk-up"))) as fleet:
        await fleet.says("main-0", Sample(healthy=True))
    assert set(fake.paths()) == {"/v1/models"}
    assert all(b"authorization: bearer sk-up\r\n" in head.lower() for head in fake.asked)


async def test_scrape_that_timed_out_is_awaited_before_another_is_sent(fake: FakeReplica) -> None:
    fake.answers["/metrics"] = None
    async with watching(policy(pool(fake, health=replace(OFTEN, timeout_s=0.05)))) as fleet:
        await until(lambda: fleet.failed("main-0", Reading.METRICS) >= 4)
        assert fake.paths().count("/metrics") == 1
        fake.answers["/metrics"] = answer(VLLM_PAGE)
        await fake.answer_late("/metrics", answer(VLLM_PAGE))
        await fleet.says("main-0", LOAD)


async def test_pause_doubles_after_each_scrape_that_times_out(fake: FakeReplica) -> None:
    fake.answers["/metrics"] = None
    slow = replace(OFTEN, timeout_s=0.02, interval_s=5000.0, scrape_interval_s=0.002)
    async with watching(policy(pool(fake, health=slow))) as fleet:
        await until(lambda: fleet.failed("main-0", Reading.METRICS) >= 6)
    pauses = [pause for pause in fleet.pauses if 0.0 < pause < 1000.0]
    assert all(0.9 * 0.002 * 2**n <= pause <= 1.1 * 0.002 * 2**n for n, pause in enumerate(pauses, 1)), pauses


async def test_models_are_read_again_after_a_lost_connection_and_before_a_recovered_replica_is_healthy(
    fake: FakeReplica,
) -> None:
    port = int(fake.url.rsplit(":", 1)[1])
    async with watching(policy(pool(fake))) as fleet:
        await fleet.says("main-0", Sample(context_tokens=8192, longest_tokens=8192, models=("m",)))
        await fake.stop()
        await fleet.says("main-0", Sample(healthy=False))
        fake.answers["/v1/models"] = answer('{"data": [{"id": "other"}]}')
        fleet.samples.clear()
        await fake.start(port)
        await fleet.says("main-0", Sample(healthy=True))
    news = [sample for _, sample in fleet.samples]
    assert news.index(Sample(models=("other",))) < news.index(Sample(healthy=True))


async def test_fresh_list_is_read_by_a_request_that_is_newer_than_the_loss(fake: FakeReplica) -> None:
    async with watching(policy(pool(fake))) as fleet:
        await fleet.says("main-0", Sample(context_tokens=8192, longest_tokens=8192, models=("m",)))
        assert not fleet.watcher.is_list_old("main-0")
        fake.answers["/v1/models"] = answer('{"data": [{"id": "other"}]}')
        fleet.watcher.lost("main-0")
        assert fleet.watcher.is_list_old("main-0")
        assert await fleet.watcher.fresh_list("main-0") == {"other"}
        assert not fleet.watcher.is_list_old("main-0")


async def test_server_without_a_list_is_never_asked_for_a_fresh_one(fake: FakeReplica) -> None:
    fake.answers["/v1/models"] = answer(status=404)
    async with watching(policy(pool(fake))) as fleet:
        await until(lambda: fleet.failed("main-0", Reading.MODELS) > 0)
        fleet.watcher.lost("main-0")
        assert not fleet.watcher.is_list_old("main-0")


async def test_list_with_a_wildcard_leaves_open_what_a_replica_takes(fake: FakeReplica) -> None:
    fake.answers["/v1/models"] = answer('{"data": [{"id": "m"}, {"id": "openai/*"}]}')
    rules = policy(pool(fake))
    async with watching(rules) as fleet:
        await fleet.says("main-0", Sample(models=()))
        assert fleet.board.known(rules.pools["main"]) is None


async def test_health_verdict_is_dated_by_the_start_of_its_check(fake: FakeReplica) -> None:
    """A failure in the meantime is then newer. The clock counts requests that reached the replica."""
    async with watching(policy(pool(fake)), clock=lambda: float(fake.paths().count("/health"))) as fleet:
        for _ in range(3):
            await fleet.says("main-0", Sample(healthy=True))
    verdicts = [sample.asked_at for _, sample in fleet.samples if sample.healthy]
    assert verdicts == [float(number) for number in range(len(verdicts))]


async def test_a_silent_health_check_fails_after_its_timeout_and_load_is_still_read(fake: FakeReplica) -> None:
    fake.answers["/health"] = None
    async with watching(policy(pool(fake, health=replace(OFTEN, timeout_s=0.2)))) as fleet:
        await fleet.says("main-0", Sample(healthy=False, late=True))
        await fleet.says("main-0", LOAD)
        assert fleet.report("main-0").failures[Reading.HEALTH, ReadFault.TIMEOUT] >= 1


async def test_health_and_metrics_are_read_at_the_paths_of_the_policy(fake: FakeReplica) -> None:
    fake.answers = {"/alive": answer(), "/load": fake.answers["/metrics"]}
    health = replace(OFTEN, path="/alive", metrics_path="/load")
    async with watching(policy(pool(fake, health=health))) as fleet:
        await fleet.says("main-0", Sample(healthy=True))
        await fleet.says("main-0", LOAD)
    assert set(fake.paths()) <= {"/alive", "/load", "/v1/models"}


async def test_every_reading_of_a_replica_sends_the_key_of_the_pool(fake: FakeReplica) -> None:
    async with watching(policy(pool(fake, upstream_key="sk-up"))) as fleet:
        await until(lambda: {"/health", "/metrics", "/v1/models"} <= set(fake.paths()))
        assert "sk-up" not in repr(fleet.watcher.reports())
    assert all(b"authorization: bearer sk-up\r\n" in head.lower() for head in fake.asked)


async def test_an_engine_without_metrics_is_not_scraped(fake: FakeReplica) -> None:
    async with watching(policy(pool(fake, engine=EngineKind.OPENAI))) as fleet:
        for _ in range(3):
            await fleet.says("main-0", Sample(healthy=True))
    assert "/metrics" not in fake.paths()


async def test_unreadable_metrics_page_is_counted_and_logged_once(
    fake: FakeReplica, caplog: pytest.LogCaptureFixture
) -> None:
    fake.answers["/metrics"] = answer("vllm:num_requests_running lots\n")
    caplog.set_level(logging.INFO, "tailgate.fleet")
    key = (Reading.METRICS, ReadFault.GARBAGE)
    async with watching(policy(pool(fake))) as fleet:
        await until(lambda: fleet.report("main-0").failures.get(key, 0) >= 3)
        error = fleet.report("main-0").errors[Reading.METRICS]
        assert error == "garbage: the line of vllm:num_requests_running is malformed"
        fake.answers["/metrics"] = answer(b"\xff\n")
        await until(lambda: "UTF-8" in fleet.report("main-0").errors.get(Reading.METRICS, ""))
        fake.answers["/metrics"] = answer("vllm:num_requests_running 1\n")
        await fleet.says("main-0", Sample(running=1))
    then = "meanwhile its load is estimated: check its engine and health.metrics_path in the policy"
    malformed = "the line of vllm:num_requests_running is malformed"
    assert lines(caplog) == [
        f"WARNING replica main-0: its metrics cannot be read: {malformed}; {then}",
        f"WARNING replica main-0: its metrics cannot be read: the page is not UTF-8; {then}",
        "INFO replica main-0: its metrics can be read again",
    ]


async def test_unreachable_replica_is_logged_once_and_again_when_it_is_back(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tailgate.fleet")
    fake = FakeReplica()
    await fake.start()
    port = int(fake.url.rsplit(":", 1)[1])
    await fake.stop()
    rules = policy(pool(fake), models=(Model("m", ("main",)),))
    async with watching(rules, models_interval_s=0.01) as fleet:
        await until(lambda: all(fleet.failed("main-0", reading) > 1 for reading in Reading))
        assert lines(caplog) == [
            "WARNING replica main-0 cannot be reached: Connection refused; it gets no requests after 3 failures in a "
            f"row: check that an engine listens at {fake.url}"
        ]
        await fake.start(port)
        await until(lambda: not fleet.report("main-0").errors)
        await fake.stop()
    assert lines(caplog)[1] == "INFO replica main-0 can be reached again"


async def test_server_that_gives_no_answer_in_time_is_logged_once(
    fake: FakeReplica, caplog: pytest.LogCaptureFixture
) -> None:
    fake.answers = dict.fromkeys(fake.answers)
    async with watching(policy(pool(fake, health=replace(OFTEN, timeout_s=0.05)))) as fleet:
        await until(lambda: all(fleet.failed("main-0", reading) for reading in Reading))
        assert lines(caplog) == [
            "WARNING replica main-0 fails its health check: GET /health: no complete answer within 0.05 s; it gets no "
            "requests after 3 failures in a row: check its engine and health.path in the policy"
        ]
        fake.answers["/health"] = answer()
        await until(lambda: any("its metrics cannot be read" in line for line in lines(caplog)))


async def test_engine_that_starts_is_logged_as_reached_and_then_as_unhealthy(
    fake: FakeReplica, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tailgate.fleet")
    port = int(fake.url.rsplit(":", 1)[1])
    await fake.stop()
    once = replace(OFTEN, failures=1)
    once = replace(once, path="/health")
    async with watching(policy(pool(fake, engine=EngineKind.OPENAI, health=once))) as fleet:
        await until(lambda: len(fleet.report("main-0").errors) == 2)
        fake.answers["/health"] = answer(status=503)
        await fake.start(port)
        await until(lambda: "answered 503" in caplog.text)
        fake.answers["/health"] = answer()
        await until(lambda: "passes its health check again" in caplog.text)
    assert lines(caplog)[1:3] == [
        "INFO replica main-0 can be reached again",
        "WARNING replica main-0 fails its health check: GET /health: answered 503; it gets no requests: check its "
        "engine and health.path in the policy",
    ]


async def test_models_of_a_replica_are_logged_whenever_the_list_is_new_and_the_policy_names_none(
    fake: FakeReplica, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tailgate.fleet")
    rules = policy(pool(fake), models=(Model("*", ("main",), any_name=True),))
    async with watching(rules, models_interval_s=0.01) as fleet:
        await until(lambda: fake.paths().count("/v1/models") > 3)
        fake.answers["/v1/models"] = answer('{"data": [{"id": "b"}, {"id": "a"}]}')
        await until(lambda: fleet.board.known(rules.pools["main"]) == {"a", "b"})
    assert lines(caplog) == [
        "INFO replica main-0 serves m: requests say one of these as `model`",
        "INFO replica main-0 serves a, b: requests say one of these as `model`",
    ]


async def test_models_of_a_replica_are_logged_at_a_reload_that_leaves_only_a_catch_all(
    fake: FakeReplica, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tailgate.fleet")
    named = policy(pool(fake), models=(Model("m", ("main",)),))
    async with watching(named, models_interval_s=0.01) as fleet:
        await until(lambda: fake.paths().count("/v1/models") > 3)
        assert lines(caplog) == []
        fleet.watcher.configure(policy(pool(fake), models=(Model("*", ("main",), any_name=True),)))
        assert lines(caplog) == ["INFO replica main-0 serves m: requests say one of these as `model`"]
        read = fake.paths().count("/v1/models")
        await until(lambda: fake.paths().count("/v1/models") > read + 3)
    assert len(lines(caplog)) == 1


async def test_a_reload_is_compared_at_once_with_the_last_list_of_models(
    fake: FakeReplica, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise the operator would hear of a wrong name only after clients have got 404s."""
    caplog.set_level(logging.INFO, "tailgate.fleet")
    right = policy(pool(fake), models=(Model("chat", ("main",), upstream="m"),))
    wrong = policy(pool(fake), models=(Model("chat", ("main",), upstream="wrong"),))
    async with watching(right) as fleet:
        await until(lambda: fleet.board.known(right.pools["main"]) == {"m"})
        for rules in (right, wrong, wrong, right):
            fleet.watcher.configure(rules)
        assert fake.paths().count("/v1/models") == 1
    assert [line.split(",")[0] for line in lines(caplog)] == [
        "WARNING replica main-0: it does not list wrong",
        "INFO replica main-0: it lists all models that the policy asks it for",
    ]


async def test_failures_that_alternate_are_logged_once_each_until_the_reading_succeeds(
    fake: FakeReplica, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tailgate.fleet")
    async with watching(policy(pool(fake, engine=EngineKind.OPENAI, health=replace(OFTEN, path="/health")))) as fleet:
        for _ in range(3):
            for status in (502, 503):
                fake.answers["/health"] = answer(status=status)
                error = f"status: answered {status}"
                await until(lambda error=error: fleet.report("main-0").errors.get(Reading.HEALTH) == error)
        fake.answers["/health"] = answer()
        await until(lambda: not fleet.report("main-0").errors)
        fake.answers["/health"] = answer(status=503)
        await until(lambda: "again" in lines(caplog)[-2])
    assert [re.sub(r"; .*", "", line.split("main-0 ")[1]) for line in lines(caplog)] == [
        "fails its health check: GET /health: answered 502",
        "fails its health check: GET /health: answered 503",
        "passes its health check again",
        "fails its health check: GET /health: answered 503",
    ]


async def test_models_are_read_again_at_every_interval(fake: FakeReplica) -> None:
    rules = policy(pool(fake))
    async with watching(rules, models_interval_s=0.01) as fleet:
        await until(lambda: fleet.board.known(rules.pools["main"]) == {"m"})
        fake.answers["/v1/models"] = answer('{"data": [{"id": "n"}]}')
        await until(lambda: fleet.board.known(rules.pools["main"]) == {"n"})


async def test_a_model_of_the_policy_that_the_engine_does_not_list_is_named_once(
    fake: FakeReplica, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tailgate.fleet")
    models = (
        Model("chat", ("main",), upstream="org/chat"),
        Model("m", ("main",)),
        Model("*", ("main",), any_name=True),
        Model("elsewhere", ("other",)),
    )
    rules = policy(pool(fake), replace(pool(fake, name="other"), replicas=()), models=models)
    async with watching(rules, models_interval_s=0.01) as fleet:
        await until(lambda: fake.paths().count("/v1/models") > 3)
        fake.answers["/v1/models"] = answer('{"data": [{"id": "m"}, {"id": "org/chat"}]}')
        await until(lambda: fleet.board.known(rules.pools["main"]) == {"m", "org/chat"})
        await until(lambda: len(caplog.records) > 1)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        (
            "WARNING",
            "replica main-0: it does not list org/chat, which the policy asks it for; it lists m: check "
            "models.*.upstream and the engine's --served-model-name",
        ),
        ("INFO", "replica main-0: it lists all models that the policy asks it for"),
    ]


async def test_a_model_added_by_a_reload_is_compared_without_a_new_watch(
    fake: FakeReplica, caplog: pytest.LogCaptureFixture
) -> None:
    fake.answers["/v1/models"] = answer("nonsense")
    async with watching(policy(pool(fake)), models_interval_s=0.01) as fleet:
        await until(lambda: Reading.MODELS in fleet.report("main-0").errors)
        fleet.watcher.configure(policy(pool(fake), models=(Model("new", ("main",)),)))
        assert Reading.MODELS in fleet.report("main-0").errors, "a new watch would have no errors yet"
        fake.answers["/v1/models"] = answer(MODELS)
        await until(lambda: any("does not list new" in record.getMessage() for record in caplog.records))


async def test_models_are_read_at_once_when_a_replica_recovers(fake: FakeReplica) -> None:
    fake.answers["/health"] = answer(status=503)
    fake.answers["/v1/models"] = answer(status=503)
    rules = policy(pool(fake))
    async with watching(rules) as fleet:
        await until(lambda: Reading.MODELS in fleet.report("main-0").errors)
        assert fleet.board.known(rules.pools["main"]) is None
        fake.answers.update({"/health": answer(), "/v1/models": answer(MODELS)})
        await until(lambda: fleet.board.max_model_len(rules.pools["main"], "m") == 8192)
        assert fake.paths().count("/v1/models") == 2


async def test_watcher_reports_the_shortest_and_the_longest_context_of_a_replicas_models(fake: FakeReplica) -> None:
    fake.answers["/v1/models"] = answer(
        '{"data": [{"id": "m", "max_model_len": 8192}, {"id": "n", "max_model_len": 99}]}'
    )
    async with watching(policy(pool(fake))) as fleet:
        await fleet.says("main-0", Sample(context_tokens=99, longest_tokens=8192, models=("m", "n")))


async def test_watcher_reports_adapters_of_a_replica_and_their_removal(fake: FakeReplica) -> None:
    fake.answers["/v1/models"] = answer('{"data": [{"id": "m"}, {"id": "sql", "parent": "m"}]}')
    async with watching(policy(pool(fake)), models_interval_s=0.01) as fleet:
        await fleet.says("main-0", Sample(models=("m", "sql"), adapters=("sql",)))
        fake.answers["/v1/models"] = answer('{"data": [{"id": "m"}]}')
        await fleet.says("main-0", Sample(models=("m",), adapters=()))


async def test_watcher_reports_no_context_for_models_without_lengths(fake: FakeReplica) -> None:
    fake.answers["/v1/models"] = answer('{"data": [{"id": "m"}]}')
    async with watching(policy(pool(fake))) as fleet:
        await until(lambda: fleet.board.known(pool(fake)) == {"m"})
        await fleet.says("main-0", LOAD)
    assert {sample for _, sample in fleet.samples} == {Sample(healthy=True), LOAD, Sample(models=("m",))}


async def test_a_replica_that_cannot_be_read_keeps_its_last_models(fake: FakeReplica) -> None:
    rules = policy(pool(fake))
    async with watching(rules, models_interval_s=0.01) as fleet:
        await until(lambda: fleet.board.known(rules.pools["main"]) == {"m"})
        fake.answers["/v1/models"] = answer("nonsense")
        await until(lambda: fleet.report("main-0").failures.get((Reading.MODELS, ReadFault.GARBAGE), 0) >= 2)
        assert fleet.board.known(rules.pools["main"]) == {"m"}


async def test_watcher_follows_replicas_added_and_removed_by_the_policy(fake: FakeReplica, other: FakeReplica) -> None:
    async with watching(policy(pool(fake))) as fleet:
        await fleet.says("main-0", Sample(healthy=True))
        fleet.watcher.configure(policy(pool(fake), pool(other, name="more")))
        await fleet.says("more-0", Sample(healthy=True))
        assert fake.connections <= 3, "what is watched as before keeps its connections"
        await until(lambda: fleet.board.known(pool(fake)) == {"m"})

        fleet.watcher.configure(policy(pool(other, name="more")))
        await until(lambda: fake.open_connections == 0)
        assert fleet.board.known(pool(fake)) is None
        asked, said = len(fake.asked), len([name for name, _ in fleet.samples if name == "main-0"])
        for _ in range(3):
            await fleet.says("more-0", Sample(healthy=True))
        assert len(fake.asked) == asked
        assert len([name for name, _ in fleet.samples if name == "main-0"]) == said
        assert [report.name for report in fleet.watcher.reports()] == ["more-0"]


async def test_a_new_address_under_an_old_name_is_a_new_replica(fake: FakeReplica, other: FakeReplica) -> None:
    other.answers["/v1/models"] = answer('{"data": [{"id": "n"}]}')
    async with watching(policy(pool(fake))) as fleet:
        await until(lambda: fleet.board.known(pool(fake)) == {"m"})
        fleet.watcher.configure(policy(pool(other)))
        assert fleet.board.known(pool(other)) is None
        await until(lambda: fleet.board.known(pool(other)) == {"n"})
        assert fleet.report("main-0").url == other.url


async def test_changed_health_check_interval_takes_effect_at_once(fake: FakeReplica) -> None:
    slow = Health(interval_s=3600, scrape_interval_s=3600, timeout_s=10)
    async with watching(policy(pool(fake, health=slow))) as fleet:
        await fleet.says("main-0", Sample(healthy=True))
        fleet.watcher.configure(policy(pool(fake)))
        await fleet.says("main-0", Sample(healthy=True))
        await fleet.says("main-0", Sample(healthy=True))


async def test_readings_of_replicas_start_staggered_with_random_pauses(fake: FakeReplica) -> None:
    async with watching(policy(pool(fake, fake))) as fleet:
        await until(lambda: len(fleet.pauses) >= 100)
    assert fleet.pauses[:2] == [0.0, 0.005], "spread over one interval, at most 10 ms apart"
    drawn = [pause for pause in fleet.pauses[2:] if pause < 1]
    assert all(0.009 <= pause <= 0.011 for pause in drawn)
    assert len(set(drawn)) > len(drawn) // 2


async def test_closing_the_watcher_ends_every_connection_and_request(fake: FakeReplica) -> None:
    fake.answers = {"/health": None, "/metrics": None, "/v1/models": None}
    async with watching(policy(pool(fake))):
        await until(lambda: fake.open_connections == 2)
    await until(lambda: fake.open_connections == 0)


async def test_reading_that_raises_is_logged_counted_as_failed_and_repeated(fake: FakeReplica) -> None:
    async with watching(policy(pool(fake))) as fleet:
        fleet.raises = 2
        await until(lambda: len(fleet.bugs) == 2)
        assert fleet.report("main-0").failures[Reading.METRICS, ReadFault.GARBAGE] == 2
        await fleet.says("main-0", LOAD)
        await fleet.says("main-0", Sample(healthy=True))
        await until(lambda: not fleet.report("main-0").errors)
    assert [type(bug) for bug in fleet.bugs] == [ZeroDivisionError] * 2


# ---- warm-up


WARM = replace(OFTEN, warmup=2, path="/health")


async def test_recovered_replica_is_warmed_up_before_it_is_healthy(fake: FakeReplica) -> None:
    fake.answers["/v1/completions"] = answer("{}")
    fake.answers["/health"] = answer(status=503)
    async with watching(policy(pool(fake, health=WARM, engine=EngineKind.OPENAI))) as fleet:
        await fleet.says("main-0", Sample(healthy=False))
        assert "/v1/completions" not in fake.paths()
        fake.answers["/health"] = answer()
        await fleet.says("main-0", Sample(healthy=True))
        assert fake.paths().count("/v1/completions") == 2
        await fleet.says("main-0", Sample(healthy=True))
        assert fake.paths().count("/v1/completions") == 2, "once"


async def test_replica_added_by_a_reload_is_warmed_up_but_not_at_the_start(
    fake: FakeReplica, other: FakeReplica
) -> None:
    for each in (fake, other):
        each.answers["/v1/completions"] = answer("{}")
    async with watching(policy(pool(fake, health=WARM))) as fleet:
        await fleet.says("main-0", Sample(healthy=True))
        fleet.watcher.configure(policy(pool(fake, other, health=WARM)))
        await fleet.says("main-1", Sample(healthy=True))
    assert fake.paths().count("/v1/completions") == 0
    assert other.paths().count("/v1/completions") == 2


async def test_warm_up_has_prompts_of_the_length_that_the_policy_asks_for(fake: FakeReplica) -> None:
    fake.answers["/v1/completions"] = answer("{}")
    fake.answers["/health"] = answer(status=503)
    async with watching(policy(pool(fake, health=replace(WARM, warmup_prompt_tokens=512)))) as fleet:
        await fleet.says("main-0", Sample(healthy=False))
        fake.answers["/health"] = answer()
        await fleet.says("main-0", Sample(healthy=True))
    one, other = (orjson.loads(body)["prompt"] for path, body in fake.bodies if path == "/v1/completions")
    assert 400 <= len(one.split()) <= 600
    assert one[:3] != other[:3], "the second must not be found in the prefix cache"


async def test_replica_whose_warm_up_fails_is_reported_and_still_healthy(
    fake: FakeReplica, caplog: pytest.LogCaptureFixture
) -> None:
    fake.answers["/health"] = answer(status=503)
    async with watching(policy(pool(fake, health=WARM))) as fleet:
        await fleet.says("main-0", Sample(healthy=False))
        fake.answers["/health"] = answer()
        await fleet.says("main-0", Sample(healthy=True))
    assert "replica main-0: could not be warmed up: status: answered 404; it serves all the same" in caplog.text
    assert fake.paths().count("/v1/completions") == 1
