"""Request handler: checks the path, key and format of a request, and starts its exchange."""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Final
from urllib.parse import unquote

import orjson

from gateway.core.history import EarlyRefusal, Origin
from gateway.core.policy import ANONYMOUS, Model, Policy, Tier
from gateway.core.request import NO_PREFIX, WEIGHTLESS, Affinity, Endpoint, Request
from gateway.core.results import Reason
from gateway.core.serving import arm_of, no_model
from gateway.proxy.browsers import BrowserAccess
from gateway.proxy.callers import Caller, Callers, Catalog, callers_of
from gateway.proxy.count_tokens import CountingEndpoint, EngineCounter, ask_nobody
from gateway.proxy.exchanges.exchange import Exchange
from gateway.proxy.services import Client, ExchangeServices
from gateway.proxy.stored_responses import PREVIOUS
from gateway.wire.apis.table import served
from gateway.wire.body.content import MEDIA_BYTES
from gateway.wire.body.placeholders import Placeholders
from gateway.wire.errors.replies import Dialect, Problem, error_response
from gateway.wire.fingerprint import fingerprint
from gateway.wire.http.cors import preflight_lines
from gateway.wire.http.headers import BadHeader, RequestHead, asked_slo, wanted
from gateway.wire.http.written_heads import rate_limit_lines, trace_parent
from gateway.wire.isolation import salts
from gateway.wire.parsed import Parsed
from gateway.wire.prefix import MIN_BYTES, prefix_of
from gateway.wire.request import BadRequest, bad_request, only_of, parse
from gateway.wire.session import session_of, sticky_key
from gateway.wire.target import COUNTING, GETS, HEALTH, MODELS, POSTS, READY, dialect_of, nothing_at

OPTIONS: Final = b"OPTIONS"
_sha256: Final = sha256
_same: Final = hmac.compare_digest
_NOBODY: Final[tuple[bytes, Caller | None]] = (b"", None)


