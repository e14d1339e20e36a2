"""Recorded traffic: public formats are read, and errors are reported by line."""

from __future__ import annotations

import gzip
import json
import os
import re
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path

import pytest

from gateway.sim.workload.arrivals import Arrival
from gateway.sim.workload.load import load_workload
from gateway.sim.workload.traces import Mix, Trace, TraceError, mix_of, open_trace

AZURE_2023 = """TIMESTAMP,ContextTokens,GeneratedTokens\r
2023-11-16 18:15:46.6805900,374,44\r
2023-11-16 18:15:50.9951690,396,109\r
2023-11-16 18:15:51.2224670,879,55\r
"""
AZURE_2024 = """TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 23:59:59.500000+00:00,1452,3
2024-05-11 00:00:00.009930+00:00,546,0
2024-05-11 00:00:01.000000+00:00,7,8
"""
BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,230,1317,Conversation log
45,GPT-4,417,276,693,API log
118,ChatGPT,1360,0,1360,API log
"""
MOONCAKE = """{"timestamp": 0, "input_length": 6755, "output_length": 500, "hash_ids": [0, 1, 2]}
{"timestamp": 0, "input_length": 7319, "output_length": 490, "hash_ids": [0, 13, 14]}
{"timestamp": 0, "input_length": 7234, "output_length": 794, "hash_ids": [0, 27]}
{"timestamp": 2000, "input_length": 10, "output_length": 4, "hash_ids": []}
{"timestamp": 5003, "input_length": 11, "output_length": 5, "hash_ids": [9]}
"""


OWN = '{"at": 0, "prompt_tokens": 1, "output_tokens": 1}\n'


def trace(folder: Path, text: str, mix: Mix | None = None) -> Trace:
    file = folder / "trace"
    file.write_bytes(text.encode())
    return open_trace(file, mix or Mix())


def test_azure_2023_trace_counts_time_from_its_first_request(tmp_path: Path) -> None:
    arrivals = list(trace(tmp_path, AZURE_2023).arrivals(1))
    assert [a.at for a in arrivals] == pytest.approx([0.0, 4.314579, 4.541877], abs=1e-6)
    assert [(a.prompt_tokens, a.output_tokens) for a in arrivals] == [(374, 44), (396, 109), (879, 55)]
    assert arrivals == list(trace(tmp_path, AZURE_2023).arrivals(2))


def test_azure_2024_trace_has_time_zones_and_failed_requests(tmp_path: Path) -> None:
    arrivals = list(trace(tmp_path, AZURE_2024).arrivals(1))
    assert [(a.at, a.prompt_tokens) for a in arrivals] == [(0.0, 1452), (1.5, 7)]


def test_burstgpt_trace_is_spread_within_seconds_and_leaves_failures_out(tmp_path: Path) -> None:
    arrivals = list(trace(tmp_path, BURSTGPT).arrivals(1))
    assert sorted(a.prompt_tokens for a in arrivals) == [417, 472, 1087]
    assert 0 <= arrivals[0].at < 1
    assert all(40 <= a.at < 41 for a in arrivals[1:])
    assert arrivals[1].at < arrivals[2].at


def test_mooncake_trace_is_spread_within_ticks_by_seed_and_keeps_its_hashes(tmp_path: Path) -> None:
    mooncake = trace(tmp_path, MOONCAKE)
    arrivals = list(mooncake.arrivals(1))
    assert arrivals == list(mooncake.arrivals(1))
    assert arrivals != list(mooncake.arrivals(2))
    assert all(a.at <= b.at for a, b in pairwise(arrivals))
    assert {a.prompt_tokens for a in arrivals[:3]} == {6755, 7319, 7234}
    # A tick ends where the next begins, or after three seconds.
    assert all(0 <= a.at < 2 for a in arrivals[:3])
    assert len({a.at for a in arrivals[:3]}) == 3
    # A single request in a millisecond keeps its time.
    assert [a.at for a in arrivals[3:]] == pytest.approx([2.0, 5.003])
    assert {a.prompt_tokens: a.prefix for a in arrivals}[7319] == (0, 13, 14)


def test_tailgate_trace_keeps_every_field_when_written_and_read(tmp_path: Path) -> None:
    arrivals = [
        Arrival(1.25, "gold", "acme", "m", 10, 3, stream=False, max_tokens=5, session=7, prefix=(1, 2)),
        Arrival(1.0 / 3 + 1, "iron", "iron-1", "m", 11, 4),
    ]
    written = "".join(f"{json.dumps(asdict(arrival))}\n" for arrival in arrivals)
    assert list(trace(tmp_path, written).arrivals(1)) == arrivals


def test_missing_tier_of_a_trace_row_is_drawn_from_the_mix(tmp_path: Path) -> None:
    rows = '{"at": 0, "prompt_tokens": 1, "output_tokens": 1, "tier": "gold"}\n' + "".join(
        f'{{"at": {n}, "prompt_tokens": 1, "output_tokens": 1}}\n' for n in range(1, 1001)
    )
    arrivals = list(trace(tmp_path, rows, replace(mix_of("iron=75%, lead=25%", "m"), tenants=2)).arrivals(1))
    assert (arrivals[0].tier, arrivals[0].tenant[:5], arrivals[0].model) == ("gold", "gold-", "m")
    assert sum(a.tier == "iron" for a in arrivals) == pytest.approx(750, rel=0.05)
    assert {a.tenant for a in arrivals[1:]} == {"iron-1", "iron-2", "lead-1", "lead-2"}


@pytest.mark.parametrize("text", ["gold", "gold=", "gold=20", "=20%", "gold=0%", ""])
def test_mix_option_that_cannot_be_read_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="premium=20%,free=80%"):
        mix_of(text)


@pytest.mark.parametrize("text", ["gold=90%", "gold=20%,bulk=90%"])
def test_mix_shares_that_do_not_add_up_to_100_percent_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"the shares add up to \d+%: make it 100%"):
        mix_of(text)
    assert len(mix_of("a=33.3%,b=33.3%,c=33.3%").tiers) == 3


def test_a_trace_is_played_at_another_rate_and_cut(tmp_path: Path) -> None:
    rows = "".join(f'{{"at": {n}, "prompt_tokens": 1, "output_tokens": 1}}\n' for n in range(11))
    file = tmp_path / "t.jsonl"
    file.write_text(rows)
    fast = list(load_workload(file, rate_per_s=2.2).arrivals(1))
    assert [a.at for a in fast] == pytest.approx([n / 2 for n in range(11)])
    assert len(list(load_workload(file, rate_per_s=2.2, duration_s=1.5).arrivals(1))) == 3


@pytest.mark.parametrize("duration_s", [10.0, 60.0])
def test_part_of_a_trace_is_played_at_the_requested_rate(tmp_path: Path, duration_s: float) -> None:
    ats = [n / 2 for n in range(2000)] + [1000 + n / 50 for n in range(50000)]  # quiet, then busy
    text = "".join(f'{{"at": {at}, "prompt_tokens": 1, "output_tokens": 1}}\n' for at in ats)
    played = list(replace(trace(tmp_path, text), duration_s=duration_s).at_rate(20.0).arrivals(1))
    assert len(played) == pytest.approx(20.0 * duration_s, abs=1)


def test_part_of_a_trace_within_one_tick_is_played_at_its_rate(tmp_path: Path) -> None:
    text = BURSTGPT.splitlines()[0] + "\n" + "45,ChatGPT,10,10,20,Conversation log\n" * 1000
    (tmp_path / "t.csv").write_text(text)
    played = list(load_workload(tmp_path / "t.csv", rate_per_s=10.0, duration_s=20.0).arrivals(1))
    assert len(played) == pytest.approx(200, abs=60)  # random: their times within the second are drawn


def test_empty_rows_of_a_trace_are_reported_with_their_lines(tmp_path: Path) -> None:
    lines: list[int] = []
    list(replace(trace(tmp_path, AZURE_2024), on_empty=lines.append).arrivals(1))
    assert lines == [3]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"journal":2,"run":"r","part":1,"version":"1"}\n', "trace:1: is a gateway's journal: .* convert "),
        (
            "time,tokens\n",
            "trace:1: is not the first line of a known format. Known, by their fields: azure: ",
        ),
        ("", "trace: is empty: it has no request"),
        ("\n", "trace:1: is not the first line of a known format"),
        ('{"a":' + 100_000 * "[" + "\n", "trace:1: is not the first line of a known format"),
        (AZURE_2023.replace("396", "many"), "trace:3: ContextTokens is 'many', must be a whole number"),
        (
            AZURE_2023.replace("GeneratedTokens", "ContextTokens,GeneratedTokens"),
            "trace:1: has the column Context.* twice",
        ),
        (
            '{"at":1,"prompt_tokens":1,"output_tokens":1,"tier":"a\\u001b[31m"}\n',
            r"trace:1: Expected `str` .* at `\$.tier`",
        ),
        (AZURE_2023.replace(",55", ""), "trace:4: has 2 columns, but the first line has 3"),
        (AZURE_2023.replace(",55", ",5,5"), "trace:4: has 4 columns, but the first line has 3"),
        (
            AZURE_2023.replace("2023-11-16 18:15:50", "yesterday"),
            "trace:3: TIMESTAMP is 'yesterday.9951690': write it as",
        ),
        (AZURE_2023.replace("18:15:50", "18:15:40"), "trace:3: is earlier than the line before"),
        (AZURE_2024.replace("00.009930+00:00", "00.009930"), "trace:3: TIMESTAMP is '2024-05-11 00:00:00.009930'"),
        (BURSTGPT.replace("\n118", "\nsoon"), "trace:5: Timestamp is 'soon', must be a number"),
        (MOONCAKE.replace("[9]", '["9"]'), r"trace:5: Expected `int`, got `str` - at `\$.hash_ids"),
        (MOONCAKE.replace('"input_length": 10, ', ""), "trace:4: Object missing required field `input_length`"),
        ('{"at":1,"prompt_tokens":1,"output_tokens":1}\n{"at":', "trace:2: Input data was truncated"),
        ('{"at":1,"prompt_tokens":1,"output_tokens":1,"teir":"a"}', "trace:1: Object contains unknown field `teir`"),
        (
            AZURE_2023.replace("396", "9" * 5000),
            r"trace:3: ContextTokens is '9+\.\.\.9+', must be .* at most 1,000,000,000",
        ),
        (AZURE_2023.replace(",55", ",1000000001"), "trace:4: GeneratedTokens is '1000000001', must be a whole number"),
        (BURSTGPT.replace("417", "5000000000"), "trace:4: Request tokens is '5000000000', must be a whole number"),
        (MOONCAKE.replace("7234", "5000000000"), r"trace:3: Expected `int` <= 1000000000 - at `\$.input_length`"),
        (OWN + OWN.replace('s": 1}', 's": 5000000000}'), r"trace:2: Expected `int` <= 10+ - at `\$.output_tokens`"),
        (
            OWN + OWN.replace('s": 1}', f's": {"9" * 5000}}}'),
            r"trace:2: Integer value out of range - at `\$.output_tokens`",
        ),
        (OWN.replace('"at": 0', '"at": -5'), r"trace:1: Expected `float` >= 0.0 - at `\$.at`"),
        (OWN + OWN.replace('"at": 0', '"at": 1e400'), r"trace:2: Number out of range - at `\$.at`"),
        (OWN.replace('"at": 0', '"at": 1e12'), r"trace:1: is 1e\+12 s from the start, must be at most 1e\+09 s"),
        (AZURE_2024.replace("2024-05-11 00:00:01", "2124-05-11 00:00:01"), r"trace:4: is 3.*e\+09 s from the start"),
        (MOONCAKE.replace("5003", "5e18"), r"trace:5: is 5e\+15 s from the start"),
    ],
)
def test_bad_trace_row_is_refused_with_its_line(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(TraceError, match=told):
        list(trace(tmp_path, text).arrivals(1))


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ('7,GPT-4,10,10,20,"API log', "unexpected end of data"),
        ('7,"GPT"-4,10,10,20,API log', "',' expected after '\"'"),
        ('7,GPT-4,10,10,20,"API\nlog"', "unexpected end of data"),
        (f"7,{'GPT-4' * 30_000},10,10,20,API log", "field larger than field limit"),
        ("7,GPT-4,many,10,20,API log", "Request tokens is 'many'"),
    ],
)
@pytest.mark.parametrize("before", [0, 1, 700])
def test_trace_row_that_is_no_csv_is_named_by_its_first_line(tmp_path: Path, row: str, told: str, before: int) -> None:
    good = '7,"GPT-4",10,10,20,"API ""log"""\n'
    text = BURSTGPT.splitlines()[0] + "\n" + before * good + row + "\n" + 300 * good
    with pytest.raises(TraceError, match=f"trace:{before + 2}: .*{re.escape(told)}"):
        list(trace(tmp_path, text).arrivals(1))
    assert len(list(trace(tmp_path, text.replace(row, good.strip())).arrivals(1))) == before + 301


