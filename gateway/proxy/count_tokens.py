"""`POST /v1/messages/count_tokens`: the length of a prompt, without running it.

Claude Code asks for dozens of counts when it starts. So a count takes no slot, uses up no request or token of a tenant,
and is never refused for load. Counts have limits of their own: as many a minute, and as many at a time, as the tier
allows requests. Engines are asked for only a few counts at a time. Further counts are estimated by the gateway.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

import orjson

from gateway.core.policy import Model, Policy, Tier
from gateway.core.pool_spec import PoolSpec
from gateway.core.queueing.limits import LimitExceeded, Tenants, TenantUse
from gateway.core.results import Callback, CountSource, Reason
from gateway.core.serving import arm_of
from gateway.core.sessions import Session
from gateway.proxy.client_writer import AnswerUnderWay
from gateway.proxy.driver import Driver
from gateway.wire.body.pictures import PictureTokens
from gateway.wire.body.placeholders import Placeholders
from gateway.wire.errors.replies import Problem
from gateway.wire.http.headers import PROCESS, RequestHead
from gateway.wire.parsed import Parsed
from gateway.wire.render import render
from gateway.wire.request import BadRequest, bad_request, parse_counted
from gateway.wire.session import session_of, sticky_key

MAX_ASKED: Final = 64
"""Engines are asked for at most this many counts at a time, over all tenants."""
MAX_ASKED_OF_ONE: Final = 8
"""Engines are asked for at most this many counts of one tenant at a time."""

EngineCounter = Callable[[Sequence[PoolSpec], str, bytes, bytes, Session | None], Awaitable[int | None]]
"""A function of pools, model name, body, request id and session that returns the tokens; None if no replica answers."""


async def ask_nobody(
    pools: Sequence[PoolSpec], model: str, body: bytes, rid: bytes, session: Session | None
) -> int | None:
    """An `EngineCounter` that asks no engine."""
    return None


class CountClient(Protocol):
    """The connection of the client that asks for a count."""

    def counted(self, body: bytes, rid: bytes) -> None:
        """Send the answer `body`, with the request id `rid`."""

    def broke(self, callback: Callback, error: Exception) -> None:
        """Report that a callback of the gateway raised an exception while it handled this count."""


@dataclass(frozen=True, slots=True)
class CountAsker:
    """The client that asks for a count, with its tenant and the head of its request."""

    client: CountClient
    tenant: str
    head: RequestHead

    @property
    def rid(self) -> bytes:
        """The id of the request."""
        return self.head.request_id.encode()


class CountUnderWay(AnswerUnderWay):
    """A count under way. The connection holds it in place of an `Exchange`."""

    __slots__ = ("_task",)

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task

    def leave(self, why: Reason) -> None:
        """Cancel the count, because the client has left."""
        self._task.cancel()


class CountingEndpoint:
    """Answers requests to count the tokens of a prompt."""

    def __init__(
        self,
        driver: Driver,
        find: Callable[[str, Tier], tuple[Model | None, str]],
        only_model: Callable[[Tier], str],
        told: Callable[[CountSource], None],
        pictures: PictureTokens,
        ask_engine: EngineCounter,
    ) -> None:
        """`find`: returns the model that serves a name, and the LoRA adapter of that name. `only_model`: returns the
        name of the only model that a tier may use, or raises BadRequest. `told`: called with the source of each count.
        """
        self._driver = driver
        self._find = find
        self._only_model = only_model
        self._told = told
        self._pictures = pictures
        self._asked: Counter[str] = Counter()
        self._limits = Tenants(has_quotas=False)
        self._ids = 0
        self.ask_engine = ask_engine

    def configure(self, policy: Policy, now: float) -> None:
        """Apply the limits of a policy. Use so far stays counted."""
        self._limits.configure(policy.tiers, now)

    def exceeded(self, tenant: str, tier: Tier, now: float) -> LimitExceeded | None:
        """The limit that one more count of the tenant would exceed; None if there is none."""
        return self._limits.check(tenant, tier, 0, now)

    def start(self, asker: CountAsker, policy: Policy, tier: Tier, body: bytes) -> CountUnderWay | Problem:
        """Start a count, whose answer is sent later, or return why it is refused."""
        exceeded = self.exceeded(asker.tenant, tier, self._driver.clock())
        if exceeded is not None:
            return Problem(exceeded.why, retry_after_s=exceeded.wait_s)
        try:
            parsed = parse_counted(body, tier.caps, policy.max_values)
        except BadRequest as exc:
            return bad_request(exc)
        return self.place(asker, policy, tier, parsed)

    def place(self, asker: CountAsker, policy: Policy, tier: Tier, parsed: Parsed) -> CountUnderWay | Problem:
        """Start the count of a parsed body, or return why it is refused."""
        now = self._driver.clock()
        use = self._limits.of(asker.tenant, tier, now)
        exceeded = use.check(0, now)
        if exceeded is not None:
            return Problem(exceeded.why, retry_after_s=exceeded.wait_s)
        try:
            if not parsed.model:
                parsed.model = self._only_model(tier)
        except BadRequest as exc:
            return bad_request(exc)
        model, _ = self._find(parsed.model, tier)
        if model is None:
            return Problem(Reason.MODEL_NOT_FOUND, f"The model `{parsed.model[:100]}` does not exist.", param="model")
        session = session_of(asker.head, asker.tenant, parsed.fields, [policy.pools[pool] for pool in model.pools])
        if model.split:
            model = arm_of(policy, model, tier, sticky_key(session, asker.tenant, asker.head.request_id))
        pools = policy.route(model, tier)
        if not pools:
            return Problem(Reason.FORBIDDEN_MODEL)
        task = asyncio.get_running_loop().create_task(self._answer(asker, pools, parsed, model, session))
        use.take(0, now)
        task.add_done_callback(partial(self._settle, use))
        return CountUnderWay(task)

    def _settle(self, use: TenantUse, _: asyncio.Task[None]) -> None:
        use.settle(0, 0, True, self._driver.clock())

    async def _answer(
        self, asker: CountAsker, pools: Sequence[PoolSpec], parsed: Parsed, model: Model, session: Session | None
    ) -> None:
        try:
            source = CountSource.ENGINE
            tokens = await self._asked_of_engine(asker, pools, parsed, model, session)
            if tokens is None:
                source, tokens = CountSource.ESTIMATE, await self._estimated(parsed, model)
            self._told(source)
            asker.client.counted(orjson.dumps({"input_tokens": tokens}), asker.rid)
        except Exception as error:  # noqa: BLE001 - a bug costs this count
            asker.client.broke(Callback.CLIENT, error)

    async def _asked_of_engine(
        self, asker: CountAsker, pools: Sequence[PoolSpec], parsed: Parsed, model: Model, session: Session | None
    ) -> int | None:
        """The engine's count; None if no engine gives one, or if too many counts are under way."""
        asked, tenant = self._asked, asker.tenant
        if asked[tenant] >= MAX_ASKED_OF_ONE or asked.total() >= MAX_ASKED:
            return None
        asked[tenant] += 1
        try:
            self._ids += 1
            rid = b"%b-%bc%x" % (asker.rid, PROCESS, self._ids)
            name = model.sent_as(parsed.model)
            return await self.ask_engine(pools, name, render(parsed, name, 0), rid, session)
        except Exception as error:  # noqa: BLE001 - it can be counted without an engine
            self._driver.supervisor.caught(Callback.WATCH, error)
            return None
        finally:
            asked[tenant] -= 1
            if not asked[tenant]:
                del asked[tenant]

    async def _estimated(self, parsed: Parsed, model: Model) -> int:
        """The gateway's own count: exact for token ids, else by the learned ratio of tokens to bytes."""
        if parsed.prompt_exact is not None:
            return parsed.prompt_exact
        # This is the high estimate. With a low estimate, clients would send prompts that do not fit.
        name = parsed.model if model.any_name else model.name
        size = parsed.prompt_bytes + Placeholders(parsed.fields, self._pictures.factor(name)).correction
        return await self._driver.estimate(name, size)