class RequestHandler:
    """Turns a request's head and body into a `Request`, or rejects it.

    A reload replaces `policy` between two requests. Accepted requests keep their policy.
    """

    def __init__(
        self,
        policy: Policy,
        services: ExchangeServices,
        catalog: Catalog,
        bound_host: str,
        ask_engine: EngineCounter = ask_nobody,
    ) -> None:
        """`bound_host`: the address of the API port. `ask_engine`: asks replicas for the length of a prompt."""
        self.services = services
        self.driver = services.driver
        self._bound_host = bound_host
        told, pictures = services.meter.token_count, services.pictures
        self.counting = CountingEndpoint(self.driver, self.find, self.only_model, told, pictures, ask_engine)
        self.configure(policy)
        self.leaving = False
        """Whether the process will end soon, so that load balancers should stop using it."""
        self.draining = False
        """Whether new connections are refused, and open connections are closed after their answer."""
        self._catalog = catalog
        self._listings: dict[str, tuple[Sequence[Mapping[str, object]], bytes]] = {}
        """Lists of models by tier, and their JSON."""

    def configure(self, policy: Policy, callers: Callers | None = None) -> None:
        """Apply a policy to all later requests. `callers`: the result of `callers_of`, if it is already computed."""
        self.policy = policy
        default = policy.tiers[policy.default_tier]
        self._anyone = None if policy.keys else Caller(ANONYMOUS, default, served(default))
        self._browsers = BrowserAccess(policy, self._bound_host)
        self.counting.configure(policy, self.driver.clock())
        self._callers = callers_of(policy) if callers is None else callers
        self.names = wanted({pool.sessions.header for pool in policy.pools.values()})
        """Names of the headers that are read."""

    @property
    def ready(self) -> bool:
        """Whether new requests are accepted."""
        return not self.leaving and self.driver.alive()

    # ---- with the head alone

    def check(
        self, method: bytes, path: bytes, head: RequestHead
    ) -> tuple[Endpoint | None, Caller | None, Problem | None]:
        """Check a request by its head. Returns (endpoint, caller, problem). The endpoint is None for a GET or HEAD, the
        problem is None if the request is accepted.
        """
        if head.has_origin and method == OPTIONS:
            return None, None, self._browsers.preflight_problem(head)
        endpoint = POSTS.get(path)
        if endpoint is None and path not in GETS and not path.startswith(MODELS + b"/"):
            return None, None, Problem(Reason.NOT_FOUND, nothing_at(path))
        if method != (b"GET" if endpoint is None else b"POST") and (endpoint is not None or method != b"HEAD"):
            return endpoint, None, Problem(Reason.METHOD_NOT_ALLOWED, allow="GET, HEAD" if endpoint is None else "POST")
        if path in (HEALTH, READY):
            return None, None, None
        caller = self._anyone
        if caller is not None:
            problem = self._browsers.problem(head)
            if problem is not None:
                return endpoint, caller, problem
        else:
            caller = self.caller(head)
            if caller is None:
                return endpoint, None, Problem(Reason.UNAUTHORIZED)
        if endpoint is not None and endpoint not in caller.serves:
            return endpoint, caller, Problem(Reason.NOT_FOUND, f"{endpoint.value} is not served in this tier.")
        return endpoint, caller, None

    def caller(self, head: RequestHead) -> Caller | None:
        """The caller whose key is in the head; None if the key is unknown."""
        given = head.key
        if not given:
            return None
        digest = _sha256(given).digest()
        known, caller = self._callers.get(digest, _NOBODY)
        # Only whole digests are compared, so the time of the comparison reveals nothing about a key.
        return caller if _same(known, digest) else None

    def limit_problem(self, path: bytes, endpoint: Endpoint, caller: Caller) -> Problem | None:
        """The limit that refuses any request of a tenant to this path now; None if there is none."""
        if path in COUNTING:
            exceeded = self.counting.exceeded(caller.tenant, caller.tier, self.driver.clock())
        else:
            least = 0 if endpoint in WEIGHTLESS else 1
            exceeded = self.driver.exceeded(caller.tenant, caller.tier, least)
        return None if exceeded is None else Problem(exceeded.why, retry_after_s=exceeded.wait_s)

    def dialect(self, path: bytes, head: RequestHead) -> Dialect:
        """The error format (OpenAI's or Anthropic's) that the client expects."""
        return dialect_of(path, head.anthropic)

    def greet(self, method: bytes, head: RequestHead, raw: bytes) -> None:
        """Set the CORS header lines, which tell a browser whether a web page may read the answer."""
        self._browsers.greet(head)
        if method == OPTIONS and head.cors:
            head.preflight = preflight_lines(raw)

    def rejection(
        self, dialect: Dialect, problem: Problem, head: RequestHead, caller: Caller | None, close: bool
    ) -> bytes:
        """The whole error answer to a request that never became a `Request`."""
        self.services.meter.refused_early(self._early(problem, head, caller))
        self.services.refusals.early(head.request_id, "" if caller is None else caller.tier.name, problem)
        lines = head.cors
        if caller is not None and problem.retry_after_s is not None:
            left = self.driver.left(caller.tenant, caller.tier.name)
            lines += rate_limit_lines(left).encode()
        return error_response(dialect, problem, head.request_id, lines, close=close)

    def _early(self, problem: Problem, head: RequestHead, caller: Caller | None) -> EarlyRefusal:
        early = EarlyRefusal(self.driver.clock(), problem.why.value, head.request_id)
        early.param, early.retry_after_s = problem.param or "", problem.retry_after_s
        if caller is not None:
            early.tenant, early.tier, early.key = caller.tenant, caller.tier.name, caller.key
        return early

    # ---- with the body

    def enter(
        self,
        client: Client,
        endpoint: Endpoint,
        caller: Caller,
        dialect: Dialect,
        head: RequestHead,
        body: bytes,
    ) -> Exchange | Problem:
        """Start the exchange of a complete request, or return why it is refused."""
        try:
            parsed = parse(endpoint, body, caller.tier.caps, self.policy.max_values)
        except BadRequest as exc:
            return bad_request(exc)
        return self.place(client, caller, dialect, head, parsed, len(body))

    def place(
        self,
        client: Client,
        caller: Caller,
        dialect: Dialect,
        head: RequestHead,
        parsed: Parsed,
        body_bytes: int,
    ) -> Exchange | Problem:
        """Start the exchange of a parsed request, or return why it is refused."""
        policy, tier, endpoint = self.policy, caller.tier, parsed.endpoint
        if tier.name not in policy.tiers:  # a reload has removed it since the head came
            _, found, problem = self.check(b"POST", endpoint.value.encode(), head)
            if problem is not None:
                return problem
            assert found is not None
            caller, tier = found, found.tier
        try:
            slo = asked_slo(head, tier.slo)
            if not parsed.model:
                parsed.model = self.only_model(tier)
        except BadHeader as header:  # another name than above, because a name has only one type in compiled code
            return Problem(Reason.BAD_REQUEST, str(header), param=header.name)
        except BadRequest as exc:
            return bad_request(exc)
        model, adapter = self.find(parsed.model, tier)
        if model is None:
            return self.no_model(parsed.model, tier)
        before = None
        asked = model
        previous = parsed.fields.get(PREVIOUS) if endpoint is Endpoint.RESPONSES else None
        if previous is not None:
            before = self.services.responses.find(caller.tenant, previous, self.driver.clock())
            model = None if before is None else before.serves(policy, asked, tier)
            if before is None or model is None:
                message = f"Previous response with id '{previous}' not found."
                return Problem(Reason.RESPONSE_NOT_FOUND, message, param=PREVIOUS)
        pools = [policy.pools[pool] for pool in model.pools]
        session = session_of(head, caller.tenant, parsed.fields, pools)
        split = asked.name if asked.split else ""
        by_fallback = model is not asked and not split
        if model.split:
            model = arm_of(policy, model, tier, sticky_key(session, caller.tenant, head.request_id))
        prompt_bytes, fields = parsed.prompt_bytes, parsed.fields
        if tier.caps.media and prompt_bytes >= MEDIA_BYTES:
            known_as = parsed.model if model.any_name else model.name
            placeholders = Placeholders(fields, self.services.pictures.factor(known_as))
            parsed.picture_tokens = placeholders.picture_tokens
            prompt_bytes += placeholders.correction
            fields = placeholders.fields
        prefix = NO_PREFIX
        if before is not None:
            prefix = before.prefix_of(parsed, adapter)
        elif parsed.cap_field and prompt_bytes >= MIN_BYTES:
            has_media = fields is not parsed.fields
            prefix = prefix_of(
                fields, adapter, caller.tenant if salts(pools) else "", has_media, b"" if has_media else parsed.payload
            )
        affinity = Affinity(prefix, session, None if before is None else before.stored, "" if by_fallback else adapter)
        body_at = self.driver.clock()
        request = Request(
            id=self.driver.next_id(),
            policy=policy,
            tier=tier,
            model=model,
            tenant=caller.tenant,
            endpoint=endpoint,
            stream=parsed.stream,
            prompt_bytes=prompt_bytes,
            prompt_exact=parsed.prompt_exact,
            max_tokens=parsed.max_tokens,
            choices=parsed.choices,
            body_bytes=body_bytes,
            head_at=head.at,
            body_at=body_at,
            batch=parsed.batch,
            asked_model=parsed.model if model.any_name else "",
            body_hash=fingerprint(parsed) if self.driver.suspects(body_at) else None,
            slo=slo,
            assembled=parsed.assembled,
            split=split,
            affinity=affinity,
            comeback=head.comes_back,
            fallback_of=asked.name if by_fallback else "",
            is_token_ids=parsed.prompt_exact is not None,
            truncates="truncate_prompt_tokens" in parsed.fields or parsed.fields.get("truncation") == "auto",
            origin=Origin(head.request_id, caller.key, trace_parent(head)),
        )
        head.trace_ratio = self.services.trace_ratio
        exchange = Exchange(self.services, client, dialect, head, parsed, request)
        parsed.let_go()
        return exchange

    def find(self, name: str, tier: Tier) -> tuple[Model | None, str]:
        """Returns (the model that serves requests for `name`, or None; the LoRA adapter of that name, or empty)."""
        policy, catalog = self.policy, self._catalog
        model = policy.models.get(name)
        if model is not None and not model.any_name:
            return model, ""
        base = catalog.base_of(policy, name, tier)
        if base is not None:
            return base, name
        model = policy.models.get("*")
        if model is None or catalog.one(policy, name, tier) is None:
            return None, ""
        return model, name if catalog.is_adapter(policy.route(model, tier), name) else ""

    def only_model(self, tier: Tier) -> str:
        """The model of a request that names none. Raises BadRequest unless there is exactly one that `tier` may use."""
        names = self._catalog.usable(self.policy, tier)
        if not names and "*" in self.policy.models:  # the replicas' lists will tell
            why = "no replica has listed its models yet: name one, or try again"
            raise BadRequest("model", why, None, Reason.NO_REPLICAS)
        return only_of(names)

    def read(self, path: bytes, caller: Caller | None) -> tuple[int, bytes] | Problem:
        """The answer to a GET: (status, JSON body)."""
        if path == HEALTH:
            return 200, b'{"status":"ok"}'
        if path == READY:
            return (200, b'{"status":"ready"}') if self.ready else (503, b'{"status":"not ready"}')
        tier = None if caller is None else caller.tier
        if path == MODELS:
            return 200, self._listing(tier)
        name = unquote(path[len(MODELS) + 1 :].decode("utf-8", "replace"))
        model = self._catalog.one(self.policy, name, tier)
        return self.no_model(name, tier) if model is None else (200, orjson.dumps(model))

    def no_model(self, name: str, tier: Tier | None) -> Problem:
        """The error for a model that does not exist. It names some that do."""
        listed = () if tier is None else self._catalog.usable(self.policy, tier)
        return Problem(Reason.MODEL_NOT_FOUND, no_model(name, listed), param="model")

    def _listing(self, tier: Tier | None) -> bytes:
        """The JSON of all models. It is made again only when the catalog gives another list."""
        listed, key = self._catalog.listing(self.policy, tier), "" if tier is None else tier.name
        written = self._listings.get(key)
        if written is None or written[0] is not listed:
            written = self._listings[key] = listed, orjson.dumps({"object": "list", "data": listed})
        return written[1]