@pytest.mark.parametrize(
    "text", ['"a,TIMESTAMP,ContextTokens,GeneratedTokens,b"\n', 'TIMESTAMP,ContextTokens,"GeneratedTokens\n']
)
def test_trace_columns_are_read_by_name(tmp_path: Path, text: str) -> None:
    with pytest.raises(TraceError, match="trace:1: is not the first line of a known format"):
        trace(tmp_path, text)


@pytest.mark.parametrize("text", [AZURE_2023, BURSTGPT, MOONCAKE, OWN])
def test_byte_order_mark_of_a_trace_is_ignored(tmp_path: Path, text: str) -> None:
    assert list(trace(tmp_path, f"\ufeff{text}").arrivals(1)) == list(trace(tmp_path, text).arrivals(1)) != []


@pytest.mark.parametrize(
    "text", [MOONCAKE.replace('"timestamp": 0', '"timestamp": -4000'), BURSTGPT.replace("\n5,", "\n-5,")]
)
def test_trace_times_may_be_negative_if_the_clock_does_not_begin_at_0(tmp_path: Path, text: str) -> None:
    assert min(arrival.at for arrival in trace(tmp_path, text).arrivals(1)) >= 0.0


@pytest.mark.parametrize("times", [0.5, 1.0, 3.0])
def test_trace_at_another_rate_keeps_its_duration_and_repeats(tmp_path: Path, times: float) -> None:
    rows = "".join(f'{{"at": {at}, "prompt_tokens": {at + 10}, "output_tokens": 5}}\n' for at in range(10))
    found = trace(tmp_path, rows)
    for again in (found.faster(times), found.faster(0.5).faster(2.0 * times)):
        arrivals = list(again.arrivals(1))
        assert [a.at for a in arrivals] == pytest.approx([n / times for n in range(round(10 * times))])
        assert [a.prompt_tokens for a in arrivals] == [10 + n % 10 for n in range(round(10 * times))]


