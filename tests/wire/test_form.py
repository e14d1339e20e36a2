"""Forms from clients, and the forms that an engine gets."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.policy import Caps
from gateway.core.request import Endpoint
from gateway.wire.apis.audio import FIELDS
from gateway.wire.body.form import BOUNDARY, MAX_PARTS
from gateway.wire.parsed import Parsed
from gateway.wire.render import render
from gateway.wire.request import BadRequest, parse

CAPS = Caps(max_tokens_limit=100)
SOUND = b"RIFF\x00\r\n--not a boundary\r\n\xff\x00"


def part(name: str, content: bytes | str, *, file: str | None = None, head: str = "") -> tuple[str, bytes]:
    named = f'name="{name}"' + ("" if file is None else f'; filename="{file}"')
    return f"Content-Disposition: form-data; {named}\r\n{head}", content if isinstance(
        content, bytes
    ) else content.encode()


def form(*parts: tuple[str, bytes], boundary: str = "X-1", end: str = "--\r\n") -> bytes:
    out = b"".join(f"--{boundary}\r\n{head}".encode() + b"\r\n" + content + b"\r\n" for head, content in parts)
    return out + f"--{boundary}{end}".encode()


MODEL = part("model", "whisper")
FILE = part("file", SOUND, file="a.wav", head="Content-Type: audio/wav\r\n")


def read(*parts: tuple[str, bytes], endpoint: Endpoint = Endpoint.TRANSCRIPTIONS) -> Parsed:
    return parse(endpoint, form(*parts), CAPS)


def sent(parsed: Parsed) -> list[tuple[str, str, bytes]]:
    """(disposition, type, content) of every part at the engine, by an independent parser."""
    body = render(parsed, "upstream", 0)
    first, *parts, last = (b"\r\n" + body).split(b"\r\n--" + BOUNDARY)
    assert (first, last) == (b"", b"--\r\n")
    found = []
    for one in parts:
        assert one.startswith(b"\r\n")
        head, _, content = one[2:].partition(b"\r\n\r\n")
        lines = dict(line.split(": ", 1) for line in head.decode("ascii").split("\r\n"))
        found.append((lines.pop("content-disposition"), lines.pop("content-type", ""), content))
        assert not lines
    return found


def test_forwarded_form_is_written_anew_with_the_file_last() -> None:
    parsed = read(FILE, MODEL, part("language", "en"), part("stream", "true"), part("temperature", "0.2"))
    assert (parsed.model, parsed.stream, parsed.wants_usage, parsed.changed) == ("whisper", True, False, ())
    assert sent(parsed) == [
        ('form-data; name="model"', "", b"upstream"),
        ('form-data; name="language"', "", b"en"),
        ('form-data; name="stream"', "", b"true"),
        ('form-data; name="temperature"', "", b"0.2"),
        ('form-data; name="stream_include_usage"', "", b"true"),
        ('form-data; name="file"; filename="a.wav"', "audio/wav", SOUND),
    ]


def test_form_field_that_is_a_list_keeps_all_its_parts() -> None:
    words = [part("timestamp_granularities[]", word) for word in ("word", "segment")]
    assert [content for name, _, content in sent(read(*words, MODEL, FILE)) if "granularities" in name] == [
        b"word",
        b"segment",
    ]


@pytest.mark.parametrize(
    ("given_name", "written"),
    [
        ("a.wav", "a.wav"),
        ("../../etc/passwd", "passwd"),
        (r"C:\\sound\\a b.mp3", "a_b.mp3"),
        ("", "audio"),
        (".hidden", "hidden"),
        (r"a\";x=\"y.wav", "_y.wav"),
        ("Grüße.ogg", "Gr_e.ogg"),
        ("x" * 200 + ".flac", "x" * 59 + ".flac"),
    ],
)
def test_a_file_name_has_plain_letters_and_no_path(given_name: str, written: str) -> None:
    *_, (disposition, _, content) = sent(read(MODEL, part("file", SOUND, file=given_name)))
    assert (disposition, content) == (f'form-data; name="file"; filename="{written}"', SOUND)


def test_engine_steering_form_fields_are_dropped_and_named() -> None:
    cheats = {"priority": "-100", "request_id": "mine", "chunking_strategy": "auto"}
    parsed = read(MODEL, FILE, *(part(name, value) for name, value in cheats.items()), part("extra", "x", file="x"))
    assert set(parsed.changed) == {*cheats, "extra"}
    assert [name for name, _, _ in sent(parsed)] == [
        'form-data; name="model"',
        'form-data; name="file"; filename="a.wav"',
    ]


@pytest.mark.parametrize(
    ("name", "value", "setting"),
    [("n", "5", "caps.n"), ("vllm_xargs", "{}", "caps.engine_options"), ("use_beam_search", "true", "caps.best_of")],
)
def test_costly_form_field_beyond_its_cap_is_refused_by_its_setting(name: str, value: str, setting: str) -> None:
    body = form(MODEL, FILE, part(name, value))
    with pytest.raises(BadRequest, match=f"^{name}: .*{re.escape(setting)}"):
        parse(Endpoint.TRANSCRIPTIONS, body, Caps())


def test_max_completion_tokens_in_a_form_is_lowered_to_the_cap_of_the_tier() -> None:
    parsed = read(MODEL, FILE, part("max_completion_tokens", "5000"))
    assert ('form-data; name="max_completion_tokens"', "", b"100") in sent(parsed)
    assert parsed.changed == ("max_completion_tokens",)


def test_form_without_a_model_is_sent_with_the_chosen_one() -> None:
    parsed = read(FILE)
    assert parsed.model == ""
    assert sent(parsed)[0] == sent(read(MODEL, FILE))[0]


@pytest.mark.parametrize(
    ("parts", "field"),
    [
        ([MODEL], "file"),
        ([MODEL, FILE, part("stream", "yes")], "stream"),
        ([MODEL, FILE, part("temperature", "warm")], "temperature"),
        ([MODEL, FILE, part("temperature", "NaN")], "temperature"),
        ([MODEL, FILE, part("max_completion_tokens", "1e3")], "max_completion_tokens"),
        ([MODEL, FILE, part("max_completion_tokens", "0x10")], "max_completion_tokens"),
        ([MODEL, FILE, part("prompt", "text", file="p.txt")], "prompt"),
        ([MODEL, FILE, part("prompt", b"\xff\xfe")], "prompt"),
        ([MODEL, FILE, part("prompt", "x" * 70_000)], "prompt"),
        ([MODEL, FILE, part("language", "x" * 100)], "language"),
        ([MODEL, FILE, part("STREAM", "true")], "stream"),
        ([MODEL, part("model", "a\nb"), FILE], "model"),
    ],
)
def test_form_field_that_cannot_be_served_is_named(parts: list[tuple[str, bytes]], field: str) -> None:
    with pytest.raises(BadRequest) as refused:
        read(*parts)
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b'{"model":"whisper"}', "must be multipart/form-data"),
        (b"", "must be multipart/form-data"),
        (b"--\r\n", "must be multipart/form-data"),
        (form(MODEL, FILE, boundary="x" * 80), "must be multipart/form-data"),
        (form(MODEL, FILE).replace(b"\r\n", b"\n"), "must be multipart/form-data"),
        (form(MODEL, FILE, end=""), "holds its own delimiter"),
        (form(MODEL, FILE)[:-8], "does not end"),
        (b"--X-1\r\nContent-Disposition: form-data; name=a", "head of part 1 of the form does not end"),
        (b"--X-1\r\nA: " + b"x" * 5000 + b"\r\n\r\n\r\n--X-1--", "head of part 1 of the form does not end"),
        (form(("Content-Type: text/plain\r\n", b"x")), "part 1 of the form has no name"),
        (form(('Content-Disposition: form-data; name="a\r\n', b"x")), "part 1 of the form has no name"),
        (form(part("file", b"AAAA", head="Content-Transfer-Encoding: base64\r\n")), "has a transfer encoding"),
        (form(*[part(f"f{i}", "x") for i in range(MAX_PARTS + 1)]), "has more than 64 parts"),
        (form(MODEL, part("file", b"x\r\n--X-1y\r\n", file="a")), "holds its own delimiter"),
        (form(MODEL, part("file", BOUNDARY, file="a")), "own boundary"),
    ],
)
def test_body_that_is_no_valid_form_is_refused_with_the_reason(body: bytes, says: str) -> None:
    with pytest.raises(BadRequest, match=says):
        parse(Endpoint.TRANSLATIONS, body, CAPS)


def test_prompt_length_of_a_recording_is_estimated_from_its_bytes() -> None:
    long = read(MODEL, part("file", bytes(80_000), file="a.wav"), part("prompt", "12345"))
    assert (long.prompt_bytes, long.prompt_exact, long.batch, long.choices) == (1005, None, 1, 1)


contents = st.one_of(st.binary(max_size=40), st.sampled_from([b"\r\n", b"--X", b"\r\n--X-", b"--", b""]))


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    fields=st.lists(st.tuples(st.sampled_from([*sorted(FIELDS), "x", "N", "Model"]), contents), max_size=5),
    file=contents,
    cut=st.none() | st.integers(0, 400),
)
def test_forwarded_form_is_always_well_formed(fields: list[tuple[str, bytes]], file: bytes, cut: int | None) -> None:
    body = form(*(part(name, content) for name, content in fields), MODEL, part("file", file, file="a"))
    try:
        parsed = parse(Endpoint.TRANSCRIPTIONS, body[:cut], CAPS)
    except BadRequest:
        return
    *texts, last = sent(parsed)
    assert last == ('form-data; name="file"; filename="a"', "application/octet-stream", file)
    names: list[Any] = [disposition.split('"')[1] for disposition, _, _ in texts]
    assert names[0] == "model"
    allowed = {name for name, rule in FIELDS.items() if rule.__name__ != "STRIP"}
    assert set(names) <= allowed
