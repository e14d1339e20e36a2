"""Pydantic AI, in front of all three APIs."""

from __future__ import annotations

import openai
from anthropic import AsyncAnthropic
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
    URL,
    V1,
    raises,
    refused_then_served,
    run,
    same,
    weather,
)
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.embeddings import Embedder
from pydantic_ai.embeddings.openai import OpenAIEmbeddingModel
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from shapes import PARIS, VECTORS, Answer


def provider(key: str = KEY, retries: int = 0) -> OpenAIProvider:
    return OpenAIProvider(openai_client=openai.AsyncOpenAI(base_url=V1, api_key=key, max_retries=retries))


def models() -> list[Model]:
    anthropic = AnthropicProvider(anthropic_client=AsyncAnthropic(base_url=URL, api_key=KEY, max_retries=0))
    return [
        OpenAIChatModel(MODEL, provider=provider()),
        OpenAIResponsesModel(MODEL, provider=provider()),
        AnthropicModel(MODEL, provider=anthropic),
    ]


async def streaming() -> None:
    for model in models():
        async with Agent(model).run_stream("hi") as stream:
            same("".join([piece async for piece in stream.stream_text(delta=True)]), HELLO)


async def failing() -> None:
    for model in models():
        with raises(Exception):  # the exception of the client below it
            async with Agent(model).run_stream(FAIL) as stream:
                await stream.get_output()


async def tools() -> None:
    for model in models():
        agent = Agent(model)
        agent.tool_plain(weather, name="get_weather")
        same((await agent.run(CALL)).output, SUNNY)


async def schemas() -> None:
    for model in models():
        same((await Agent(model, output_type=Answer).run(CITY)).output, PARIS)
    native = OpenAIChatModel(MODEL, provider=provider(), profile=OpenAIModelProfile(supports_json_schema_output=True))
    same((await Agent(native, output_type=NativeOutput(Answer)).run(CITY)).output, PARIS)


async def embeddings() -> None:
    embedder = Embedder(OpenAIEmbeddingModel(MODEL, provider=provider()))
    same(
        [list(vector) for vector in (await embedder.embed_documents(["one", "two"])).embeddings],
        VECTORS,
    )


async def errors() -> None:
    with raises(ModelHTTPError, 400):
        await Agent(models()[0], model_settings={"temperature": TOO_HOT}).run("hi")
    with raises(ModelHTTPError, 401):
        await Agent(OpenAIChatModel(MODEL, provider=provider("wrong"))).run("hi")
    with raises(ModelHTTPError, 404):
        await Agent(OpenAIChatModel("no-such-model", provider=provider())).run("hi")


def waits() -> None:
    agent = Agent(OpenAIChatModel(MODEL, provider=provider(LIMITED_KEY, 2)))
    same(refused_then_served(lambda: agent.run_sync("hi")).output, HELLO)


run("pydantic-ai-slim", streaming, failing, tools, schemas, embeddings, errors, waits)
