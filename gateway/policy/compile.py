"""Converts a checked policy file to the objects of the decision core."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from gateway.core import policy as rules
from gateway.core import pool_spec
from gateway.core.slo import Objective, Slo
from gateway.policy.checks import PERCENTILES
from gateway.policy.outline import outline_of
from gateway.policy.schema import PolicyFile
from gateway.policy.sections.clients import KeySection
from gateway.policy.sections.discover import DiscoverSection
from gateway.policy.sections.hold import HoldSection
from gateway.policy.sections.models import MirrorSection, ModelSection
from gateway.policy.sections.pools import EjectionSection, HealthSection, PoolSection, PoolTimeouts, QueueSection
from gateway.policy.sections.prices import ModelPrices
from gateway.policy.sections.tiers import (
    AdmissionSection,
    HedgeSection,
    LimitsSection,
    ObjectiveSection,
    RepetitionSection,
    SloSection,
    TierSection,
    TierTimeouts,
)
from gateway.policy.sections.values import StrictSlots

_CAPS = rules.Caps()
E2E_ALONE = 0.2
"""Unwritten threshold of P(breach) in a tier with an e2e, but no TTFT objective: no judge limits its late answers. Over
14 cells of three engines, .5 has a mean goodput of .861, .2 .893, .1 .891 and .05 .886.
"""


def compiled(file: PolicyFile, digest: str, folder: Path) -> rules.Policy:
    """The compiled policy. This never fails, because `file` has passed every check.

    `folder`: of the policy file, where paths of other files begin.
    """
    default_tier = file.defaults.tier or next(iter(file.tiers))
    models = [_model(name, section, file.models) for name, section in file.models.items()]
    keys = [_key(section, default_tier) for section in file.keys]
    tiers = {name: _tier(name, section) for name, section in file.tiers.items()}
    return rules.Policy(
        models={name: model for model in models for name in (model.name, *model.aliases)},
        pools={name: _pool(name, section, _longest_s(tiers.values()), folder) for name, section in file.pools.items()},
        tiers=tiers,
        keys={key.sha256: key for key in keys},
        default_tier=default_tier,
        generation=1,
        digest=digest,
        open_on_any_address=file.listen.open_on_any_address,
        host_names=tuple(file.listen.names),
        origins=tuple(file.listen.origins),
        max_body_bytes=file.listen.max_body,
        max_values=file.listen.max_values,
        currency=file.prices.currency,
        prices={name: _prices(section) for name, section in file.prices.models.items()},
        replica_hours=dict(file.prices.replica_hours),
        outline=outline_of(file),
    )


def _model(name: str, section: ModelSection, models: Mapping[str, ModelSection]) -> rules.Model:
    catch_all = name == "*"
    split = section.split or {}
    serving = (models[arm].pools or () for arm in split) if split else (section.pools or (),)
    return rules.Model(
        name=name,
        pools=tuple(dict.fromkeys(pool for pools in serving for pool in pools)),
        aliases=tuple(section.aliases),
        upstream=section.upstream or ("" if catch_all else name),
        any_name=catch_all,
        report=rules.Report(section.report),
        split=tuple(split.items()),
        has_adapters=section.adapters == "listed",
        mirror=_mirror(section.mirror) if section.mirror else None,
    )


def _prices(section: ModelPrices) -> rules.Prices:
    return rules.Prices(section.prompt, section.prompt if section.cached is None else section.cached, section.output)


def _mirror(section: MirrorSection) -> rules.Mirror:
    return rules.Mirror(section.to, section.share, section.limit, section.upstream or "")


def _pool(name: str, section: PoolSection, longest_s: float, folder: Path) -> pool_spec.PoolSpec:
    return pool_spec.PoolSpec(
        name=name,
        replicas=tuple(
            spec
            for replica in section.replicas
            for spec in pool_spec.replicas_at(replica.url, replica.name or "", replica.dp)
        ),
        engine=pool_spec.EngineKind(section.engine),
        max_prompt_tokens=section.max_prompt_tokens,
        slots=section.slots.max if isinstance(section.slots, StrictSlots) else section.slots,
        strict_slots=isinstance(section.slots, StrictSlots),
        queue_limit=_queue_limit(section.queue, longest_s),
        queue_bytes=section.queue.bytes,
        hold=_hold(section.hold) if section.hold else None,
        connect_timeout_s=section.connect_timeout,
        timeouts=_timeouts(section.timeouts),
        kv_headroom=section.kv_headroom,
        reserve=tuple(section.reserve.items()),
        spill_from=tuple(section.spill_from),
        router=section.router,
        affinity=section.affinity.prefix,
        strict_sessions=section.affinity.strict,
        sessions=pool_spec.SessionKeys(
            section.affinity.header, tuple(map(pool_spec.SessionKey, section.affinity.keys))
        ),
        health=_health(section.health),
        access=_access(section, folder),
        discovery=_discovery(section.discover, folder) if section.discover else None,
        cache_key=section.cache_key if section.cache_isolation == "tenant" else None,
    )


def _access(section: PoolSection, folder: Path) -> pool_spec.ReplicaAccess:
    tls, discover = section.tls, section.discover
    found_by_name = discover is not None and discover.dns is not None and not section.replicas
    # Certificates are made for the name, not for the addresses that are found behind it.
    server_name = tls.server_name or (discover.dns.name if discover and discover.dns and found_by_name else "")
    return pool_spec.ReplicaAccess(
        key=section.api_key,
        key_file=_path(section.api_key_file, folder),
        host=section.host or "",
        tls=pool_spec.Tls(
            _path(tls.ca_file, folder), _path(tls.cert_file, folder), _path(tls.key_file, folder), server_name
        ),
    )


def _path(written: str | None, folder: Path) -> str:
    return "" if written is None else str(folder / written)


def _hold(section: HoldSection) -> pool_spec.Hold:
    wake = section.wake
    url, sleeping = (None, False) if wake is None else (wake.url, wake.sleeping)
    return pool_spec.Hold(section.time, section.requests, section.bytes, url or "", sleeping)


def _discovery(section: DiscoverSection, folder: Path) -> pool_spec.Discovery:
    file, dns, slices = section.file, section.dns, section.kubernetes
    sources: list[pool_spec.Source] = []
    if file is not None:
        sources.append(pool_spec.FileSource(_path(file.path, folder), tuple(file.labels.items())))
    if dns is not None:
        record = pool_spec.DnsRecord(dns.type)
        sources.append(pool_spec.DnsSource(dns.name, dns.port or 0, record, dns.server or "", dns.interval))
    if slices is not None:
        sources.append(
            pool_spec.KubernetesSource(
                slices.service,
                slices.namespace or "",
                str(slices.port or ""),
                tuple(slices.labels.items()),
                slices.server or "",
                _path(slices.token_file, folder),
                _path(slices.ca_file, folder),
            )
        )
    return pool_spec.Discovery(tuple(sources), section.scheme, section.path or "", section.dp, section.hold_down)


def _timeouts(section: PoolTimeouts | TierTimeouts) -> pool_spec.Timeouts:
    return pool_spec.Timeouts(section.queue, section.ttft, section.idle, section.total)


def _health(section: HealthSection) -> pool_spec.Health:
    return pool_spec.Health(
        path=section.path or "",
        interval_s=section.interval,
        timeout_s=section.timeout,
        failures=section.failures,
        open_s=section.open,
        metrics_path=section.metrics_path,
        scrape_interval_s=section.scrape_interval,
        warmup=section.warmup,
        warmup_prompt_tokens=section.warmup_prompt_tokens,
        slow_start_s=section.slow_start,
        ejection=_ejection(section.ejection),
    )


def _ejection(section: EjectionSection) -> pool_spec.Ejection | None:
    if pool_spec.EjectionMode(section.mode) is pool_spec.EjectionMode.OFF:
        return None
    return pool_spec.Ejection(
        slowdown=section.slowdown,
        time_s=section.time,
        max_time_s=max(section.time, pool_spec.Ejection().max_time_s),
        max_share=section.max_share,
        panic_share=section.panic,
        probe_s=section.canary,
        stall_s=section.stall,
    )


def _bounds_s(slo: Slo, ttft_timeout_s: float) -> list[float]:
    """Bounds (seconds) within which a request must begin. A tier that promises a TPOT alone holds requests back for it.
    They may wait here as long as they might at an engine: until the TTFT timeout.
    """
    bounds_s = [slo.ttft_bound_s, slo.e2e_bound_s]
    if slo.tpot and min(bounds_s) == math.inf:
        bounds_s = [ttft_timeout_s]
    return [bound_s for bound_s in bounds_s if bound_s < math.inf]


def _longest_s(tiers: Iterable[rules.Tier]) -> float:
    """The longest time (seconds) that an objective leaves a request, or the usual queue timeout if that is longer."""
    bounds_s = [bound_s for tier in tiers for bound_s in _bounds_s(tier.slo, tier.timeouts.ttft_s)]
    return max([pool_spec.USUAL_TIMEOUTS.queue_s, *bounds_s])


def _queue_limit(section: QueueSection, longest_s: float) -> int:
    """Requests that may wait for a slot. Unless written, the usual number grows with the time for which they may."""
    if "limit" in section.model_fields_set:
        return section.limit
    return math.ceil(section.limit * longest_s / pool_spec.USUAL_TIMEOUTS.queue_s)


def _waits_s(section: TierTimeouts, slo: Slo) -> float:
    """Longest wait for a slot (seconds). Unless written, it follows from the objectives: a request may wait as long as
    its answer may still be in time.
    """
    if "queue" in section.model_fields_set:
        return section.queue
    return max([section.queue, *_bounds_s(slo, section.ttft)])


def _tier(name: str, section: TierSection) -> rules.Tier:
    slo = _slo(section.slo)
    timeouts = replace(_timeouts(section.timeouts), queue_s=_waits_s(section.timeouts, slo))
    return rules.Tier(
        name=name,
        priority=section.priority,
        weight=section.weight,
        value=rules.Value(section.value),
        fairness=section.fairness,
        floor=section.floor,
        pools=tuple(section.pools) if section.pools is not None else None,
        slo=slo,
        caps=_caps(section),
        timeouts=timeouts,
        on_total=rules.OnTotal(section.timeouts.on_total),
        keep_alive_s=section.sse_comments or 0.0,
        repetition=_repetition(section.repetition) if section.repetition else None,
        limits=_limits(section.limits),
        admission=_admission(section.admission, slo),
        hedge=_hedge(section.hedge) if section.hedge else None,
        retry=rules.Retry(section.retry.budget),
        apis=tuple((api, on) for api, on in section.apis if on is not None),
        fallback=section.fallback or "",
    )


def _slo(section: SloSection) -> Slo:
    return Slo(
        ttft=_objectives(section.ttft),
        tpot=_objectives(section.tpot),
        e2e=_objectives(section.e2e),
        e2e_up_to_tokens=section.e2e.up_to_tokens if section.e2e else None,
    )


def _objectives(section: ObjectiveSection | None) -> tuple[Objective, ...]:
    thresholds = ((quantile, getattr(section, name, None)) for name, quantile in PERCENTILES.items())
    return tuple(Objective(quantile, limit_s) for quantile, limit_s in thresholds if limit_s is not None)


def _caps(section: TierSection) -> rules.Caps:
    asked, caps = section.max_tokens, section.caps
    limit = asked.limit or max(_CAPS.max_tokens_limit, asked.default or 0)
    # A limit also caps requests that set no length. Without a limit, the engine decides their length.
    unnamed = asked.limit or 0 if asked.default is None else asked.default
    return rules.Caps(
        max_tokens_default=unnamed,
        max_tokens_limit=limit,
        degrade=asked.degrade,
        watch=asked.watch,
        n=caps.n,
        best_of=caps.best_of,
        top_logprobs=caps.top_logprobs,
        prompt_logprobs=caps.prompt_logprobs,
        stop=tuple(section.stop),
        batch=caps.batch,
        engine_priority=section.engine_priority,
        media=caps.media,
        media_urls=caps.media_urls,
        engine_options=caps.engine_options,
        stored_responses=caps.stored_responses,
        aggregate=section.aggregate,
    )


def _limits(section: LimitsSection) -> rules.Limits:
    requests, tokens = dict(section.requests or ()), dict(section.tokens or ())
    quotas = [
        rules.Quota(kind, period, given[period])
        for kind, (of, period) in rules.QUOTAS.items()
        if period in (given := tokens if of is rules.LimitKind.TOKENS else requests)
    ]
    counted = rules.CountedTokens(section.count)
    return rules.Limits(requests.get("min"), tokens.get("min"), section.concurrency, counted, tuple(quotas))


def _admission(section: AdmissionSection, slo: Slo) -> rules.AdmissionSpec:
    breach = section.max_breach_probability
    if slo.e2e and not slo.ttft and "max_breach_probability" not in section.model_fields_set:
        breach = E2E_ALONE
    return rules.AdmissionSpec(rules.AdmissionMode(section.mode), breach, section.exploration)


def _hedge(section: HedgeSection) -> rules.Hedge:
    return rules.Hedge(section.quantile, section.budget, section.holdout)


def _repetition(section: RepetitionSection) -> rules.RepetitionSpec:
    return rules.RepetitionSpec(section.characters, section.repeats)


def _key(section: KeySection, default_tier: str) -> rules.Key:
    return rules.Key(bytes.fromhex(section.sha256), section.tenant, section.tier or default_tier)
