"""Watches one server of replicas: its health, its load, and its models."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from gateway.core.sample import Proof, Sample
from gateway.fleet.fault import Failed, ReadFault
from gateway.fleet.fetch import Fetcher
from gateway.fleet.metrics_text import read_page, scrapes
from gateway.fleet.models_json import ModelCard, names_of, read_models
from gateway.fleet.readings import MAX_PAUSE_S, Readings
from gateway.fleet.target import Reading, ReplicaReport, Target, Tools
from gateway.fleet.warm import warm_up

log = logging.getLogger("tailgate.fleet")

_METRICS_LIMIT_BYTES = 4 * 1024 * 1024
_MODELS_LIMIT_BYTES = 1024 * 1024
_SLEEP_LIMIT_BYTES = 4096
_NOT_FOUND = 404

SHOWN: Final = 5
"""At most this many models are named in a log line."""
# Every pause takes a random 90-110 % of its interval, so that replicas are not all polled at the same time.
_JITTER = 0.1
_NO_CONNECTION: Final = frozenset({ReadFault.UNREACHABLE, ReadFault.BROKEN})


class ReplicaWatch:
    """Watches one server in three loops. Each loop has its own connection, so a slow page never delays a health check.

    A vLLM that drains after SIGTERM still answers 200 on /health, but refuses new requests with a 500. So the answers
    to requests show a drain, not the health check.
    """

    def __init__(self, target: Target, tools: Tools, *, is_cold: bool = False) -> None:
        """`is_cold`: whether the replica is new, so that it has served no request yet."""
        self.target = target
        self._tools = tools
        self._is_cold = is_cold
        self._healthy: bool | None = None
        self.checked = asyncio.Event()
        """Set after the first health check."""
        self._models_due = asyncio.Event()
        self._ranks_told: int | None = None
        """Number of data-parallel ranks on the last metrics page; None if unknown."""
        self._had_adapters = False
        """Whether the last list of models had LoRA adapters."""
        self.is_list_old = True
        """Whether no list has been read, or a connection was lost or refused since. Another process may answer now."""
        self._losses = 0
        """How often a connection was lost or refused."""
        self._names: frozenset[str] | None = None
        """Names that the server takes, by its last list; None if they are unknown."""
        self._awaiting: list[asyncio.Future[None]] = []
        """Calls that wait for the next list."""
        self._last_list: frozenset[str] | None = None
        """Models of the last list; None if none has been read."""
        self._listed: frozenset[str] = frozenset()
        """Models of the last list, if requests may name them."""
        self._unlisted: frozenset[str] = frozenset()
        """Models of the policy that the last list did not have."""
        self._readings = Readings(target)
        self.is_asleep = False
        """Whether the engine said at the last health check that it sleeps: vLLM answers those then, and no requests."""

    def reports(self) -> list[ReplicaReport]:
        """Health and the last reading errors, one report for each data-parallel rank."""
        return [
            ReplicaReport(
                spec.name,
                spec.url,
                self.target.pool,
                self._healthy,
                {reading: str(failed) for reading, failed in self._readings.errors.items()},
                dict(self._readings.failures),
            )
            for spec in self.target.replicas
        ]

    def retarget(self, target: Target) -> None:
        """Go on under a new policy, with equal settings for the watch. The last list of models is compared with the
        names in this policy now, because the next list may come only after half a minute of 404s.
        """
        self.target = target
        if self._last_list is not None:
            self._compare(self._last_list)

    def lost(self) -> None:
        """A connection to the server was lost or refused. Its list is read again before it gets another request."""
        self._losses += 1
        if self._last_list is not None:
            self.is_list_old = True
            self._models_due.set()

    async def fresh_list(self) -> frozenset[str] | None:
        """Names that the server takes, read again if the last list is old; None if they are unknown."""
        if self.is_list_old:
            read: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._awaiting.append(read)
            self._models_due.set()
            await asyncio.wait((read,), timeout=self.target.health.timeout_s)
        return self._names

    async def run(self, delay_s: float) -> None:
        """Watch until cancelled, from `delay_s` seconds from now on."""
        await self._tools.pause(delay_s)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch_health())
            group.create_task(self._watch_models())
            group.create_task(self._call_for_models())
            if scrapes(self.target.engine):
                group.create_task(self._watch_metrics())

    async def _watch_health(self) -> None:
        health = self.target.health
        fetcher = self._fetcher(self.target.check_path, None)
        try:
            while True:
                await self._read(Reading.HEALTH, self._check_health, fetcher)
                await self._sleep(health.interval_s * self._tools.stretch())
        finally:
            fetcher.close()

    async def _ask_whether_asleep(self) -> bool | Failed:
        """Ask vLLM. A server without sleep mode (VLLM_SERVER_DEV_MODE) answers 404: it is awake. After any other
        failure nobody knows, so the health check has failed: an engine that sleeps would answer no request.
        """
        fetcher = self._fetcher("/is_sleeping", _SLEEP_LIMIT_BYTES)
        try:
            answer = await fetcher.get()
        finally:
            fetcher.close()
        if isinstance(answer, Failed):
            why = f"GET /is_sleeping, because of hold.wake.sleeping: {answer.detail}"
            return False if answer.status == _NOT_FOUND else Failed(answer.fault, why, answer.status)
        said = b"".join(answer.split())
        if b'"is_sleeping":true' in said or b'"is_sleeping":false' in said:
            return b'"is_sleeping":true' in said
        return Failed(ReadFault.GARBAGE, "GET /is_sleeping, because of hold.wake.sleeping: it says neither yes nor no")

    async def _check_health(self, fetcher: Fetcher) -> None:
        asked_at, losses = self._tools.clock(), fetcher.losses
        answer = await fetcher.get()
        if fetcher.losses > losses:
            self.lost()
        healthy, asleep = self.target.is_life(answer), False
        if healthy and self.target.may_sleep:
            said = await self._ask_whether_asleep()
            if isinstance(said, Failed):
                healthy, answer = False, said
            else:
                asleep = said
        self.is_asleep = asleep
        self._readings.note(Reading.HEALTH, answer if isinstance(answer, Failed) and not healthy else None)
        if asleep:
            for _ in range(self.target.health.failures):  # certain at once
                self._judge(False, asked_at, False, error="it sleeps (vLLM's sleep mode)")
            return
        if healthy and self.is_list_old and self._last_list is not None:
            await self.fresh_list()
        if healthy and (self._is_cold or self._healthy is False) and self.target.health.warmup:
            await self._warm_up()
        if healthy:
            self._judge(True, asked_at, False)
            await self._prove()
        else:
            late = isinstance(answer, Failed) and answer.fault is ReadFault.TIMEOUT
            self._judge(False, asked_at, late, error=str(answer))

    async def _prove(self) -> None:
        """Probe a server that gets no requests, or only single ones: nobody else may come to show that it serves. It
        must list its models, and answer a completion of one token if the policy allows completions of our own.
        """
        if not any(self._tools.is_out(spec.name) for spec in self.target.replicas):
            return
        asked_at, target = self._tools.clock(), self.target
        times = min(1, target.health.warmup)
        ranks = [spec.dp_rank for spec in target.replicas]
        if await warm_up(target.url, target.access, times, ranks, target.health.timeout_s) is None:
            self._judge(True, asked_at, False, Proof.COMPLETED if times else Proof.LISTED)

    def _judge(self, healthy: bool, asked_at: float, late: bool, proof: Proof = Proof.NONE, error: str = "") -> None:
        """Report the result of a health check. After the first check, and after every recovery, the models are read."""
        before, self._healthy = self._healthy, healthy
        self.checked.set()
        self._is_cold = self._is_cold and not healthy
        if before is None or (healthy and not before):
            self._models_due.set()
        for spec in self.target.replicas:
            # A rank that the engine does not have counts as unhealthy. The engine would answer requests to it with 400,
            # as if it were the client's fault.
            there = spec.dp_rank is None or self._ranks_told is None or spec.dp_rank < self._ranks_told
            text = error if there else "the engine has no such data-parallel rank"
            sample = Sample(healthy=healthy and there, late=late, error=text, proof=proof, asked_at=asked_at)
            self._tools.on_sample(spec.name, sample)

    async def _warm_up(self) -> None:
        """Warm the replica up before it is reported healthy."""
        target = self.target
        ranks = [spec.dp_rank for spec in target.replicas]
        health = target.health
        tokens = health.warmup_prompt_tokens
        failed = await warm_up(target.url, target.access, health.warmup, ranks, prompt_tokens=tokens)
        if failed is None:
            log.info("replica %s: is warmed up", target.name)
        else:
            log.warning(
                "replica %s: could not be warmed up: %s; it serves all the same, its first requests may be slow",
                target.name,
                failed,
            )

    async def _watch_metrics(self) -> None:
        health = self.target.health
        fetcher = self._fetcher(health.metrics_path, _METRICS_LIMIT_BYTES, MAX_PAUSE_S)
        try:
            while True:
                await self._read(Reading.METRICS, self._scrape, fetcher)
                interval_s = health.scrape_interval_s * self._tools.stretch()
                await self._sleep(self._readings.interval_s(Reading.METRICS, interval_s))
        finally:
            fetcher.close()

    async def _scrape(self, fetcher: Fetcher) -> None:
        page = await fetcher.get()
        target = self.target
        ranks = page if isinstance(page, Failed) else read_page(target.engine, page, by_rank=target.by_rank)
        if isinstance(ranks, Failed):
            self._readings.note(Reading.METRICS, ranks)
            return
        self._ranks_told, written = len(ranks), len(target.replicas)
        other = f"it has {len(ranks)} data-parallel ranks, and the policy says dp: {written}"
        self._readings.note(Reading.METRICS, None if len(ranks) == written else Failed(ReadFault.GARBAGE, other))
        for spec, scraped in zip(target.replicas, ranks, strict=False):
            self._tools.times.scraped(spec.name, scraped.times, self._tools.clock())
            self._tools.on_sample(spec.name, scraped.sample)

    async def _watch_models(self) -> None:
        fetcher = self._fetcher("/v1/models", _MODELS_LIMIT_BYTES, MAX_PAUSE_S)
        try:
            while True:
                await self._models_due.wait()
                self._models_due.clear()
                awaiting, self._awaiting = self._awaiting, []
                await self._read(Reading.MODELS, self._list_models, fetcher)
                _resolve(awaiting)
                if not fetcher.is_waiting:
                    # The connection is not kept. After half a minute, the replica would mostly have closed it.
                    fetcher.close()
        finally:
            _resolve(self._awaiting)
            fetcher.close()

    async def _list_models(self, fetcher: Fetcher) -> None:
        losses = self._losses
        answer = await fetcher.get()
        cards = answer if isinstance(answer, Failed) else read_models(answer)
        if losses == self._losses and not (isinstance(cards, Failed) and cards.fault in _NO_CONNECTION):
            self.is_list_old = False
        if isinstance(cards, Failed):
            self._readings.note(Reading.MODELS, cards)
        else:
            self._readings.note(Reading.MODELS, None)
            self._tell_models(cards)

    def _tell_models(self, cards: tuple[ModelCard, ...]) -> None:
        """Pass on a list of models."""
        self._last_list = frozenset(card.id for card in cards)
        self._names = names_of(cards) or None
        self._compare(self._last_list)
        lengths = [card.max_model_len for card in cards if card.max_model_len is not None]
        adapters = tuple(card.id for card in cards if card.parent is not None)
        told = adapters if adapters or self._had_adapters else None
        self._had_adapters = bool(adapters)
        sample = Sample(
            context_tokens=min(lengths, default=None),
            longest_tokens=max(lengths, default=None) if len(lengths) == len(cards) else None,
            models=tuple(sorted(self._names or ())),
            adapters=told,
        )
        for spec in self.target.replicas:
            self._tools.board.put(spec.name, cards)
            self._tools.on_sample(spec.name, sample)

    def _compare(self, listed: frozenset[str]) -> None:
        """Log once which models of the policy a replica does not list: most engines answer 404 to requests for them. If
        only a catch-all uses the replica, log which models a request may name.
        """
        target, unlisted = self.target, self.target.models - listed
        may_be_named = listed if target.takes_any else frozenset()  # a reload may change whether they may
        if may_be_named and may_be_named != self._listed:
            log.info("replica %s serves %s: requests say one of these as `model`", target.name, _some(listed))
        self._listed = may_be_named
        if unlisted and unlisted != self._unlisted:
            log.warning(
                "replica %s: it does not list %s, which the policy asks it for; it lists %s: check models.*.upstream "
                "and the engine's --served-model-name",
                target.name,
                _some(unlisted),
                _some(listed),
            )
        elif self._unlisted and not unlisted:
            log.info("replica %s: it lists all models that the policy asks it for", target.name)
        self._unlisted = unlisted

    async def _read(self, reading: Reading, read: Callable[[Fetcher], Awaitable[None]], fetcher: Fetcher) -> None:
        """Do one reading. If `read` raises an exception (a bug), the reading fails without a report on the replica."""
        try:
            await read(fetcher)
        except Exception as error:  # noqa: BLE001 - a task that ends with an exception would end the process
            self._tools.on_bug(error)
            self._readings.note(reading, Failed(ReadFault.GARBAGE, f"a bug of the gateway: {type(error).__name__}"))

    async def _call_for_models(self) -> None:
        while True:
            await self._sleep(self._tools.models_interval_s)
            self._models_due.set()

    def _fetcher(self, path: str, limit_bytes: int | None, patience_s: float = 0.0) -> Fetcher:
        target = self.target
        return Fetcher(
            target.url + path,
            access=target.access,
            timeout_s=target.health.timeout_s,
            limit_bytes=limit_bytes,
            patience_s=patience_s,
        )

    async def _sleep(self, interval_s: float) -> None:
        await self._tools.pause(interval_s * (1 + _JITTER * (2 * self._tools.random.random() - 1)))


def _resolve(calls: list[asyncio.Future[None]]) -> None:
    for call in calls:
        if not call.done():
            call.set_result(None)


def _some(names: frozenset[str]) -> str:
    """The first names in order, and how many more there are."""
    shown = ", ".join(sorted(names)[:SHOWN])
    return shown if len(names) <= SHOWN else f"{shown} and {len(names) - SHOWN} more"
