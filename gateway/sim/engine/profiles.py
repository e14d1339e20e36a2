"""Engine profiles by name: step times, limits on sequences, and sizes of KV caches.

A row is the cost model of one engine with continuous batching,

    step = step_base_s + prefill_s_per_token * prefill tokens + prefill_s_per_sequence * prompts that begin
           + decode_s_per_sequence * decodes + kv_s_per_token * tokens of context that the step reads,

with vLLM's own limits. The constants of `default` come from the simulation in which this project's algorithms were
first tried. It had four replicas of 64 slots and chunks of 2048 tokens. A step took 10 ms + .05 ms per prefill token +
.04 ms per decode + 5e-5 ms per KV token. These constants were chosen, not measured. So the shapes of results with
`default` can be trusted, but not the values.

`ENGINES` has real engines, and an invented desktop engine with four seats (`small-4`). docs/reference/simulation.md
gives the sources of their numbers.
"""

from __future__ import annotations

import json
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path

COSTS = ("step_base_s", "prefill_s_per_token", "decode_s_per_sequence", "kv_s_per_token", "prefill_s_per_sequence")
TIMES = (*COSTS, "path_s")
MAX_S = 1e6


@dataclass(frozen=True, slots=True)
class Profile:
    """One engine. Times in seconds, sizes in tokens.

    Raises ValueError if the engine could deadlock. Every decode takes one token of the step's budget, and the longest
    sequence must fit into the KV cache alone.
    """

    name: str
    max_model_len: int
    """Limit on prompt and output tokens of one sequence together (vLLM: --max-model-len)."""
    max_num_seqs: int
    """Limit on sequences in one step (vLLM: --max-num-seqs)."""
    max_batched_tokens: int
    """Limit on the tokens of prefill chunks and decodes in one step (vLLM: --max-num-batched-tokens)."""
    kv_capacity_tokens: int
    """Tokens of context that fit into the KV cache."""
    step_base_s: float
    prefill_s_per_token: float
    decode_s_per_sequence: float
    kv_s_per_token: float
    prefill_s_per_sequence: float = 0.0
    """Seconds that a step takes longer for each prompt that starts in it, whatever its length."""
    kv_block_tokens: int = 16
    """Tokens per block of the KV cache (vLLM: block_size). This model counts KV in tokens, but prompts are cached in
    whole blocks.
    """
    prefix_caching: bool = True
    """Whether computed blocks are reused (vLLM: --enable-prefix-caching, on by default)."""
    path_s: float = 0.0
    """Seconds that every request spends outside of steps: HTTP, tokenising, the way to the scheduler and back. In this
    time the request holds no slot.
    """

    def __post_init__(self) -> None:
        if self.max_num_seqs < 1 or self.max_batched_tokens <= self.max_num_seqs:
            raise ValueError(f"{self.name}: max_batched_tokens must exceed max_num_seqs, which must be at least 1")
        if self.kv_capacity_tokens < self.max_model_len:
            raise ValueError(f"{self.name}: kv_capacity_tokens must hold one sequence of max_model_len")
        if self.step_base_s <= 0:
            raise ValueError(f"{self.name}: step_base_s must be above 0")
        for name in TIMES:
            if getattr(self, name) < 0:
                raise ValueError(f"{self.name}: {name} must not be below 0")

    @property
    def kv_blocks(self) -> int:
        """Number of blocks of the KV cache, as vLLM counts them."""
        return self.kv_capacity_tokens // self.kv_block_tokens


DEFAULT = Profile(
    name="default",
    max_model_len=32768,
    max_num_seqs=64,
    max_batched_tokens=2048,
    kv_capacity_tokens=131072,
    step_base_s=10e-3,
    prefill_s_per_token=0.05e-3,
    decode_s_per_sequence=0.04e-3,
    kv_s_per_token=5e-8,
)

ENGINES: dict[str, Profile] = {
    profile.name: profile
    for profile in (
        # Name, longest context, seats, tokens of a step, tokens of the KV cache; costs: base, per prompt token, per
        # sequence, per context token.
        Profile("llama3-8b-a100", 8192, 256, 2048, 427_000, 9.3e-3, 66e-6, 44e-6, 80e-9),
        Profile("llama2-7b-h100", 4096, 1024, 8192, 110_000, 5.4e-3, 20.7e-6, 14.8e-6, 195e-9),
        Profile("llama3-70b-a100-tp4", 8192, 256, 2048, 449_000, 22.7e-3, 158.4e-6, 113.7e-6, 50e-9),
        Profile("llama2-70b-h100-tp8", 4096, 1024, 8192, 1_300_000, 8.6e-3, 28.6e-6, 16e-6, 15e-9),
        Profile("llama2-7b-a40", 4096, 256, 2048, 56_000, 23.8e-3, 126e-6, 75e-6, 940e-9),
        Profile("small-4", 8192, 4, 512, 32_768, 30e-3, 500e-6, 2000e-6, 100e-9),
    )
}

PROFILES: dict[str, Profile] = {
    profile.name: profile
    for profile in (
        DEFAULT,
        # Two engines for a fleet with short and long pools. `short` has less context and more sequences than `default`.
        replace(DEFAULT, name="short", max_model_len=16384),
        replace(DEFAULT, name="long", max_model_len=131072, max_num_seqs=32, kv_capacity_tokens=262144),
        # A straggler: `default`, but four times slower in everything.
        replace(
            DEFAULT,
            name="slow",
            step_base_s=40e-3,
            prefill_s_per_token=0.2e-3,
            decode_s_per_sequence=0.16e-3,
            kv_s_per_token=20e-8,
        ),
        # For tests. An answer of 16 tokens takes 5 ms, and a few thousand tokens fill the KV cache.
        Profile(
            name="test",
            max_model_len=4096,
            max_num_seqs=16,
            max_batched_tokens=512,
            kv_capacity_tokens=8192,
            step_base_s=0.3e-3,
            prefill_s_per_token=1e-6,
            decode_s_per_sequence=1e-6,
            kv_s_per_token=1e-9,
        ),
    )
} | ENGINES


def profile_of(text: str) -> Profile:
    """A profile by name, or from a `.json` file of `loadtests calibrate`. Raises ValueError that says what is right."""
    if text.endswith(".json"):
        return _read(Path(text))
    if text not in PROFILES:
        known = ", ".join(PROFILES)
        raise ValueError(f"{text or '(nothing)'} is not an engine profile; known: {known}, or give a .json file")
    return PROFILES[text]


def _read(path: Path) -> Profile:
    try:
        read: object = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(read, dict):
        raise ValueError(f"{path} is not a profile: it must be a JSON object with the fields of one")
    known = {field.name: field for field in fields(Profile)}
    needed = [name for name, field in known.items() if field.default is MISSING]
    if missing := [name for name in needed if name not in read]:
        raise ValueError(f"{path} lacks {', '.join(missing)}")
    for name, value in read.items():
        if name not in known:
            raise ValueError(f"{path}: {name} is not a field of a profile; known: {', '.join(known)}")
        if name == "name":
            is_right, right = isinstance(value, str), "text"
        elif name == "prefix_caching":
            is_right, right = isinstance(value, bool), "true or false"
        elif name in TIMES:
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            is_right, right = is_number and abs(value) < MAX_S, "a number of seconds"
        else:
            is_right, right = isinstance(value, int) and not isinstance(value, bool), "a whole number"
        if not is_right:
            raise ValueError(f"{path}: {name} is {value!r}: write {right}")
    try:
        return Profile(**read)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
