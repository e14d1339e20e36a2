"""A journal with gaps can be read: missing calls are counted, and do not block rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from math import inf
from pathlib import Path
from random import Random
from typing import Any

import pytest

from gateway.core.journal.recorder import Decoder, Encoder, Recorded, Told
from gateway.core.policy import Policy
from gateway.core.pool_spec import Timeouts
from gateway.core.results import AttemptOutcome, AttemptResult
from gateway.observe.journal.replay import NotReplayable
from gateway.sim.workload.trace_formats import TraceRow
from loadtests.traces.journal import NO_TOTAL_S, JournalRows
from tests.core.made import a_request, policy, pool, tier
from tests.loadtests.traces.test_convert import arrivals, converted

TOTAL_S = 5.0
POLICY = policy(pool("p", "r1", slots=100), tier("std", timeouts=Timeouts(60.0, 60.0, 60.0, TOTAL_S)))
UNLIMITED = policy(pool("p", "r1", slots=100), tier("std", timeouts=Timeouts(60.0, 60.0, 60.0, inf)))
Drop = Callable[[Any], bool]


def is_call(name: str, request: int) -> Drop:
    """Requests are sent in order of arrival, so that an attempt has the number of its request."""
    return lambda row: (
        isinstance(row, list)
        and row[1] == name
        and (row[2][0]["Request"][0] if name == "arrive" else row[2][0]) == request
    )


def answered(requests: int, first_s: float = 0.5, rules: Policy = POLICY, then: Policy | None = None) -> list[Any]:
    """The rows of this many requests, one a second. Each takes half a second, but the first may take longer.

    Request n has an answer of 10 + n tokens. `then` is the policy after the third.
    """
    told: list[Told] = []
    controller = Recorded(rules, Random(1), told.append)
    events = [(float(n), n, False) for n in range(1, requests + 1)]
    events += [(n + (first_s if n == 1 else 0.5), n, True) for n in range(1, requests + 1)]
    for at, number, ends in sorted(events):
        if ends:
            controller.finish(number, AttemptResult(AttemptOutcome.COMPLETE, 100, 10 + number), at)
            continue
        if number == 4 and then is not None:
            controller.configure(then, at)
        controller.arrive(a_request(number, rules if then is None or number < 4 else then, at, max_tokens=2000), at)
        controller.sent(number, at)
    encoder = Encoder(rules)
    header = {"journal": 3, "run": "r", "part": 1, "version": "1", **encoder.header(1)}
    rows: list[Any] = json.loads(json.dumps([header, *encoder.rows(told)]))
    return rows


def lost(rows: Sequence[Any], *drops: Drop) -> list[Any]:
    """The same, with a gap for every row for which a condition is true."""
    return [{"gap": 1} if any(drop(row) for drop in drops) else row for row in rows]


def written(folder: Path, rows: Sequence[Any]) -> Path:
    file = folder / "calls.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def lengths(rows: Sequence[TraceRow]) -> dict[float, int]:
    """Tokens of the answers, by time of arrival."""
    return {row.at: row.output_tokens for row in rows}


def followed(journal: JournalRows) -> dict[float, float]:
    """The journal time at which each request was returned, by time of arrival."""
    return {row.at: journal.now for row in journal.rows()}


def test_a_request_whose_arrival_is_missing_is_left_out_and_counted(tmp_path: Path) -> None:
    file = written(tmp_path, lost(answered(4), is_call("arrive", 2)))
    journal = JournalRows([file])
    assert lengths(list(journal.rows())) == {1.0: 11, 3.0: 13, 4.0: 14}
    assert (journal.missing, journal.only_ended, journal.guessed) == (1, 1, 0)
    done = converted(file, out=tmp_path / "out.jsonl")
    assert done.exit_code == 0, done.stderr
    assert "1 calls are missing in the journal: requests may be among them" in done.stderr
    assert "1 requests are left out: the journal has their end, but not their arrival" in done.stderr
    assert len(arrivals(tmp_path / "out.jsonl")) == 3


def test_journal_gap_before_the_first_call_is_handled_like_any_other(tmp_path: Path) -> None:
    journal = JournalRows([written(tmp_path, lost(answered(3), is_call("arrive", 1)))])
    assert lengths(list(journal.rows())) == {2.0: 12, 3.0: 13}
    assert (journal.missing, journal.only_ended) == (1, 1)


@pytest.mark.parametrize("gap_at", [None, -1])
def test_request_end_without_an_arrival_is_an_error_unless_a_gap_precedes_it(
    tmp_path: Path, gap_at: int | None
) -> None:
    rows = [row for row in answered(4) if not is_call("arrive", 2)(row)]
    if gap_at is not None:
        rows.append({"gap": 1})
    with pytest.raises(NotReplayable, match=r"calls\.jsonl:6: request 2 never arrived"):
        list(JournalRows([written(tmp_path, rows)]).rows())


def test_request_without_an_end_delays_others_only_until_its_total_timeout(tmp_path: Path) -> None:
    journal = JournalRows([written(tmp_path, lost(answered(100), is_call("finish", 1)))])
    left_at = followed(journal)
    # It arrived at 1; the first call after 6 is the end of another request.
    assert [left_at[float(at)] for at in (1, 2, 5)] == [6.5, 6.5, 6.5]
    assert [left_at[float(at)] for at in (6, 7, 100)] == [6.5, 7.5, 100.5]
    assert (journal.missing, journal.guessed, journal.only_ended) == (1, 1, 0)


def test_requests_without_an_end_are_not_kept_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only their numbers are kept, so that a late end is not taken for an unknown request's. The decoder keeps them,
    too."""
    decoders: list[Decoder] = []

    def kept(about: Mapping[str, object]) -> Decoder:
        decoders.append(Decoder(about))
        return decoders[-1]

    monkeypatch.setattr("loadtests.traces.journal.Decoder", kept)
    rows = lost(answered(300), *(is_call("finish", number) for number in range(1, 300, 2)))
    journal = JournalRows([written(tmp_path, rows)])
    held = [max(journal.waiting, journal.open, len(decoders[0].open_requests)) for _ in journal.rows()]
    assert max(held) <= TOTAL_S + 2
    assert (journal.missing, journal.guessed) == (150, 150)


