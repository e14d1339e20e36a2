"""A fleet of emulated replicas in one event loop."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import TracebackType

from gateway.sim.engine.profiles import PROFILES, Profile
from loadtests.emulator.asks import Settings
from loadtests.emulator.engine import Engine
from loadtests.emulator.port import Port
from loadtests.emulator.replica import EmulatedReplica

MODEL = "emulated"


class Emulator:
    """`replicas` replicas on consecutive ports from `port` (0: any free ones), open while the context is.

    `time_scale`: virtual seconds per real second; by default as fast as the loop turns, for tests. `max_queued` is
    vLLM's --max-num-queued-reqs, `prompt_tokens_details` its --enable-prompt-tokens-details (off there by default),
    `dp` its --data-parallel-size, `responses_store` its VLLM_ENABLE_RESPONSES_API_STORE; the rest of the settings
    shape the answers.
    """

    def __init__(
        self,
        *,
        profile: str | Profile = "test",
        replicas: int = 1,
        host: str = "127.0.0.1",
        port: int = 0,
        time_scale: float = math.inf,
        model: str = MODEL,
        seed: int = 0,
        output_median_tokens: float = 128.0,
        output_sigma: float = 0.7,
        keep_alive_s: float = 5.0,
        keep_requests: int = 256,
        max_queued: int | None = None,
        prompt_tokens_details: bool = True,
        adapters: Sequence[str] = (),
        max_loras: int = 1,
        responses_store: bool = False,
        dp: int = 1,
    ) -> None:
        self.profile = PROFILES[profile] if isinstance(profile, str) else profile
        self.settings = Settings(
            model,
            self.profile.max_model_len,
            seed,
            output_median_tokens,
            output_sigma,
            prompt_tokens_details,
            tuple(adapters),
            max_loras,
            responses_store,
        )
        self.replicas: list[EmulatedReplica] = []
        self._count, self._dp = replicas, dp
        self._time_scale = time_scale
        self._host, self._port = host, port
        self._keep_alive_s, self._keep_requests, self._max_queued = keep_alive_s, keep_requests, max_queued

    @property
    def urls(self) -> list[str]:
        """Base URLs of the replicas, in order."""
        return [replica.url for replica in self.replicas]

    @property
    def url(self) -> str:
        """The base URL of the first replica."""
        return self.replicas[0].url

    async def start(self) -> None:
        """Listen on every port. Raises OSError if one is taken."""
        for index in range(self._count):
            replica = EmulatedReplica(
                [Engine(self.profile, self._time_scale) for _ in range(self._dp)],
                self.settings,
                Port(self._host, self._port + index if self._port else 0),
                keep_alive_s=self._keep_alive_s,
                keep_requests=self._keep_requests,
                max_queued=self._max_queued,
            )
            self.replicas.append(replica)
            replica.peers = self.replicas
            await replica.start()

    async def close(self) -> None:
        """End every replica at once."""
        for replica in self.replicas:
            await replica.close()

    async def __aenter__(self) -> Emulator:
        try:
            await self.start()
        except OSError:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