def test_cut_trace_keeps_its_duration(tmp_path: Path) -> None:
    rows = "".join(f'{{"at": {at}, "prompt_tokens": {at + 10}, "output_tokens": 5}}\n' for at in range(10))
    for cut_at, length in ((4.0, 4.0), (100.0, 10.0)):
        arrivals = list(replace(trace(tmp_path, rows), duration_s=cut_at).faster(4.0).arrivals(1))
        assert len(arrivals) == 4 * length
        assert arrivals[-1].at == pytest.approx(length - 0.25)


def test_trace_of_one_request_has_no_rate(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="has no rate"):
        trace(tmp_path, '{"at":1,"prompt_tokens":1,"output_tokens":1}').at_rate(5.0)


FOLDER = os.environ.get("TAILGATE_TRACES")


@pytest.mark.skipif(FOLDER is None, reason="TAILGATE_TRACES names no folder with the Azure traces")
@pytest.mark.parametrize(
    ("name", "requests", "prompt", "answer"),
    [("azure_llm_2023_code.csv", 8819, 2048, 28), ("azure_llm_2023_conv.csv", 19366, 1155, 211)],
)
def test_real_traces_have_their_published_figures(name: str, requests: int, prompt: int, answer: int) -> None:
    real = open_trace(Path(FOLDER or "") / name, Mix())
    arrivals = list(real.arrivals(1))
    assert len(arrivals) == requests
    assert sum(a.prompt_tokens for a in arrivals) / requests == pytest.approx(prompt, abs=1)
    assert sum(a.output_tokens for a in arrivals) / requests == pytest.approx(answer, abs=1)
    assert arrivals[-1].at / 60 == pytest.approx(58, abs=1.5)
    assert len(list(replace(real, duration_s=60.0).arrivals(1))) < requests / 20


def test_compressed_trace_file_is_an_error_that_says_so(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv.gz"
    path.write_bytes(gzip.compress(AZURE_2023.encode()))
    with pytest.raises(TraceError, match=r"trace\.csv\.gz: cannot be read: it is packed by gzip: unpack it first"):
        open_trace(path, Mix())
