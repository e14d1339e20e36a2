"""Conversions between formats: everything left out is reported."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner, Result

from gateway.app import Gateway
from gateway.core.journal.recorder import FORMAT
from gateway.policy import load_text
from gateway.settings import Settings
from gateway.sim.workload.arrivals import Arrival
from gateway.sim.workload.traces import Mix, open_trace
from loadtests import traces
from loadtests.__main__ import app
from loadtests.emulator.emulator import Emulator
from loadtests.traces.writers import WRITERS

SMALL = Path(traces.__file__).parent / "small.jsonl"


def converted(*sources: Path, out: Path, to: str = "tailgate") -> Result:
    return CliRunner().invoke(app, ["convert", *map(str, sources), str(out), "--to", to])


def arrivals(path: Path) -> list[Arrival]:
    return list(open_trace(path, Mix()).arrivals(1))


def test_committed_trace_has_requests_of_every_tier_with_prefixes_and_with_caps() -> None:
    found = arrivals(SMALL)
    assert 200 < len(found) < 300
    assert {arrival.tier for arrival in found} == {"premium", "standard", "free"}
    assert any(arrival.prefix for arrival in found)
    assert any(not arrival.stream for arrival in found)
    assert any(arrival.max_tokens for arrival in found)


def test_trace_converted_to_tailgate_format_and_back_is_unchanged(tmp_path: Path) -> None:
    done = converted(SMALL, out=tmp_path / "out.jsonl")
    assert done.exit_code == 0
    assert arrivals(tmp_path / "out.jsonl") == arrivals(SMALL)
    assert "lost" not in done.stderr


@pytest.mark.parametrize("to", ["azure", "burstgpt", "mooncake"])
def test_trace_converted_to_other_formats_keeps_lengths_and_times_and_reports_losses(tmp_path: Path, to: str) -> None:
    out = tmp_path / "out"
    done = converted(SMALL, out=out, to=to)
    assert done.exit_code == 0
    before, after = arrivals(SMALL), arrivals(out)
    assert len(after) == len(before)
    # Times of a tick are spread over it, so their order may change.
    assert sorted((a.prompt_tokens, a.output_tokens) for a in after) == sorted(
        (a.prompt_tokens, a.output_tokens) for a in before
    )
    assert f"lost: tier of {len(before)} requests, which {to} cannot hold" in done.stderr
    assert ("prefix of" in done.stderr) == (to != "mooncake")


def test_convert_spreads_arrivals_within_one_millisecond(tmp_path: Path) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    row = '{{"timestamp": {}, "input_length": {}, "output_length": 5}}\n'
    source.write_text("".join(row.format(at, n) for n, at in enumerate((0, 52, 9000), 1)))
    assert "spread" not in converted(source, out=out).stderr
    assert [arrival.at for arrival in arrivals(out)] == [0.0, 0.052, 9.0]
    source.write_text("".join(row.format(at, n) for n, at in enumerate((0, 52, 52, 9000), 1)))
    done = converted(source, out=out)
    assert "2 requests were spread over their tick" in done.stderr
    assert "lost" not in converted(source, out=tmp_path / "again.jsonl", to="mooncake").stderr
    first, *together, last = (arrival.at for arrival in arrivals(out))
    assert (first, last) == (0.0, 9.0)
    assert all(0.052 <= at < 3.052 for at in together)


def test_convert_counts_times_finer_than_the_format_allows(tmp_path: Path) -> None:
    source = tmp_path / "in.csv"
    rows = "".join(f"2023-11-16 18:17:03.{fraction},10,5\n" for fraction in ("000000", "001000", "001500"))
    source.write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}")
    lost = converted(source, out=tmp_path / "out", to="mooncake").stderr
    assert "lost: fraction of the millisecond of 1 requests" in lost
    lost = converted(source, out=tmp_path / "out", to="burstgpt").stderr
    assert "lost: fraction of the second of 2 requests" in lost
    assert "lost" not in converted(source, out=tmp_path / "out", to="tailgate").stderr


def test_convert_counts_rows_of_0_tokens_with_their_lines(tmp_path: Path) -> None:
    source = tmp_path / "in.csv"
    source.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
        f"2023-11-16 18:17:0{n}.0,{10 * (n % 2)},5\n" for n in range(4)
    ))  # fmt: skip
    done = converted(source, out=tmp_path / "out")
    assert "2 requests, azure to tailgate" in done.stderr
    assert "left out: 2 rows of 0 tokens (failed when they were recorded; lines 2, 4)" in done.stderr
    assert [arrival.at for arrival in arrivals(tmp_path / "out")] == [0.0, 2.0]


def test_convert_names_a_bad_row_and_leaves_no_file(tmp_path: Path) -> None:
    source, out = tmp_path / "in.csv", tmp_path / "out"
    source.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9,10,5\n2023-11-16 18:17:04.9,ten,5\n"
    )
    done = converted(source, out=out)
    assert done.exit_code == 2
    assert f"{source}:3: ContextTokens is 'ten', must be a whole number of tokens" in done.stderr
    assert list(tmp_path.iterdir()) == [source]


@pytest.mark.parametrize("to", ["azure", "burstgpt", "mooncake", "tailgate"])
def test_convert_refuses_an_arrival_beyond_the_time_limit_and_writes_one_at_it(tmp_path: Path, to: str) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out"
    row = '{{"at": {}, "prompt_tokens": 1, "output_tokens": 1}}\n'
    source.write_text(row.format(0) + row.format("1e12"))
    done = converted(source, out=out, to=to)
    assert done.exit_code == 2
    assert f"{source}:2: is 1e+12 s from the start, must be at most 1e+09 s" in done.stderr
    source.write_text(row.format(0) + row.format("1e9"))
    assert converted(source, out=out, to=to).exit_code == 0
    assert arrivals(out)[-1].at == pytest.approx(1e9, abs=3.0)


def test_earlier_output_is_kept_when_the_conversion_fails(tmp_path: Path) -> None:
    source, out = tmp_path / "in.csv", tmp_path / "out"
    source.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\nten,10,5\n")
    out.write_text("of yesterday")
    assert converted(source, out=out).exit_code == 2
    assert out.read_text() == "of yesterday"
    assert sorted(tmp_path.iterdir()) == [source, out]


@pytest.mark.parametrize("name", ["out", "out.part"])
def test_source_trace_is_never_overwritten(tmp_path: Path, name: str) -> None:
    source = tmp_path / name
    source.write_text(SMALL.read_text())
    done = converted(source, out=tmp_path / "out")
    assert (done.exit_code, "is the input" in done.stderr) == (2, True)
    assert source.read_text() == SMALL.read_text()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is empty"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "no requests in it"),
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9,0,5\n",
            "no requests in it (left out: 1 rows of 0 tokens",
        ),
    ],
)
def test_convert_writes_no_file_for_a_trace_without_a_request(tmp_path: Path, text: str, told: str) -> None:
    source = tmp_path / "in.csv"
    source.write_text(text)
    done = converted(source, out=tmp_path / "out")
    assert done.exit_code == 2
    assert f"{source}: {told}" in done.stderr
    assert list(tmp_path.iterdir()) == [source]


@pytest.mark.parametrize(
    ("options", "told"),
    [(["--to", "csv"], "--to csv is not a format"), ([], "is not the first line of a known format")],
)
def test_unconvertible_trace_is_refused_with_its_cause(tmp_path: Path, options: list[str], told: str) -> None:
    source = tmp_path / "in"
    source.write_text("a,b,c\n1,2,3\n")
    done = CliRunner().invoke(app, ["convert", str(source), str(tmp_path / "out"), *options])
    assert done.exit_code == 2
    assert told in done.stderr


def test_convert_without_an_output_says_so() -> None:
    done = CliRunner().invoke(app, ["convert", str(SMALL)])
    assert (done.exit_code, "OUT: missing" in done.stderr) == (2, True), done.stderr


def test_unreadable_or_unwritable_trace_is_named_as_given(tmp_path: Path) -> None:
    missing, out = tmp_path / "missing", tmp_path / "no" / "out"
    done = CliRunner().invoke(app, ["convert", str(missing), str(tmp_path / "out")])
    assert (done.exit_code, f"cannot read {missing}: No such file" in done.stderr) == (2, True), done.stderr
    source = tmp_path / "in"
    source.write_text('{"at": 0, "prompt_tokens": 1, "output_tokens": 1}\n')
    done = CliRunner().invoke(app, ["convert", str(source), str(out)])
    assert done.exit_code == 2
    assert done.stderr == f"OUT: cannot write {out}: the folder {out.parent} does not exist: make it first\n"


def test_every_format_that_is_read_can_be_written() -> None:
    from gateway.sim.workload.trace_formats import FORMATS

    assert {fmt.name for fmt in FORMATS} == set(WRITERS)


POLICY = """
apiVersion: tailgate/v1
models: {m: {pools: [main]}}
pools: {main: {replicas: [URL], slots: 2, queue: {limit: 1}}}
tiers: {free: {retry: {budget: 0%}}}
"""


async def recorded(file: Path) -> list[int]:
    """A gateway with a journal gets six requests at once and serves three. Returns their statuses."""
    async with Emulator(time_scale=10.0, model="m", output_median_tokens=20, output_sigma=0.0) as emulator:
        policy = load_text(POLICY.replace("URL", emulator.urls[0]), "policy.yaml")
        settings = Settings(port=0, admin_port=0, drain_deadline_s=0.0, journal=file)
        async with Gateway(settings, policy) as gateway, httpx.AsyncClient(base_url=gateway.url) as client:
            body = {"model": "m", "messages": [{"role": "user", "content": "word " * 100}], "max_tokens": 50}
            first = [(await client.post("/v1/chat/completions", json=body)).status_code]
            asked = (client.post("/v1/chat/completions", json=body) for _ in range(6))
            return first + [answer.status_code for answer in await asyncio.gather(*asked)]


def test_convert_makes_a_trace_of_all_requests_of_a_journal(tmp_path: Path) -> None:
    file, out = tmp_path / "calls.jsonl", tmp_path / "out.jsonl"
    statuses = asyncio.run(recorded(file))
    refused = statuses.count(429)
    assert refused > 0
    done = converted(file, out=out)
    assert done.exit_code == 0, done.stderr
    assert "7 requests, journal to tailgate" in done.stderr
    assert f"{refused} requests have no complete answer" in done.stderr
    found = arrivals(out)
    assert found[0].at == 0.0
    # 100 words of five bytes, and the template: as the replica counts them. Refused ones get the length of similar
    # requests.
    assert {(a.prompt_tokens, a.output_tokens, a.tier, a.model, a.max_tokens) for a in found} == {
        (132, 20, "free", "m", 50)
    }


def test_a_journal_without_a_request_becomes_no_trace(tmp_path: Path) -> None:
    file = tmp_path / "calls.jsonl"
    asyncio.run(recorded(file))
    file.write_text(file.read_text().splitlines(keepends=True)[0])
    done = converted(file, out=tmp_path / "out")
    assert (done.exit_code, f"{file}: no requests in it" in done.stderr) == (2, True), done.stderr
    assert list(tmp_path.iterdir()) == [file]


def test_a_journal_that_begins_in_the_middle_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "calls.jsonl"
    asyncio.run(recorded(file))
    lines = file.read_text().splitlines(keepends=True)
    head = json.loads(lines[0])
    file.write_text(json.dumps({**head, "part": 2}) + "\n" + "".join(lines[1:]))
    done = converted(file, out=tmp_path / "out")
    assert done.exit_code == 2
    assert "begins in the middle" in done.stderr


def test_columns_that_are_not_read_are_named(tmp_path: Path) -> None:
    trace = tmp_path / "burst.csv"
    trace.write_text("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,GPT-4,20,30,50,API log\n")
    done = converted(trace, out=tmp_path / "out")
    assert done.exit_code == 0
    assert "not read: Log Type, Model, Total tokens, columns of burstgpt that a request here lacks" in done.stderr
    assert "not read" not in converted(SMALL, out=tmp_path / "own").stderr


def test_a_journal_of_another_form_is_told_as_one(tmp_path: Path) -> None:
    file = tmp_path / "calls.jsonl"
    file.write_text(json.dumps({"journal": FORMAT + 1, "run": "r", "part": 1, "version": "9.0"}) + "\n")
    done = converted(file, out=tmp_path / "out")
    assert done.exit_code == 2
    complaint = f"{file} is a journal in format {FORMAT + 1}, of tailgate 9.0: this one reads format {FORMAT}"
    assert complaint in " ".join(done.stderr.split())


@pytest.mark.parametrize("out", ["", ".", "/"])
def test_convert_refuses_a_folder_in_place_of_its_output_file(out: str) -> None:
    done = CliRunner().invoke(app, ["convert", str(SMALL), out])
    assert (done.exit_code, "that is a folder: name a file" in done.stderr) == (2, True), done.stderr
