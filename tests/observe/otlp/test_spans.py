"""The bytes of spans say what the official classes say of the same requests."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Span

from gateway.core.history import AttemptHistory, History, Origin
from gateway.core.request import Endpoint
from gateway.core.results import AttemptOutcome, HedgeResult, Outcome, Reason, Record
from gateway.observe.otlp.spans import spans_of
from gateway.observe.requests.row import RequestRow
from tests.observe.made import ASK, OK
from tests.observe.otlp.official import spans

WALL_S = 1.7e9
TEXTS = st.text(max_size=300)
SECONDS = st.floats(0.0, 1e5)
TOKENS = st.none() | st.integers(0, 2**62)


@st.composite
def attempts(draw: st.DrawFn) -> AttemptHistory:
    end = draw(st.sampled_from(AttemptOutcome)).value
    attempt = AttemptHistory("short", draw(TEXTS), draw(st.booleans()), end, draw(SECONDS), draw(SECONDS))
    attempt.id = draw(st.integers(1, 2**40))
    attempt.first_at, attempt.answer_id = draw(st.none() | SECONDS), draw(TEXTS)
    attempt.status = draw(st.none() | st.integers(100, 599))
    attempt.prompt_tokens, attempt.output_tokens = draw(TOKENS), draw(TOKENS)
    attempt.cached_tokens, attempt.reasoning_tokens = draw(TOKENS), draw(TOKENS)
    return attempt


@st.composite
def histories(draw: st.DrawFn) -> History:
    tried = draw(st.lists(attempts(), max_size=3, unique_by=lambda attempt: attempt.id))
    history = History(tried, 100, draw(st.integers(0, 2**31)))
    history.answered_by = draw(st.sampled_from([0, *(attempt.id for attempt in tried)]))
    history.rule, history.binds = draw(TEXTS), draw(st.sampled_from(["", "TTFT p99"]))
    history.wait_s, history.ttft_s = draw(st.none() | SECONDS), draw(st.none() | SECONDS)
    return history


PARENTS = st.sampled_from(["", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"])
REQUESTS = st.builds(
    lambda origin, **fields: replace(ASK, origin=origin, **fields),
    st.builds(Origin, TEXTS, st.just(""), PARENTS),
    tenant=TEXTS,
    endpoint=st.sampled_from(Endpoint),
    stream=st.booleans(),
)
RECORDS = st.builds(
    Record,
    request=REQUESTS,
    outcome=st.sampled_from(Outcome),
    why=st.none() | st.sampled_from(Reason),
    pool=st.none() | TEXTS,
    replica=st.none(),
    queue_s=SECONDS,
    ttft_s=st.none() | SECONDS,
    tpot_s=st.none(),
    e2e_s=SECONDS,
    prompt_tokens=st.just(OK.prompt_tokens),
    output_tokens=st.just(OK.output_tokens),
    tokens_exact=st.booleans(),
    good=st.booleans(),
    attempts=st.integers(0, 3),
    breach=st.none() | st.floats(0.0, 1.0),
    hedged=st.none() | st.sampled_from(HedgeResult),
    waited=st.booleans(),
    history=st.none() | histories(),
)


@given(RECORDS, st.sampled_from(["http", "https"]))
def test_spans_are_those_of_the_official_classes(record: Record, scheme: str) -> None:
    row = RequestRow(record)
    told = [*ScopeSpans.FromString(spans_of(row, WALL_S, scheme)).spans]
    assert all(len(span.span_id) == 8 for span in told)
    expected = spans(row, WALL_S, scheme)
    for span, official in zip(told, expected, strict=True):
        if official is not expected[0]:
            official.parent_span_id = official.parent_span_id or told[0].span_id
        official.span_id = official.span_id or span.span_id
        assert _in_order(span) == _in_order(official)


def _in_order(span: Span) -> Span:
    """The same span, whose attributes are in the order of their names: OTLP gives them none."""
    there = sorted(span.attributes, key=lambda one: one.key)
    span.ClearField("attributes")
    span.attributes.extend(there)
    return span
