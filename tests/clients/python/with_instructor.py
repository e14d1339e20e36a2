"""Instructor, which handles schemas itself, over the clients of OpenAI and Anthropic."""

from __future__ import annotations

from functools import partial

import anthropic
import instructor
import openai
from checks import CITY, FAIL, KEY, LIMITED_KEY, MODEL, TOO_HOT, URL, V1, raises, refused_then_served, run, same
from instructor.core.exceptions import InstructorRetryException
from shapes import PARIS, Answer


def over_openai(mode: instructor.Mode, **options: object) -> instructor.Instructor:
    given = {"api_key": KEY, "max_retries": 0} | options
    return instructor.from_openai(openai.OpenAI(base_url=V1, **given), mode=mode, model=MODEL)


def over_anthropic() -> instructor.Instructor:
    client = anthropic.Anthropic(base_url=URL, api_key=KEY, max_retries=0)
    return instructor.from_anthropic(client, model=MODEL, max_tokens=64)


asked = {"messages": [{"role": "user", "content": CITY}], "response_model": Answer, "max_retries": 1}


def streaming() -> None:
    parts = list(over_openai(instructor.Mode.TOOLS).create_partial(**asked))
    same(parts[-1].model_dump(), PARIS.model_dump())


def failing() -> None:
    asked_to_fail = asked | {"messages": [{"role": "user", "content": FAIL}]}
    with raises(Exception):  # its own exception, or that of the client below it
        list(over_openai(instructor.Mode.JSON_SCHEMA).create_partial(**asked_to_fail))


def tools() -> None:
    same(over_openai(instructor.Mode.TOOLS).create(**asked).model_dump(), PARIS.model_dump())
    same(over_anthropic().create(**asked).model_dump(), PARIS.model_dump())


def schemas() -> None:
    same(over_openai(instructor.Mode.JSON_SCHEMA).create(**asked).model_dump(), PARIS.model_dump())


def errors() -> None:
    client = over_openai(instructor.Mode.TOOLS)
    for changed, kind in (
        ({"temperature": TOO_HOT}, openai.BadRequestError),
        ({"model": "no-such-model"}, openai.NotFoundError),
    ):
        with raises((InstructorRetryException, kind)):
            client.create(**asked | changed)
    with raises((InstructorRetryException, openai.AuthenticationError)):
        over_openai(instructor.Mode.TOOLS, api_key="wrong").create(**asked)


def waits() -> None:
    client = over_openai(instructor.Mode.TOOLS, api_key=LIMITED_KEY, max_retries=2)
    same(refused_then_served(partial(client.create, **asked)).model_dump(), PARIS.model_dump())


run("instructor", streaming, failing, tools, schemas, errors, waits)
