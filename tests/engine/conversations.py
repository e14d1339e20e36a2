"""Conversations with one system prompt, sent to an engine turn by turn, and the cached tokens that it reports."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from random import Random

import httpx

CONVERSATIONS = 12
TURNS = 5
ANSWER_TOKENS = 48


@dataclass(frozen=True, slots=True)
class CacheCounters:
    """`vllm:prefix_cache_queries_total` and `_hits_total`."""

    queries: float
    hits: float

    @property
    def hit_rate(self) -> float:
        """Share (0-1) of the tokens that were cached."""
        return self.hits / self.queries

    def since(self, before: CacheCounters) -> CacheCounters:
        """The tokens counted after `before`."""
        return CacheCounters(self.queries - before.queries, self.hits - before.hits)


async def counters(client: httpx.AsyncClient) -> CacheCounters:
    """The counters of an engine, now."""
    page = (await client.get("/metrics")).text
    queries, hits = (total(page, f"vllm:prefix_cache_{name}_total") for name in ("queries", "hits"))
    return CacheCounters(queries, hits)


def total(page: str, name: str) -> float:
    """The sum over a metric's series."""
    return sum(map(float, re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", page, re.MULTILINE)))


def label(page: str, metric: str, name: str) -> str:
    """The value of one label of a metric. Raises LookupError if the page does not have it."""
    found = re.search(rf'^{metric}{{[^}}]*\b{name}="([^"]*)"', page, re.MULTILINE)
    if found is None:
        raise LookupError(f"{metric} has no label {name}")
    return found[1]


@dataclass(slots=True)
class TokenTalk:
    """A conversation in token ids: prompts and answers are the same at every engine, whatever it generates."""

    number: int
    seed: str
    ids: list[int] = field(default_factory=list)

    def next_turn(self, turn: int) -> list[int]:
        """The prompt of the next turn: all earlier turns, and 100 to 300 new tokens."""
        draw = Random(f"{self.seed} {self.number} {turn}")
        if not self.ids:
            self.ids = Random(f"{self.seed} system").choices(range(300, 1000), k=600)
        else:
            self.ids += draw.choices(range(300, 1000), k=ANSWER_TOKENS)
        self.ids += draw.choices(range(300, 1000), k=draw.randrange(100, 300))
        return list(self.ids)


async def talk_tokens(client: httpx.AsyncClient, model: str, talk: TokenTalk) -> None:
    """All turns of one conversation, each after the answer to the one before."""
    for turn in range(TURNS):
        ask = {"model": model, "prompt": talk.next_turn(turn), "max_tokens": ANSWER_TOKENS, "ignore_eos": True}
        (await client.post("/v1/completions", json=ask)).raise_for_status()


async def cached_of_tokens(client: httpx.AsyncClient, model: str, seed: str) -> list[int]:
    """Cached tokens of each prompt. Prompts are sent one at a time, the first turn of all conversations first."""
    talks = [TokenTalk(number, seed) for number in range(CONVERSATIONS)]
    found = []
    for turn in range(TURNS):
        for talk in talks:
            ask = {"model": model, "prompt": talk.next_turn(turn), "max_tokens": 8, "ignore_eos": True}
            answer = await client.post("/v1/completions", json=ask)
            answer.raise_for_status()
            details = answer.json()["usage"]["prompt_tokens_details"] or {}
            found.append(int(details.get("cached_tokens") or 0))
    return found


SYSTEM = "You answer questions about the sea, the wind and the ships, and about those who sail them. Be brief. " * 12
WORDS = ("sea", "wind", "ship", "sail", "rope", "tide", "storm", "harbour", "captain", "island", "anchor", "mast")


@dataclass(slots=True)
class TextTalk:
    """A conversation of messages, with the answers that the engine gave."""

    number: int
    seed: str
    messages: list[dict[str, str]] = field(default_factory=list)

    def ask(self, turn: int) -> None:
        """Say something new, of 60 to 120 words."""
        draw = Random(f"{self.seed} {self.number} {turn}")
        if not self.messages:
            self.messages = [{"role": "system", "content": f"{self.seed}. {SYSTEM}"}]
        words = " ".join(draw.choices(WORDS, k=draw.randrange(60, 120)))
        self.messages.append({"role": "user", "content": f"{self.number}, {turn}: {words}?"})


async def talk_text(client: httpx.AsyncClient, model: str, talk: TextTalk) -> None:
    """All turns of one conversation, each after the answer to the one before."""
    for turn in range(TURNS):
        talk.ask(turn)
        ask = {"model": model, "messages": talk.messages, "max_tokens": ANSWER_TOKENS, "ignore_eos": True}
        answer = await client.post("/v1/chat/completions", json=ask)
        answer.raise_for_status()
        said = answer.json()["choices"][0]["message"]["content"]
        talk.messages.append({"role": "assistant", "content": said})
