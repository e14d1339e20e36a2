"""LangChain in front of chat completions."""

from __future__ import annotations

from functools import partial

import openai
from checks import (
    CALL,
    CITY,
    FAIL,
    HELLO,
    KEY,
    LIMITED_KEY,
    MODEL,
    SUNNY,
    TOO_HOT,
    V1,
    raises,
    refused_then_served,
    run,
    same,
    weather,
)
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from shapes import PARIS, VECTORS, Answer

connect = partial(ChatOpenAI, base_url=V1, api_key=KEY, model=MODEL, max_retries=0)


@tool
def get_weather(city: str) -> str:
    """The weather of a city."""
    return weather(city)


def streaming() -> None:
    for responses in (False, True):
        chunks = connect(use_responses_api=responses).stream("hi")
        same("".join(chunk.text for chunk in chunks), HELLO)


def failing() -> None:
    for responses in (False, True):
        with raises(openai.APIError):
            list(connect(use_responses_api=responses).stream(FAIL))


def tools() -> None:
    for responses in (False, True):
        model = connect(use_responses_api=responses).bind_tools([get_weather])
        messages: list = [HumanMessage(CALL)]
        messages.append(model.invoke(messages))
        messages += [get_weather.invoke(call) for call in messages[-1].tool_calls]
        same(model.invoke(messages).text, SUNNY)


def schemas() -> None:
    for method in ("json_schema", "function_calling"):
        same(connect().with_structured_output(Answer, method=method).invoke(CITY), PARIS)


def embeddings() -> None:
    # The client would download a tokenizer to count tokens; it knows no models of one's own.
    client = OpenAIEmbeddings(base_url=V1, api_key=KEY, model=MODEL, check_embedding_ctx_length=False)
    same(client.embed_documents(["one", "two"]), VECTORS)


def errors() -> None:
    with raises(openai.BadRequestError, 400):
        connect(temperature=TOO_HOT).invoke("hi")
    with raises(openai.AuthenticationError, 401):
        connect(api_key="wrong").invoke("hi")
    with raises(openai.NotFoundError, 404):
        connect(model="no-such-model").invoke("hi")


def waits() -> None:
    same(refused_then_served(partial(connect(api_key=LIMITED_KEY, max_retries=2).invoke, "hi")).text, HELLO)


run("langchain-openai", streaming, failing, tools, schemas, embeddings, errors, waits)
