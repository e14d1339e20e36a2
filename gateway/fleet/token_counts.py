"""Asks engines that support it for the number of tokens of a prompt: `POST /v1/messages/count_tokens`.

vLLM has had this path since February 2026 (vllm#35588). llama.cpp's server and SGLang have it, too. A count takes time
of the engine's API server, but no slot. So only one replica is asked, once. It is the home of the session, or else any
replica. A replica that cannot answer is skipped for a while.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from gateway.core.pool_spec import PoolSpec, ReplicaSpec
from gateway.core.request import Random
from gateway.core.sessions import Session, draw, key_of
from gateway.fleet.fault import Failed, ReadFault
from gateway.fleet.fetch import Fetcher
from gateway.wire.apis.messages import COUNT_TOKENS
from gateway.wire.numbers import count

PATH: Final = COUNT_TOKENS.decode()
TIMEOUT_S: Final = 5.0
MAX_ANSWER_BYTES: Final = 64 * 1024
REST_S: Final = 30.0
"""A replica is skipped for this long after a failed call."""
LONG_REST_S: Final = 600.0
"""A replica that does not have the path is skipped for this long."""
MAX_RESTING: Final = 10_000
_NO_SUCH_PATH: Final = (404, 405, 501)


class _Count(msgspec.Struct):
    input_tokens: int | float


class EngineCounts:
    """Asks replicas for token counts, and remembers which of them cannot count."""

    def __init__(
        self,
        clock: Callable[[], float],
        random: Random,
        is_out: Callable[[str], bool],
        takes: Callable[[str, str], bool],
    ) -> None:
        """`is_out`: whether the replica of a name gets no requests, because it is down, drained or ejected.
        `takes`: takes a replica and a model, and returns whether the replica may serve it.
        """
        self._clock = clock
        self._is_out = is_out
        self._takes = takes
        self._random = random
        self._resting: dict[str, float] = {}
        """Time until which a replica is skipped, by its address."""

    async def ask(
        self, pools: Sequence[PoolSpec], model: str, body: bytes, rid: bytes, session: Session | None
    ) -> int | None:
        """Prompt tokens of a request in Anthropic's format; None if no replica answers. `model`: its name in `body`.
        `rid`: its `x-request-id`.
        """
        now = self._clock()
        candidates = [
            (spec, pool)
            for pool in pools
            for spec in pool.replicas
            if not self._is_out(spec.name) and self._takes(spec.name, model) and self._resting.get(spec.url, now) <= now
        ]
        if not candidates:
            return None
        if session is None:
            spec, pool = candidates[int(self._random.random() * len(candidates))]
        else:
            key = session.key
            spec, pool = max(candidates, key=lambda candidate: draw(key, key_of(candidate[0].name)))
        fetcher = Fetcher(
            spec.url + PATH,
            access=pool.access,
            timeout_s=TIMEOUT_S,
            limit_bytes=MAX_ANSWER_BYTES,
            body=body,
            request_id=rid,
        )
        try:
            answer = await fetcher.get()
        finally:
            fetcher.close()
        tokens = answer if isinstance(answer, Failed) else _read(answer)
        if isinstance(tokens, Failed):
            self._rest(spec, tokens)
            return None
        return tokens

    def _rest(self, spec: ReplicaSpec, failed: Failed) -> None:
        """Skip a replica for a while after a failure of its own. Failures that the request may have caused do not
        count.
        """
        if failed.status in _NO_SUCH_PATH:
            rest_s = LONG_REST_S
        elif failed.fault is ReadFault.TIMEOUT or 400 <= failed.status < 500:
            return
        else:
            rest_s = REST_S
        if len(self._resting) >= MAX_RESTING:
            self._resting.clear()
        self._resting[spec.url] = self._clock() + rest_s


def _read(answer: bytes) -> int | Failed:
    try:
        tokens = count(msgspec.json.decode(answer, type=_Count).input_tokens)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Failed(ReadFault.GARBAGE, "the answer has no input_tokens")
    return Failed(ReadFault.GARBAGE, "input_tokens is not a possible count") if tokens is None else tokens
