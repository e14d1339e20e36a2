"""Sections about tiers: the treatment of each class of clients."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field

from gateway.core import policy as rules
from gateway.policy.sections import values
from gateway.policy.sections.section import Section, duration, nested, optional, plain, share
from gateway.policy.sections.values import (
    Allowances,
    Count,
    CountOrZero,
    Deadline,
    DefaultTokens,
    Duration,
    ModelName,
    Name,
    Share,
    Text,
)

_TIER = rules.Tier("")
_HEDGE = rules.Hedge()
_REPETITION = rules.RepetitionSpec()

Mode = Annotated[str, AfterValidator(values.one_of(rules.AdmissionMode)), values.choice(rules.AdmissionMode)]
CountedTokens = Annotated[str, AfterValidator(values.one_of(rules.CountedTokens)), values.choice(rules.CountedTokens)]
Value = Annotated[str, AfterValidator(values.one_of(rules.Value)), values.choice(rules.Value)]
OnTotal = Annotated[str, AfterValidator(values.one_of(rules.OnTotal)), values.choice(rules.OnTotal)]


def _some(part: float) -> float:
    if not part:
        raise ValueError(
            "{value} lets nothing show that a forecast which sheds the whole tier is wrong: "
            "write a share above 0%, such as 1%"
        )
    return part


Exploration = Annotated[Share, AfterValidator(_some), values.SHARE_ABOVE_ZERO]


class TierTimeouts(Section):
    """How long each phase of a request may take. Past it: 504, or an error event once the answer has begun."""

    queue: Deadline = duration(
        _TIER.timeouts.queue_s,
        "Longest wait for a slot, from the complete request on. By default at least the tier's longest bound, or "
        "`ttft` if it promises a TPOT alone.",
    )
    ttft: Deadline = duration(_TIER.timeouts.ttft_s, "Longest time from sending to the first content token.")
    idle: Deadline = duration(_TIER.timeouts.idle_s, "Longest silence between two pieces of an answer.")
    total: Deadline = duration(_TIER.timeouts.total_s, "Longest time of the whole request, from its head on.")
    on_total: OnTotal = plain(
        _TIER.on_total.value,
        "How a stream ends when its total time is up. cut: as at max_tokens; error: with an error event.",
    )


class ObjectiveSection(Section):
    """Percentiles of a latency; the highest one also decides whether a single request is good."""

    p50: Duration | None = optional("Half of the requests are at most this slow.")
    p90: Duration | None = optional("90% of the requests are at most this slow.")
    p95: Duration | None = optional("95% of the requests are at most this slow.")
    p99: Duration | None = optional("99% of the requests are at most this slow.")
    p999: Duration | None = optional("99.9% of the requests are at most this slow.")


class EndToEndSection(ObjectiveSection):
    """Percentiles of the time from request complete to answer complete."""

    up_to_tokens: Count | None = optional("The objective holds for answers of at most this many tokens.")


class SloSection(Section):
    """Promises of a tier."""

    ttft: ObjectiveSection | None = optional("Time from request complete to the first content token.")
    tpot: ObjectiveSection | None = optional("Mean time per output token after the first.")
    e2e: EndToEndSection | None = optional("Time from request complete to answer complete.")


class MaxTokensSection(Section):
    """How many tokens an answer may have."""

    default: DefaultTokens | None = optional(
        "Used if a request sets no maximum; none leaves it to the engine. Unless given: the limit, else none."
    )
    limit: Count | None = optional("A larger maximum is lowered to this. Unless given: 32768, or a higher default.")
    degrade: bool = plain(
        _TIER.caps.degrade, "Allow shorter answers than asked for when capacity is short; needs an e2e objective."
    )
    watch: bool = plain(
        _TIER.caps.watch, "Cut answers short that are longer than nearly all others, while the pool is busy."
    )


class CapsSection(Section):
    """Bounds on what else makes a request expensive; what lies beyond is refused with 400."""

    n: Count = plain(_TIER.caps.n, "Largest `n`: answers per request.")
    best_of: Count = plain(_TIER.caps.best_of, "Largest `best_of`; above 1, `use_beam_search` passes.")
    top_logprobs: CountOrZero = plain(_TIER.caps.top_logprobs, "Largest `top_logprobs`; 0 forbids them.")
    prompt_logprobs: CountOrZero = plain(
        _TIER.caps.prompt_logprobs, "Largest `prompt_logprobs`, or `logprobs` with `echo`; 0 forbids them."
    )
    batch: Count = plain(_TIER.caps.batch, "Most prompts, inputs or documents in one request.")
    media: bool = plain(_TIER.caps.media, "Whether messages may carry images, audio or video.")
    media_urls: bool = plain(
        _TIER.caps.media_urls, "Whether media may be http or https URLs, which engines fetch; needs `media`."
    )
    engine_options: bool = plain(
        _TIER.caps.engine_options,
        "Whether requests may carry options that no other cap bounds: templates, media processors, hidden states.",
    )
    stored_responses: bool = plain(
        _TIER.caps.stored_responses,
        "Whether engines may store answers of the Responses API, and `previous_response_id` may continue them.",
    )


def _api(paths: str) -> Any:
    return optional(f"{paths}. true: served; false: not. Unless given, paths below /v1 are served and others are not.")


class ApisSection(Section):
    """The APIs of a tier: by default those below /v1. vLLM checks its key nowhere else."""

    chat: bool | None = _api("/v1/chat/completions")
    completions: bool | None = _api("/v1/completions")
    embeddings: bool | None = _api("/v1/embeddings")
    responses: bool | None = _api("/v1/responses")
    messages: bool | None = _api("/v1/messages")
    rerank: bool | None = _api("/v1/rerank, /rerank, /v2/rerank")
    score: bool | None = _api("/v1/score, /score")
    pooling: bool | None = _api("/pooling")
    classify: bool | None = _api("/classify")
    tokenize: bool | None = _api("/tokenize")
    detokenize: bool | None = _api("/detokenize")
    transcriptions: bool | None = _api("/v1/audio/transcriptions")
    translations: bool | None = _api("/v1/audio/translations")


class LimitsSection(Section):
    """Limits of one tenant of this tier. Beyond them: 429 with the time to try again."""

    requests: Allowances | None = optional(
        "Requests, such as 60/min, of which a minute's may come at once; a quota such as 1000/day; or a list of both."
    )
    tokens: Allowances | None = optional(
        "Prompt and answer tokens: 40k/min, 10M/day, 200M/month, or a list of these. Days and months are those of UTC."
    )
    concurrency: Count | None = optional("Requests in progress at the same time.")
    count: CountedTokens = plain(
        _TIER.limits.count.value,
        "Which tokens count in `tokens`: all; uncached: without those of prompts that engines have in prefix caches.",
    )


class AdmissionSection(Section):
    """When a request that may miss its objective is admitted."""

    mode: Mode = plain(
        _TIER.admission.mode.value, "enforce: refuse what would miss its SLO; shadow: only count it; off: do not look."
    )
    max_breach_probability: Share = share(
        _TIER.admission.max_breach_probability,
        "Refuse when a miss is more likely than this. By default 20% in a tier with an e2e, but no TTFT objective.",
    )
    exploration: Exploration = share(
        _TIER.admission.exploration, "Share of doubtful requests let in all the same, so that the forecast can learn."
    )


class HedgeSection(Section):
    """A duplicate, at another replica, of requests whose first token is late."""

    quantile: Share = plain(
        _HEDGE.quantile,
        "A first token is late beyond this quantile of its pool, among prompts of similar unread length.",
    )
    budget: Share = share(
        _HEDGE.budget, "Largest share of requests, and of prompt tokens to be read, that are sent twice."
    )
    holdout: Share = share(
        _HEDGE.holdout, "Share of requests that is never sent twice, to measure the tail without duplicates."
    )


class RepetitionSection(Section):
    """When an answer that repeats itself is cut short."""

    characters: Annotated[Count, Field(ge=100, le=100_000)] = plain(
        _REPETITION.characters, "Length, in characters, of a repetition that is cut."
    )
    repeats: Annotated[Count, Field(ge=2, le=1000)] = plain(
        _REPETITION.repeats, "Least number of times a piece must repeat before the answer is cut."
    )


class RetrySection(Section):
    """Retries before the answer has begun."""

    budget: Share = share(
        _TIER.retry.budget,
        "Largest share of requests that are sent to a second replica; 0: not even those that found no connection.",
    )


class TierSection(Section):
    """A class of service."""

    priority: Annotated[int, Field(ge=-1000, le=1000)] = plain(_TIER.priority, "Lower is served first.")
    weight: Annotated[float, Field(gt=0, le=1e6, strict=False, allow_inf_nan=False)] = plain(
        _TIER.weight,
        "Worth of a good request, relative to other tiers. Heavier tiers of one priority go first under overload.",
    )
    value: Value = plain(
        _TIER.value.value,
        "What the weight of a good request is multiplied by. request: 1; tokens: its prompt and answer tokens.",
    )
    fairness: Share = share(
        _TIER.fairness, "Most by which prompts of any length are admitted less often than their tier; 100%: no limit."
    )
    floor: Share = share(
        _TIER.floor, "Share of the tokens served that tiers of higher priority cannot take while this one waits."
    )
    pools: Annotated[list[Name], Field(min_length=1)] | None = optional(
        "Pools that this tier may use; all unless given."
    )
    slo: SloSection = nested(SloSection(), "What it promises.")
    max_tokens: MaxTokensSection = nested(MaxTokensSection(), "Default and ceiling of the length of answers.")
    caps: CapsSection = nested(CapsSection(), "Bounds on what else makes a request expensive.")
    stop: list[Text] = plain([], "Stop sequences added to every generation.")
    aggregate: bool = plain(
        _TIER.caps.aggregate, "Ask engines for a stream even if the client wants none, and assemble the answer."
    )
    engine_priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] | None = optional(
        "`priority` set on requests to the replica (vLLM: lower is earlier, needs --scheduling-policy priority)."
    )
    timeouts: TierTimeouts = nested(TierTimeouts(), "How long each phase may take.")
    sse_comments: Duration | None = optional(
        "A stream that is about to be silent for this long gets a comment, even in the queue; off unless given."
    )
    repetition: RepetitionSection | None = optional(
        "Cut answers short that repeat themselves without end; left alone unless given."
    )
    apis: ApisSection = nested(ApisSection(), "Which APIs it has.")
    limits: LimitsSection = nested(LimitsSection(), "What one tenant may use.")
    admission: AdmissionSection = nested(AdmissionSection(), "When a doubtful request is let in.")
    hedge: HedgeSection | None = optional("Duplicates of requests whose first token is late; none unless given.")
    fallback: ModelName | None = optional(
        "Model for requests that their own model cannot serve in time; unless given they are refused."
    )
    retry: RetrySection = nested(RetrySection(), "Retries before the answer has begun.")
