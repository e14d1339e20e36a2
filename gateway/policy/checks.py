"""Checks rules between the fields of a policy: references, sums, orders, duplicates.

Each check accepts a document of any shape, so that a mistake in one field does not hide others.
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.core.slo import Metric
from gateway.policy.document import Document
from gateway.policy.errors import did_you_mean, plain
from gateway.policy.place import At
from gateway.policy.sections import units, values
from gateway.policy.sections.discover import SOURCES

PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}
MIN_BODY_BYTES = 1024
MIN_CACHE_KEY = 16


def check(document: Document) -> None:
    """Run every check; errors are added to the document."""
    root = At(document, (), document.data)
    for run in CHECKS:
        run(root)


def _read(reader: Callable[[object], float | str], place: At) -> float | str | None:
    """A value with its unit, as a number; None if it cannot be read. shape.py reports that error."""
    try:
        return reader(place.data)
    except ValueError:
        return None


def _number(reader: Callable[[object], float], place: At) -> float | None:
    found = _read(reader, place)
    return found if isinstance(found, int | float) else None


def _known(place: At, what: str, known: At) -> None:
    if isinstance(place.data, str) and isinstance(known.data, dict) and place.data not in known.data:
        place.wrong(f"{place.shown} is not a {what}: {did_you_mean(place.shown, known.data)}")


def _known_list(places: At, what: str, known: At) -> None:
    first: dict[str, At] = {}
    for place in places.entries():
        _known(place, what, known)
        if isinstance(place.data, str) and first.setdefault(place.data, place) is not place:
            place.wrong(f"{place.shown} is named twice: keep one of them")


def references(root: At) -> None:
    """All pools, tiers and models that the policy refers to must exist."""
    for _, model in root["models"].items():
        _known_list(model["pools"], "pool", root["pools"])
    for name, pool in root["pools"].items():
        _known_list(pool["spill_from"], "pool", root["pools"])
        for source in pool["spill_from"].entries():
            if source.data == name:
                source.wrong("a pool cannot take what spills from itself: name other pools")
    for _, tier in root["tiers"].items():
        _known_list(tier["pools"], "pool", root["pools"])
    for key in root["keys"].entries():
        _known(key["tier"], "tier", root["tiers"])
    _known(root["defaults"]["tier"], "tier", root["tiers"])
    for field, what, known in (("models", "model", root["models"].data), ("replica_hours", "pool", root["pools"].data)):
        for name, place in root["prices"][field].items():
            if isinstance(known, dict) and name not in known and (what, name) != ("model", "*"):
                place.wrong(f"{plain(name)} is not a {what}: {did_you_mean(name, known)}", at_key=True)


def splits(root: At) -> None:
    """A model must have pools or a split; the arms of a split must be other models with pools."""
    models = root["models"]
    own = {str(alias.data): name for name, model in models.items() for alias in model["aliases"].names().values()}
    for name, model in models.items():
        split = model["split"]
        if not isinstance(model.data, dict) or not isinstance(models.data, dict):
            continue
        if split.data is None:
            if model["pools"].data is None:
                model["pools"].wrong("is missing: pools that serve this model, in the order they are tried")
            continue
        if name == "*":
            split.wrong("the model * cannot be split: split a model with a name", at_key=True)
        for field in ("pools", "upstream", "report", "mirror"):
            if model[field].data is not None:
                model[field].wrong(
                    "must not be beside a split: write it at the models that the split names", at_key=True
                )
        for arm, weight in split.items():
            if arm in own:
                weight.wrong(f"{plain(arm)} is an alias: write the name of its model, {plain(own[arm])}", at_key=True)
            elif arm == "*" or models[arm]["split"].data is not None:
                weight.wrong(f"{plain(arm)} serves nothing itself: name models that have pools", at_key=True)
            elif arm not in models.data:
                weight.wrong(f"{plain(arm)} is not a model: {did_you_mean(arm, models.data)}", at_key=True)
        weights = [weight.data for _, weight in split.items()]
        if weights and all(weight == 0 for weight in weights):
            split.wrong("every weight is 0: give at least one model a weight, such as 95", at_key=True)


def mirrors(root: At) -> None:
    """A shadow pool must exist, and no model may list it: copies would take slots from its requests."""
    serving = {pool: place for _, model in root["models"].items() for pool, place in model["pools"].names().items()}
    for _, model in root["models"].items():
        to = model["mirror"]["to"]
        _known(to, "pool", root["pools"])
        if isinstance(to.data, str) and to.data in serving:
            to.wrong(f"{to.shown} serves a model {serving[to.data].where}: name a pool that no model lists")


def fallbacks(root: At) -> None:
    """A fallback must be a model with pools, one of which the tier may use."""
    models = root["models"]
    own = {str(alias.data): name for name, model in models.items() for alias in model["aliases"].names().values()}
    for _, tier in root["tiers"].items():
        place = tier["fallback"]
        name = place.data
        if not isinstance(name, str) or not isinstance(models.data, dict):
            continue
        pools, bound = models[name]["pools"].names(), tier["pools"].names()
        if name in own:
            place.wrong(f"{place.shown} is an alias: write the name of its model, {plain(own[name])}")
        elif name == "*" or models[name]["split"].data is not None:
            place.wrong(f"{place.shown} serves nothing itself: name a model that has pools")
        elif name not in models.data:
            place.wrong(f"{place.shown} is not a model: {did_you_mean(place.shown, models.data)}")
        elif pools and bound and not pools.keys() & bound.keys():
            place.wrong(f"the tier is bound to other pools than those of {place.shown}: add one of them to its pools")


def media(root: At) -> None:
    """URLs of media are of no use in a tier without media."""
    for _, tier in root["tiers"].items():
        caps = tier["caps"]
        if caps["media_urls"].data is True and caps["media"].data is not True:
            caps["media_urls"].wrong("has no effect without media: write media: true beside it")


def default_tier(root: At) -> None:
    """The default tier must be clear."""
    tiers = root["tiers"].data
    if isinstance(tiers, dict) and len(tiers) > 1 and root["defaults"]["tier"].data is None:
        names = ", ".join(map(plain, sorted(tiers)))
        root["defaults"]["tier"].wrong(f"is missing: say which tier is the default, one of {names}")


def aliases(root: At) -> None:
    """Each name that clients may use must mean only one model."""
    models = root["models"]
    taken: dict[str, At] = {}
    for name, model in models.items():
        for alias in model["aliases"].entries():
            if not isinstance(alias.data, str):
                continue
            if name == "*":
                alias.wrong("the model * takes every name already: remove its aliases")
            elif alias.data == "*":
                alias.wrong("* cannot be an alias: make it a model of its own")
            elif isinstance(models.data, dict) and alias.data in models.data:
                alias.wrong(f"{alias.shown} is also the name of a model: remove one of the two")
            elif alias.data in taken:
                alias.wrong(f"{alias.shown} is already an alias {taken[alias.data].where}: an alias means one model")
            taken.setdefault(alias.data, alias)


def replicas(root: At) -> None:
    """Every pool must have replicas; no replica may occur twice, by URL or by name."""
    urls: dict[object, At] = {}
    names: dict[object, At] = {}
    for _, pool in root["pools"].items():
        discover = pool["discover"]
        if isinstance(pool.data, dict) and pool["replicas"].data in (None, []) and discover.data is None:
            pool["replicas"].wrong(
                "a pool needs at least one replica, such as http://10.0.0.1:8000, or a discover section"
            )
        if isinstance(discover.data, dict) and all(discover[kind].data is None for kind in SOURCES):
            discover.wrong(f"has no source: write {' or '.join(SOURCES)} in it", at_key=True)
        dns = discover["dns"]
        has_port = isinstance(dns.data, str) and dns.data.rpartition(":")[2].isdecimal()
        if dns.data is not None and dns["type"].data != "SRV" and dns["port"].data is None and not has_port:
            dns.wrong("has no port: write name:port, such as vllm.example:8000, or type: SRV", at_key=True)
        if discover["dp"].data not in (None, 1) and pool["engine"].data not in (None, "vllm"):
            discover["dp"].wrong(f"is for vllm, the engine here is {pool['engine'].shown}: leave it out")
        for entry in pool["replicas"].entries():
            engine = pool["engine"]
            if entry["dp"].data not in (None, 1) and engine.data not in (None, "vllm"):
                entry["dp"].wrong(f"is for vllm, the engine here is {engine.shown}: list each rank by a URL of its own")
            place = entry if isinstance(entry.data, str) else entry["url"]
            url = _read(values.read_url, place)
            if url is None:
                continue
            if url in urls:
                place.wrong(f"this replica is already listed {urls[url].where}: a replica is in one pool, once")
            urls.setdefault(url, place)
            label = entry["name"] if isinstance(entry["name"].data, str) else place
            name = entry["name"].data if label is not place else str(url).partition("://")[2]
            if name in names and label is not place:
                label.wrong(f"{label.shown} is already the name of the replica {names[name].where}")
            names.setdefault(name, label)


def access(root: At) -> None:
    """A pool has one token, and its TLS settings are of use."""
    for _, pool in root["pools"].items():
        tls, token = pool["tls"], pool["api_key_file"]
        if token.data is not None and pool["api_key"].data is not None:
            token.wrong("is given beside api_key: keep one of them", at_key=True)
        if tls["key_file"].data is not None and tls["cert_file"].data is None:
            tls["key_file"].wrong("is given without its certificate: write cert_file", at_key=True)
        places = [entry if isinstance(entry.data, str) else entry["url"] for entry in pool["replicas"].entries()]
        urls = [_read(values.read_url, place) for place in places]
        schemes = {str(url).partition(":")[0] for url in urls}
        if tls.data and schemes == {"http"} and pool["discover"].data is None:
            tls.wrong("has no effect: no replica of this pool has an https URL", at_key=True)


def cache_keys(root: At) -> None:
    """Separate caches of tenants need a secret, and an engine that takes a salt."""
    for _, pool in root["pools"].items():
        isolation, key, engine = pool["cache_isolation"], pool["cache_key"], pool["engine"]
        if isolation.data != "tenant":
            if key.data is not None:
                key.wrong("is not used: write cache_isolation: tenant with it, or leave it out", at_key=True)
            continue
        if engine.data not in (None, "vllm"):
            isolation.wrong(f"is for vllm, the engine here is {engine.shown}: give each tenant a pool instead")
        if key.data is None:
            isolation.wrong("tenant needs a secret for the salts: write cache_key: ${CACHE_KEY} in this pool")
        elif isinstance(key.data, str) and len(key.data) < MIN_CACHE_KEY:
            key.wrong(f"is too short for a secret: give at least {MIN_CACHE_KEY} characters", at_key=True)


def reserves(root: At) -> None:
    """Reserved shares must add up to at most 100%, and go to tiers that can use them."""
    for name, pool in root["pools"].items():
        total = 0.0
        for tier, place in pool["reserve"].items():
            total += _number(units.share, place) or 0.0
            bound = root["tiers"][tier]["pools"].names()
            if isinstance(root["tiers"].data, dict) and tier not in root["tiers"].data:
                place.wrong(f"{plain(tier)} is not a tier: {did_you_mean(tier, root['tiers'].data)}", at_key=True)
            elif bound and name not in bound:
                place.wrong(
                    f"the tier {plain(tier)} is bound to other pools: add {plain(name)} to its pools", at_key=True
                )
        if total > 1 + 1e-9:
            pool["reserve"].wrong(f"the shares add up to {units.write_share(total)}: at most 100%", at_key=True)


def floors(root: At) -> None:
    """The floors of all tiers must add up to at most 100%."""
    places = [tier["floor"] for _, tier in root["tiers"].items()]
    total = sum(_number(units.share, place) or 0.0 for place in places)
    if total > 1 + 1e-9:
        last = [place for place in places if _number(units.share, place)][-1]
        last.wrong(f"the floors of all tiers add up to {units.write_share(total)}: at most 100%")


def bindings(root: At) -> None:
    """A tier that is bound to pools must get at least one model there."""
    served = {pool for _, model in root["models"].items() for pool in model["pools"].names()}
    known = {name for name, _ in root["pools"].items()}
    for _, tier in root["tiers"].items():
        bound = tier["pools"].names()
        if served and bound and bound.keys() <= known and not served & bound.keys():
            tier["pools"].wrong("no model is served by these pools: add one that a model lists")


def objectives(root: At) -> None:
    """Each objective must have a threshold. A higher percentile must not have a smaller threshold."""
    for _, tier in root["tiers"].items():
        for metric in Metric:
            place = tier["slo"][metric.value]
            if not isinstance(place.data, dict):
                continue
            if not PERCENTILES.keys() & place.data.keys():
                place.wrong("has no percentile: write at least one, such as p99: 2s", at_key=True)
            below: At | None = None
            for percentile in PERCENTILES:
                threshold = place[percentile]
                value = _number(units.seconds, threshold)
                if value is None:
                    continue
                if below is not None and value < (_number(units.seconds, below) or 0.0):
                    threshold.wrong(
                        f"{threshold.shown} is less than {below.path[-1]} ({below.shown}): "
                        "a higher percentile needs a threshold at least as long"
                    )
                below = threshold


def answer_lengths(root: At) -> None:
    """The default length of an answer must be within its limit."""
    for _, tier in root["tiers"].items():
        default, limit = tier["max_tokens"]["default"], tier["max_tokens"]["limit"]
        if isinstance(default.data, int) and isinstance(limit.data, int) and default.data > limit.data:
            default.wrong(f"{default.shown} is more than the limit ({limit.shown}): lower it, or raise the limit")


def key_hashes(root: At) -> None:
    """No hash of a key may be listed twice."""
    first: dict[object, At] = {}
    for key in root["keys"].entries():
        place = key["sha256"]
        digest = _read(values.read_sha256, place)
        if digest is not None and first.setdefault(digest, place) is not place:
            place.wrong(f"this key is already listed {first[digest].where}: a key has one tenant and one tier")


def origins(root: At) -> None:
    """All web pages may use the API only if there are keys."""
    for place in root["listen"]["origins"].entries():
        if place.data == "*" and not root["keys"].data:
            place.wrong("* opens the replicas to every web page, since there are no keys: add keys, or list the pages")


def max_body(root: At) -> None:
    """The limit on bodies must be at least 1 KiB: a smaller one would refuse every request."""
    place = root["listen"]["max_body"]
    size = _read(units.byte_count, place)
    if isinstance(size, int) and size < MIN_BODY_BYTES:
        place.wrong(f"{units.write_size(size)} is too small for any request: write at least 1KiB, such as 64MiB")


CHECKS = (
    references,
    splits,
    mirrors,
    fallbacks,
    media,
    default_tier,
    aliases,
    replicas,
    access,
    cache_keys,
    reserves,
    floors,
    bindings,
    objectives,
    answer_lengths,
    key_hashes,
    origins,
    max_body,
)