def test_answer_with_a_missing_end_has_the_length_of_the_last_similar_one(tmp_path: Path) -> None:
    rows = lost(answered(20), is_call("finish", 3))
    found = lengths(list(JournalRows([written(tmp_path, rows)]).rows()))
    assert found[3.0] == 18  # the call of the request that ended at 8.5, when 3 + TOTAL_S was over
    assert {at: tokens for at, tokens in found.items() if at != 3.0} == {
        float(n): 10 + n for n in range(1, 21) if n != 3
    }


@pytest.mark.parametrize("gaps", [1, 2])
def test_request_whose_end_follows_the_gap_counts(tmp_path: Path, gaps: int) -> None:
    """The gap did not contain this end, so rows wait for it as without a gap."""
    drops = [is_call("sent", number) for number in range(2, 2 + gaps)]
    journal = JournalRows([written(tmp_path, lost(answered(20, first_s=4.75), *drops))])
    rows = list(journal.rows())
    assert [row.at for row in rows] == [float(n) for n in range(1, 21)]
    assert lengths(rows) == {float(n): 10 + n for n in range(1, 21)}
    assert (journal.missing, journal.guessed, journal.only_ended) == (gaps, 0, 0)


def test_end_of_a_request_that_was_given_up_is_not_counted_again(tmp_path: Path) -> None:
    journal = JournalRows([written(tmp_path, lost(answered(20, first_s=9.75), is_call("sent", 2)))])
    rows = list(journal.rows())
    assert len(rows) == 20
    assert (journal.missing, journal.guessed, journal.only_ended) == (1, 1, 0)
    assert journal.given_up == 0


def test_request_in_a_journal_without_a_gap_is_never_given_up(tmp_path: Path) -> None:
    journal = JournalRows([written(tmp_path, answered(20, first_s=9.75))])
    assert lengths(list(journal.rows()))[1.0] == 11
    assert (journal.missing, journal.guessed) == (0, 0)


def test_end_of_a_request_without_total_timeout_is_awaited_for_the_default_timeout(
    tmp_path: Path,
) -> None:
    requests = round(NO_TOTAL_S) + 50
    rows = lost(answered(requests, rules=UNLIMITED), is_call("finish", 1), is_call("sent", 30))
    journal = JournalRows([written(tmp_path, rows)])
    left_at = followed(journal)
    # The first call after the gap is at 2; the next one is half a second later.
    assert left_at[1.0] == 2.0 + NO_TOTAL_S + 0.5
    assert left_at[float(requests)] == requests + 0.5
    assert (journal.guessed, journal.only_ended) == (1, 0)


def test_journal_gap_longer_than_the_wait_for_an_end_gives_no_request_up(tmp_path: Path) -> None:
    """Only after the gap is it known which calls are missing."""
    requests, after_s = round(NO_TOTAL_S) + 200, NO_TOTAL_S + 100.0
    rows = answered(requests, first_s=after_s + 50.25, rules=UNLIMITED)
    journal = JournalRows(
        [written(tmp_path, lost(rows, lambda row: isinstance(row, list) and 2.0 <= row[0] < after_s))]
    )
    assert lengths(list(journal.rows()))[1.0] == 11
    assert journal.guessed == 0


def test_requests_under_a_missing_policy_count_as_missing(tmp_path: Path) -> None:
    """Journals of older versions: a policy that met a full disk was never written again."""
    later = policy(pool("p", "r1", "r2", slots=100), tier("std", timeouts=Timeouts(total_s=TOTAL_S)), generation=1)
    rows = answered(6, then=later)
    (let,) = (row for row in rows if "let" in row)
    journal = JournalRows([written(tmp_path, lost(rows, lambda row: row is let))])
    assert lengths(list(journal.rows())) == {1.0: 11, 2.0: 12, 3.0: 13}
    assert (journal.missing, journal.only_ended) == (1, 3)
    rows.remove(let)
    with pytest.raises(NotReplayable, match="no earlier line describes Policy '2'"):
        list(JournalRows([written(tmp_path, rows)]).rows())
