"""Responses that engines store are continued where they were made, by the tenant that got them, and by nobody else."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import orjson
import pytest

from gateway.app import Gateway
from gateway.core.policy import Caps, Model
from gateway.core.request import Endpoint, Prefix
from gateway.core.results import Outcome, Record
from gateway.core.sessions import StoredResponse
from gateway.policy import load_text
from gateway.proxy import stored_responses
from gateway.proxy.stored_responses import MAX_AGE_S, StoredResponses
from gateway.settings import Settings
from gateway.wire.request import parse
from loadtests.emulator import Emulator
from tests.core.made import a_request, policy, pool, tier
from tests.interpreted import interpreted

KEYS = {"acme": "key-of-acme", "other": "key-of-other"}
POLICY = """\
apiVersion: tailgate/v1
models: {{emulated: {{pools: [main]}}, small: {{pools: [main], upstream: emulated}}}}
pools: {{main: {{replicas: [{urls}], router: round-robin}}}}
tiers: {{standard: {{max_tokens: {{default: 8, limit: 64}}, caps: {{stored_responses: {on}}}}}}}
keys: [{keys}]
"""


@pytest.fixture
async def emulator() -> AsyncIterator[Emulator]:
    async with Emulator(replicas=3, responses_store=True) as emulator:
        yield emulator


async def gateways(emulator: Emulator, on: bool) -> AsyncIterator[Gateway]:
    digests = {tenant: hashlib.sha256(key.encode()).hexdigest() for tenant, key in KEYS.items()}
    keys = ", ".join(f"{{tenant: {tenant}, sha256: {digest}}}" for tenant, digest in digests.items())
    text = POLICY.format(urls=", ".join(emulator.urls), on=str(on).lower(), keys=keys)
    settings = Settings(port=0, admin_port=0, drain_deadline_s=0.0)
    async with Gateway(settings, load_text(text, "policy.yaml", {})) as gateway:
        yield gateway


@pytest.fixture
async def gateway(emulator: Emulator) -> AsyncIterator[Gateway]:
    async for gateway in gateways(emulator, True):
        yield gateway


@pytest.fixture
async def stateless(emulator: Emulator) -> AsyncIterator[Gateway]:
    async for gateway in gateways(emulator, False):
        yield gateway


def client(gateway: Gateway, tenant: str = "acme") -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=KEYS[tenant], max_retries=0)


async def ask(gateway: Gateway, said: str, tenant: str = "acme", **fields: Any) -> Any:
    async with client(gateway, tenant) as asks:
        answer = await asks.responses.create(model="emulated", input=said, max_output_tokens=8, **fields)
        return [event async for event in answer][-1].response if fields.get("stream") else answer


async def refusal(gateway: Gateway, tenant: str = "acme", **fields: Any) -> openai.BadRequestError:
    with pytest.raises(openai.BadRequestError) as caught:
        await ask(gateway, "And now?", tenant, **fields)
    return caught.value


def received(emulator: Emulator) -> list[list[dict[str, Any]]]:
    return [[orjson.loads(request.body) for request in replica.requests] for replica in emulator.replicas]


@pytest.mark.parametrize("stream", [False, True])
async def test_continued_response_goes_to_the_replica_that_stored_the_previous_one(
    gateway: Gateway, emulator: Emulator, stream: bool
) -> None:
    previous, tokens = None, []
    for turn in range(4):
        said = await ask(gateway, f"turn {turn}", previous_response_id=previous, stream=stream)
        previous = said.id
        tokens.append(said.usage.input_tokens)
        await ask(gateway, "a request between")
    turns = [[body for body in at if body["input"].startswith("turn")] for at in received(emulator)]
    assert sorted(map(len, turns)) == [0, 0, 4]
    assert [body.get("previous_response_id") for body in max(turns, key=len)].count(None) == 1
    assert tokens == sorted(set(tokens)), "each turn has the conversation before it in its prompt"


async def test_stored_response_is_kept_with_the_tokens_of_its_prompt_and_answer(gateway: Gateway) -> None:
    first = await ask(gateway, "word " * 3000)
    await ask(gateway, "And now?", previous_response_id=first.id)
    found = gateway.handler.services.responses.find("acme", first.id, gateway.handler.driver.clock())
    assert found is not None
    assert found.stored.tokens == first.usage.total_tokens > 3000
    assert len(gateway.handler.services.responses) == 2


async def test_previous_response_id_that_the_gateway_never_passed_on_is_not_forwarded(
    gateway: Gateway, emulator: Emulator
) -> None:
    error = await refusal(gateway, previous_response_id="resp_1")
    assert error.code == "previous_response_not_found"
    assert error.param == "previous_response_id"
    assert error.body["message"] == "Previous response with id 'resp_1' not found."  # type: ignore[index]
    assert received(emulator) == [[], [], []]


async def test_stored_response_of_another_tenant_is_not_found(gateway: Gateway) -> None:
    first = await ask(gateway, "Hello.")
    assert (await refusal(gateway, "other", previous_response_id=first.id)).code == "previous_response_not_found"
    await ask(gateway, "And now?", previous_response_id=first.id)


async def test_response_with_store_false_is_not_found(gateway: Gateway, emulator: Emulator) -> None:
    first = await ask(gateway, "Hello.", store=False)
    assert (await refusal(gateway, previous_response_id=first.id)).code == "previous_response_not_found"
    assert [body["store"] for at in received(emulator) for body in at] == [False]


async def test_stored_response_cannot_be_continued_by_another_model(gateway: Gateway) -> None:
    first = await ask(gateway, "Hello.")
    async with client(gateway) as asks:
        with pytest.raises(openai.BadRequestError, match="not found"):
            await asks.responses.create(model="small", input="And now?", previous_response_id=first.id)


async def test_response_that_its_engine_lost_is_asked_for_once_and_then_forgotten(
    gateway: Gateway, emulator: Emulator
) -> None:
    first = await ask(gateway, "Hello.")
    for replica in emulator.replicas:
        assert replica.stored is not None
        replica.stored.clear()
    for asked in (1, 0):
        before = sum(map(len, received(emulator)))
        assert (await refusal(gateway, previous_response_id=first.id)).code == "previous_response_not_found"
        assert sum(map(len, received(emulator))) == before + asked, "its engine is asked once"


async def test_tier_without_stored_responses_cannot_continue_a_response(stateless: Gateway, emulator: Emulator) -> None:
    first = await ask(stateless, "Hello.", store=True)
    error = await refusal(stateless, previous_response_id=first.id)
    assert error.code == "unsupported_parameter"
    assert [body["store"] for at in received(emulator) for body in at] == [False]
    assert len(stateless.handler.services.responses) == 0


async def test_previous_response_id_with_invalid_characters_is_refused(gateway: Gateway) -> None:
    for given in ("", "resp 1", "résp", "r" * 257):
        assert (await refusal(gateway, previous_response_id=given)).param == "previous_response_id"


async def test_conversation_field_is_refused_with_an_error_that_no_engine_supports_it(gateway: Gateway) -> None:
    async with httpx.AsyncClient(base_url=gateway.url, headers={"authorization": f"Bearer {KEYS['acme']}"}) as raw:
        answer = await raw.post("/v1/responses", json={"model": "emulated", "input": "x", "conversation": "conv_1"})
    assert answer.status_code == 400
    assert "no engine has it" in answer.json()["error"]["message"]


# ---- the table by itself


def record(
    replica: str = "r1",
    prefix: Prefix = Prefix(),  # noqa: B008
    outcome: Outcome = Outcome.OK,
    tenant: str = "acme",
) -> Record:
    request = a_request(1, policy(pool("p", "r1")), 0.0, endpoint=Endpoint.RESPONSES, prefix=prefix, tenant=tenant)
    return Record(request, outcome, None, "p", replica, 0.0, None, None, 1.0, 100, 20, True, True, 1)


def test_stored_response_is_forgotten_after_an_engine_restart_or_a_day() -> None:
    restarts = {"r1": 0}
    table = StoredResponses(restarts.__getitem__)
    table.keep(record(), 0, b'"resp_1"', 0.0)
    table.keep(record(), 0, b'"resp_2"', 10.0)
    assert table.find("acme", "resp_1", MAX_AGE_S) is not None
    assert table.find("acme", "resp_1", MAX_AGE_S + 1.0) is None
    assert table.find("acme", "resp_2", MAX_AGE_S + 1.0) is not None
    restarts["r1"] = 1
    assert table.find("acme", "resp_2", 11.0) is None
    assert len(table) == 0


@pytest.mark.parametrize("raw", [b"", b'""', b"null", b"7", b'"' + b"x" * 257 + b'"', b'["resp_1"]', b'"\xff"'])
def test_response_without_a_usable_id_is_not_remembered_for_continuation(raw: bytes) -> None:
    table = StoredResponses(lambda _: 0)
    table.keep(record(), 0, raw, 0.0)
    assert len(table) == 0


def test_failed_response_is_not_remembered_for_continuation() -> None:
    table = StoredResponses(lambda _: 0)
    for outcome in (Outcome.CUT, Outcome.ABANDONED, Outcome.ERROR):
        table.keep(record(outcome=outcome), 0, b'"resp_1"', 0.0)
    assert len(table) == 0


def test_stored_response_is_forgotten_only_after_a_404_that_names_it() -> None:
    table = StoredResponses(lambda _: 0)
    table.keep(record(), 0, b'"resp_1"', 0.0)
    body = b'{"model": "m", "input": "x", "previous_response_id": "resp_1"}'
    parsed = parse(Endpoint.RESPONSES, body, Caps(stored_responses=True))
    rules = policy(pool("p", "r1"))
    goes_on, begins = (a_request(1, rules, 0.0, stored=stored) for stored in (StoredResponse("r1", 9), None))
    assert not table.is_lost(goes_on, parsed, [b"The model does ", b"not exist."])
    assert not table.is_lost(begins, parsed, [b"Response with id 'resp_1' not found."])
    assert table.find("acme", "resp_1", 0.0) is not None
    assert table.is_lost(goes_on, parsed, [b"Response with id 'resp", b"_1' not found."])
    assert table.find("acme", "resp_1", 0.0) is None


@interpreted
def test_oldest_stored_responses_are_forgotten_when_memory_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_responses, "MAX_BYTES", 10 * stored_responses.ENTRY_BYTES)
    table = StoredResponses(lambda _: 0)
    for number in range(50):
        table.keep(record(), 0, b'"resp_%d"' % number, 0.0)
    assert len(table) == 10
    assert table.find("acme", "resp_39", 0.0) is None
    assert table.find("acme", "resp_40", 0.0) is not None
    long = Prefix(tuple(range(60)), tuple(range(60)), 60)
    table.keep(record(prefix=long), 0, b'"long"', 0.0)
    assert len(table) == 4, "a long prompt takes the room of several"


@interpreted
def test_stored_responses_of_the_tenant_that_holds_most_are_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_responses, "MAX_BYTES", 20 * stored_responses.ENTRY_BYTES)
    table = StoredResponses(lambda _: 0)
    table.keep(record(tenant="modest"), 0, b'"first"', 0.0)
    long = Prefix(tuple(range(20)), tuple(range(20)), 20)
    for number in range(650):
        table.keep(record(prefix=long, tenant="greedy"), 0, b'"resp_%d"' % number, 1.0)
    assert table.find("modest", "first", 2.0) is not None
    assert table.find("greedy", "resp_649", 2.0) is not None
    for number in range(30):
        table.keep(record(tenant="third"), 0, b'"resp_%d"' % number, 3.0)
    assert table.find("modest", "first", 4.0) is not None
    assert table.find("greedy", "resp_649", 4.0) is not None, "no tenant has more than its share now"
    table.forget("modest", "first")
    assert table.find("modest", "first", 5.0) is None


def test_split_model_and_fallback_can_continue_the_responses_that_they_gave() -> None:
    rules = policy(
        pool("p", "r1"), models=(Model("m", ("p",)), Model("n", ("p",)), Model("s", ("p",), split=(("m", 9),)))
    )
    table = StoredResponses(lambda _: 0)
    table.keep(record(), 0, b'"resp_1"', 0.0)
    found = table.find("acme", "resp_1", 0.0)
    assert found is not None
    for asked, own_tier, serves in (
        ("m", tier("t"), True),
        ("s", tier("t"), True),
        ("n", tier("t"), False),
        ("n", tier("t", fallback="m"), True),
    ):
        assert (found.serves(rules, rules.models[asked], own_tier) is rules.models["m"]) is serves
