"""Remembers which responses engines have stored: their tenants, replicas and lengths.

An engine stores a response, with the conversation before it, in its own memory, under a random id. Only this engine can
continue the response. So each id that is forwarded to a client is remembered here, with its replica, its size and its
tenant. A request that continues an unknown id is not forwarded, because the length of its prompt would be unknown.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, cast

import orjson

from gateway.core.fleet.prefix_cache.cache_evidence import BYTES_PER_TOKEN
from gateway.core.policy import Model, Policy, Tier
from gateway.core.request import NO_PREFIX, Endpoint, Prefix, Request
from gateway.core.results import Outcome, Record
from gateway.core.sessions import StoredResponse
from gateway.wire.body.checks import MAX_ID_CHARS
from gateway.wire.parsed import Parsed
from gateway.wire.prefix import first_of, prefix_after

PREVIOUS: Final = "previous_response_id"
MAX_AGE_S: Final = 24 * 3600.0
MAX_BYTES: Final = 64 * 2**20
"""Limit on the estimated memory, in bytes. Beyond it, the tenant that holds most loses its oldest responses."""
ENTRY_BYTES: Final = 1000
BLOCK_BYTES: Final = 100


class Continuable:
    """A stored response that can be continued."""

    __slots__ = ("at", "first", "model", "name", "prefix", "restarts", "size_bytes", "stored")

    def __init__(self, name: str, stored: StoredResponse, model: str, first: int, prefix: Prefix) -> None:
        self.name = name
        """Tenant and response id, as one key."""
        self.stored = stored
        self.model = model
        """Name of the model that made the response."""
        self.first = first
        """Hash of the tools and instructions."""
        self.prefix = prefix
        """Prefix of the prompt; its size includes the answer."""
        self.size_bytes = ENTRY_BYTES + BLOCK_BYTES * len(prefix.blocks)
        self.at = 0.0
        """Time when the response was stored. `restarts`: how often its engine had restarted by then."""
        self.restarts = 0

    def serves(self, policy: Policy, asked: Model, tier: Tier) -> Model | None:
        """The model that continues the response for a client that asks for `asked`; None if the response's model does
        not fit.

        The response's model must be the requested one, an arm of its split, or the fallback of the tier.
        """
        if asked.name == self.model or any(arm == self.model for arm, _ in asked.split) or tier.fallback == self.model:
            return policy.models.get(self.model)
        return None

    def prefix_of(self, parsed: Parsed, adapter: str) -> Prefix:
        """The prefix of a request that continues this response."""
        has_first = first_of(parsed.fields, adapter) == self.first
        return prefix_after(self.prefix, parsed.fields, has_first, self.name)


_NONE: Final[OrderedDict[str, Continuable]] = OrderedDict()


class StoredResponses:
    """All remembered responses, limited in memory and in time. A tenant with less than an equal share of the
    memory loses none of them to others.

    `restarts`: returns how often the engine of a replica has restarted; -1 for an unknown replica.
    """

    def __init__(self, restarts: Callable[[str], int]) -> None:
        self._restarts = restarts
        self._known: dict[str, OrderedDict[str, Continuable]] = {}
        """By tenant and id, the oldest first."""
        self._held_bytes: dict[str, int] = {}
        """Estimated memory by tenant."""
        self._bytes = 0
        self.on_kept: Callable[[Sequence[object]], None] | None = None
        """Called with each response that is kept, as a row for `add`."""

    def __len__(self) -> int:
        return sum(map(len, self._known.values()))

    def find(self, tenant: str, response_id: str, now: float) -> Continuable | None:
        """The response with this id; None if this tenant has no such response, or if it is forgotten."""
        found = self._known.get(tenant, _NONE).get(response_id)
        if found is None:
            return None
        if now - found.at > MAX_AGE_S or self._restarts(found.stored.replica) != found.restarts:
            self.forget(tenant, response_id)
            return None
        return found

    def keep(self, record: Record, first: int, raw_id: bytes, now: float) -> None:
        """Remember the answer of a request that ended well. `raw_id`: the id, as JSON."""
        response_id = _read(raw_id)
        if record.outcome is not Outcome.OK or record.replica is None or not response_id:
            return
        request, stored = record.request, record.prompt_tokens + record.output_tokens
        tenant = request.tenant
        name = f"{tenant}\0{response_id}"
        prefix = _with_answer(request.affinity.prefix, record.prompt_tokens, stored)
        new = Continuable(name, StoredResponse(record.replica, stored), request.model.name, first, prefix)
        new.at, new.restarts = now, self._restarts(record.replica)
        self._insert(tenant, response_id, new)
        if self.on_kept is not None:
            self.on_kept(_row(tenant, response_id, new))

    def add(self, row: Sequence[object]) -> None:
        """Remember a response that another process of this gateway kept."""
        tenant, response_id, replica, tokens, model, first, blocks, ends, size, has_media, at, restarts = row
        prefix = Prefix(
            tuple(cast("Sequence[int]", blocks)),
            tuple(cast("Sequence[int]", ends)),
            cast(int, size),
            cast(bool, has_media),
        )
        stored = StoredResponse(cast(str, replica), cast(int, tokens))
        name = f"{tenant}\0{response_id}"
        new = Continuable(name, stored, cast(str, model), cast(int, first), prefix)
        new.at, new.restarts = cast(float, at), cast(int, restarts)
        self._insert(cast(str, tenant), cast(str, response_id), new)

    def rows(self) -> Iterator[Sequence[object]]:
        """All responses, for `add` of another process."""
        for tenant, known in self._known.items():
            for response_id, each in known.items():
                yield _row(tenant, response_id, each)

    def memory(self, now: float) -> Iterator[Sequence[object]]:
        """All responses that can be continued, for `recall` of another run: with their age in place of their time.
        Others may be kept or forgotten meanwhile.
        """
        for tenant, known in list(self._known.items()):
            for response_id, each in list(known.items()):
                if self._restarts(each.stored.replica) == each.restarts:
                    yield (*_row(tenant, response_id, each)[:-2], now - each.at)

    def recall(self, rows: Iterable[Sequence[object]], written_at: float) -> None:
        """Remember the responses of an earlier run. Its engines are expected to run still: one that does not answers
        that it has lost them. `written_at`: when they were written.
        """
        for *row, age_s in rows:
            self.add((*row, written_at - cast(float, age_s), 0))

    def _insert(self, tenant: str, response_id: str, new: Continuable) -> None:
        self.forget(tenant, response_id)  # it is inserted again below as the newest
        self._known.setdefault(tenant, OrderedDict())[response_id] = new
        self._count(tenant, new.size_bytes)
        while self._bytes > MAX_BYTES:
            heaviest = max(self._held_bytes, key=self._held_bytes.__getitem__)
            self.forget(heaviest, next(iter(self._known[heaviest])))

    def forget(self, tenant: str, response_id: str) -> None:
        """Forget a response, because its engine has lost it or its memory is needed."""
        gone = self._known.get(tenant, _NONE).pop(response_id, None)
        if gone is not None:
            self._count(tenant, -gone.size_bytes)

    def _count(self, tenant: str, size_bytes: int) -> None:
        self._bytes += size_bytes
        held = self._held_bytes.get(tenant, 0) + size_bytes
        if held:
            self._held_bytes[tenant] = held
        else:
            del self._held_bytes[tenant], self._known[tenant]

    def is_lost(self, request: Request, parsed: Parsed, answer: list[bytes]) -> bool:
        """Whether an engine's 404 says that it has lost the response that this request continues."""
        previous = parsed.read_fields().get(PREVIOUS) if request.affinity.stored is not None else None
        if previous is None or b"".join(answer).find(previous.encode()) < 0:
            return False
        self.forget(request.tenant, previous)
        return True


