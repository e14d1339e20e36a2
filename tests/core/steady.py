"""A pool with round robin under traffic at a steady rate, for tests of ejection."""

import math
from collections import Counter
from random import Random
from typing import Any

from gateway.core.commands import Dispatch
from gateway.core.policy import Policy
from gateway.core.pool_spec import Ejection, Health
from gateway.core.snapshot import ReplicaState

from .made import policy, pool
from .playbook import Story, play


def fleet(replicas: int, *tiers: Any, slots: int = 8, slow_start_s: float = 0.0, **ejection: Any) -> Policy:
    """A pool of this many replicas with round robin."""
    health = Health(failures=3, open_s=5.0, slow_start_s=slow_start_s, ejection=Ejection(**ejection))
    names = [f"r{n}" for n in range(1, replicas + 1)]
    return policy(pool("p", *names, slots=slots, router="round-robin", health=health), *tiers)


class Traffic:
    """Requests at a steady rate; each replica has its own answer time."""

    def __init__(self, story: Story, *, per_s: float, ttft_s: float = 0.1, spread: float = 0.1, **how: Any) -> None:
        self.story = story
        self.per_s = per_s
        self.ttft_s = ttft_s
        self.spread = spread
        self.times: dict[str, float] = {}
        """Replicas that take so many times as long; inf: never answer."""
        self.sent: list[tuple[float, str]] = []
        self.how = how
        self._random = Random(1)
        self._due: list[tuple[float, str]] = []
        self._next_at = story.now

    def until(self, time_s: float) -> Story:
        """Run until then."""
        story = self.story
        while True:
            due = min(self._due, default=(math.inf, ""))
            at = min(due[0], self._next_at)
            if at > time_s:
                return story.at(time_s)
            story.at(at)
            if due[0] <= self._next_at:
                self._due.remove(due)
                self._hear(story.whatever().first_token(due[1]).finishes(due[1], output_tokens=1))
            else:
                self._next_at += 1.0 / self.per_s
                self._hear(story.whatever().arrives(f"q{len(story.ids) + 1}", **self.how))

    def _hear(self, story: Story) -> None:
        for command in story.commands:
            if isinstance(command, Dispatch):
                name = f"q{command.request_id}"
                times = self.times.get(command.replica, 1.0)
                self.sent.append((story.now, command.replica))
                story.sent(name)
                if times < math.inf:
                    took_s = self.ttft_s * times * math.exp(self._random.gauss(0.0, self.spread))
                    self._due.append((story.now + took_s, name))

    def hang(self, name: str) -> None:
        """The request never gets an answer."""
        self._due = [due for due in self._due if due[1] != name]

    def stop(self) -> None:
        """Nothing more arrives."""
        self._next_at = math.inf

    def until_out(self, replica: str) -> float:
        """Run until the replica is ejected. Returns that time."""
        for _ in range(60):
            if state(self.story, replica) is ReplicaState.EJECTED:
                return self.story.now
            self.until(self.story.now + 1.0)
        raise AssertionError(f"{replica} is not ejected")

    def share(self, replica: str, since: float, until: float = math.inf) -> float:
        """All requests that were sent."""
        counts = Counter(name for at, name in self.sent if since <= at < until)
        return counts[replica] / max(1, sum(counts.values()))


def out_of_six(per_s: float) -> tuple[Story, Traffic, float]:
    """Six replicas with a slow r3, run until r3 is ejected. Returns that time. Nothing arrives since."""
    story = play(fleet(6))
    traffic = Traffic(story, per_s=per_s)
    traffic.times["r3"] = 3.0
    out_at = traffic.until_out("r3")
    traffic.stop()
    return story, traffic, out_at


def state(story: Story, replica: str) -> ReplicaState:
    return story.replica(replica).state
