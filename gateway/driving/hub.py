"""The decider's end of all relays: tells them what is new, and answers what they ask."""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import Sequence
from typing import cast

from gateway.core.estimators.histograms import edge_of
from gateway.core.policy import Policy
from gateway.core.queueing.limits import LimitExceeded
from gateway.core.request import Request
from gateway.core.results import Callback, CountSource, MirrorResult, Reason
from gateway.core.sample import LimitLease
from gateway.core.snapshot import ReplicaState
from gateway.driving import frames
from gateway.driving.channel import Frame
from gateway.driving.local_driver import LocalDriver
from gateway.driving.policy_bytes import to_bytes
from gateway.driving.relay_link import FrameClock, RelayLink, RelayLoad, RelayOwner
from gateway.observe.metrics.metrics import Metrics
from gateway.proxy.replica.upstream import ModelLists
from gateway.proxy.stored_responses import StoredResponses
from gateway.wire.answers.oddity import Oddity


class RelayHub(RelayOwner):
    """All relays of a decider."""

    def __init__(
        self,
        driver: LocalDriver,
        metrics: Metrics,
        clock: FrameClock,
        lists: ModelLists,
        responses: StoredResponses,
        policy: Policy,
    ) -> None:
        self.links: dict[int, RelayLink] = {}
        """By number of the relay."""
        self._driver = driver
        self._metrics = metrics
        self._clock = clock
        self._lists = lists
        self._responses = responses
        self._policy = policy
        self._facts: Frame = ()
        self._cards: dict[str, Frame] = {}
        """Models of each replica, as rows."""
        self._limited: set[tuple[str, str]] = set()
        """(tenant, tier) that relays were told to refuse, since their last leases or the last policy."""
        self.held_s: dict[str, float] = {}
        """By pool, the seconds for which requests were held, by the count of the connections of all relays. It goes on
        when a relay ends, and begins anew with each decider.
        """
        self._tasks: set[asyncio.Task[None]] = set()

    async def connect(self, number: int, sock: socket.socket) -> None:
        """Begin to serve a relay at the other end of `sock`."""
        loop = asyncio.get_running_loop()
        link = self.links[number] = RelayLink(number, loop, self._driver, self._clock, self, self._policy)
        self._tell_policy(link)
        self.sweep(self._driver.controller.states(), self._clock.read())
        link.tell(self._facts)
        for replica, cards in self._cards.items():
            link.tell((frames.CARDS, replica, cards))
        for row in self._responses.rows():
            link.tell((frames.STORED, row))
        await loop.create_unix_connection(lambda: link.channel, sock=sock)

    def configure(self, policy: Policy) -> None:
        """Tell relays a policy. They have it before the first command that needs it."""
        self._policy = policy
        for link in self.links.values():
            link.configure(policy)
            self._tell_policy(link)
        self._lift(self._limited)  # it may allow more

    def _tell_policy(self, link: RelayLink) -> None:
        link.tell((frames.POLICY, to_bytes(self._policy), self._metrics.itl_edges))

    def listed(self, replica: str, cards: Frame | None) -> None:
        """A replica's list of models was read; None: the replica is gone."""
        if cards is not None:
            self._cards[replica] = cards
        elif replica in self._cards:
            del self._cards[replica]
        self._tell_all((frames.CARDS, replica, cards))

    def sweep(self, states: list[tuple[str, str, ReplicaState, str]], now: float) -> None:
        """Tell relays what has changed in the fleet. `states`: those of `Controller.states`."""
        controller = self._driver.controller
        unfit = [name for _, name, state, _ in states if state is not ReplicaState.UP]
        restarts = {name: count for _, name, _, _ in states if (count := controller.restarts(name))}
        facts = (frames.FACTS, controller.alive(), controller.suspects(now), unfit, restarts)
        if facts != self._facts:
            self._facts = facts
            self._tell_all(facts)

    def _tell_all(self, frame: Frame, but: RelayLink | None = None) -> None:
        for link in self.links.values():
            if link is not but:
                link.tell(frame)

    def loads(self) -> list[RelayLoad]:
        """How busy each relay is, in the order of their numbers."""
        return [link.load for _, link in sorted(self.links.items())]

    def close(self) -> None:
        """Close all channels."""
        for link in list(self.links.values()):
            link.channel.close()

    # ---- from the links

    def met_limit(self, request: Request, exceeded: LimitExceeded) -> None:
        """The tenant of a request is beyond a limit: relays refuse by it with the head alone."""
        key = request.tenant, request.tier.name
        if exceeded.wait_s == math.inf:
            return  # no request of this size ever fits; a smaller one may
        if exceeded.why is Reason.LIMIT_QUOTA:
            return  # the next day is far, and tokens that a request has reserved may be back long before
        if exceeded.why is Reason.LIMIT_CONCURRENCY:
            return  # it ends with any request of the tenant
        self._limited.add(key)
        self._tell_all((frames.LIMITED, *key, exceeded.why.value, self._clock.read() + exceeded.wait_s))

    def leased(self, leases: Sequence[LimitLease]) -> None:
        """Limits have new leases, so that relays cannot know which requests exceed them."""
        self._lift({(lease.tenant, lease.tier) for lease in leases} & self._limited)

    def _lift(self, keys: set[tuple[str, str]]) -> None:
        """Relays ask again about requests of these tenants."""
        for key in keys:
            self._tell_all((frames.LIMITED, *key, Reason.LIMIT_REQUESTS.value, 0.0))
        self._limited -= keys

    def lost(self, link: RelayLink) -> None:
        """The relay is gone. Its requests have left."""
        if self.links.get(link.number) is link:
            del self.links[link.number]

    def told(self, link: RelayLink, frame: list[object]) -> None:
        """The relay told something that is not about a request under way."""
        kind = cast(int, frame[0])
        if kind == frames.METER:
            self._count(frame)
        elif kind == frames.GAPS:
            histogram = self._metrics.gaps(cast(str, frame[1]), cast(str, frame[2]))
            for edge_s, count in zip(cast("list[float]", frame[3]), cast("list[float]", frame[4]), strict=True):
                histogram.counts[edge_of(histogram.edges, edge_s)] += count
            histogram.sum += cast(float, frame[5])
        elif kind == frames.LOADS:
            before = link.load.held_s
            link.load.told(frame, self._clock.read())
            for pool, seconds in link.load.held_s.items():
                self.held_s[pool] = self.held_s.get(pool, 0.0) + seconds - before.get(pool, seconds)
        elif kind == frames.LOST:
            self._lists.lost(cast(str, frame[1]))
        elif kind == frames.STORED:
            row = cast("list[object]", frame[1])
            self._responses.add(row)
            self._tell_all((frames.STORED, row), but=link)
        else:
            assert kind == frames.ASK
            task = asyncio.get_running_loop().create_task(self._answer(link, frame))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, link: RelayLink, frame: list[object]) -> None:
        answer: object = None
        try:
            if frame[2] == "models":
                names = await self._lists.fresh_list(cast(str, frame[3]))
                answer = None if names is None else list(names)
            elif frame[2] == "position":
                found = self._driver.position(cast(int, frame[3]))
                answer = None if found is None else [found.position, found.wait_s, found.on_hold]
            else:
                assert frame[2] == "tokens"
                answer = await self._driver.estimate(cast(str, frame[3]), cast(int, frame[4]))
        except Exception as error:  # noqa: BLE001 - a bug costs this answer
            self._driver.supervisor.caught(Callback.WATCH, error)
        if not link.is_gone:
            link.tell((frames.ANSWER, frame[1], answer))

    def _count(self, frame: list[object]) -> None:
        name = cast(str, frame[1])
        if name == "oddity":
            self._metrics.oddity(cast(str, frame[2]), cast(str, frame[3]), Oddity(cast(str, frame[4])))
        elif name == "refused_early":
            self._metrics.refused_early(frames.early_of(cast("list[object]", frame[2])))
        elif name == "token_count":
            self._metrics.token_count(CountSource(cast(str, frame[2])))
        elif name == "copied":
            self._metrics.copied(cast(str, frame[2]), cast(str, frame[3]), MirrorResult(cast(str, frame[4])))
        else:
            assert name == "bug"
            self._metrics.bug(Callback(cast(str, frame[2])))