def _row(tenant: str, response_id: str, known: Continuable) -> Sequence[object]:
    prefix, stored = known.prefix, known.stored
    hashed = prefix.blocks, prefix.ends, prefix.size, prefix.has_media
    return (
        tenant,
        response_id,
        stored.replica,
        stored.tokens,
        known.model,
        known.first,
        *hashed,
        known.at,
        known.restarts,
    )


def first_if_stored(request: Request, parsed: Parsed) -> int | None:
    """Hash of the tools and instructions of a request whose answer is stored; None if it is not stored."""
    if request.endpoint is not Endpoint.RESPONSES or parsed.fields.get("store", True) is False:
        return None
    return first_of(parsed.fields, request.affinity.adapter)


def _read(raw_id: bytes) -> str:
    """The id as text; empty if a client could not send it back."""
    if not 2 < len(raw_id) <= MAX_ID_CHARS + 2:
        return ""
    try:
        read = orjson.loads(raw_id)
    except orjson.JSONDecodeError:
        return ""
    return read if type(read) is str else ""


def _with_answer(prompt: Prefix, prompt_tokens: int, tokens: int) -> Prefix:
    """A copy of a prefix, with the size of the answer added."""
    per_token = prompt.size / prompt_tokens if prompt.size and prompt_tokens else BYTES_PER_TOKEN
    size = int(tokens * per_token)
    if prompt is NO_PREFIX:
        return Prefix(size=size)
    return Prefix(prompt.blocks, prompt.ends, max(size, prompt.size), prompt.has_media)
