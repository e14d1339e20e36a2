"""LlamaIndex, by its class for servers that are like OpenAI's."""

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
from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.program.function_program import FunctionTool
from llama_index.core.prompts import PromptTemplate
from llama_index.embeddings.openai import OpenAIEmbedding
from llama_index.llms.openai_like import OpenAILike
from shapes import PARIS, VECTORS, Answer

connect = partial(
    OpenAILike,
    api_base=V1,
    api_key=KEY,
    model=MODEL,
    max_retries=0,
    is_chat_model=True,
    is_function_calling_model=True,
)


def user(text: str) -> list[ChatMessage]:
    return [ChatMessage(role=MessageRole.USER, content=text)]


def streaming() -> None:
    same("".join(chunk.delta or "" for chunk in connect().stream_chat(user("hi"))), HELLO)


def failing() -> None:
    with raises(openai.APIError):
        list(connect().stream_chat(user(FAIL)))


def tools() -> None:
    model = connect()
    get_weather = FunctionTool.from_defaults(weather, name="get_weather")
    messages = user(CALL)
    answer = model.chat_with_tools([get_weather], chat_history=messages)
    messages.append(answer.message)
    for call in model.get_tool_calls_from_response(answer):
        result = get_weather(**call.tool_kwargs).content
        messages.append(ChatMessage(role=MessageRole.TOOL, content=result, tool_call_id=call.tool_id))
    same(model.chat_with_tools([get_weather], chat_history=messages).message.content, SUNNY)


def schemas() -> None:
    for structured in (False, True):
        model = connect(should_use_structured_outputs=structured)
        same(model.structured_predict(Answer, PromptTemplate(CITY)), PARIS)


def embeddings() -> None:
    client = OpenAIEmbedding(api_base=V1, api_key=KEY, model_name=MODEL)
    same(client.get_text_embedding_batch(["one", "two"]), VECTORS)


def errors() -> None:
    with raises(openai.BadRequestError, 400):
        connect(additional_kwargs={"temperature": TOO_HOT}).chat(user("hi"))
    with raises(openai.AuthenticationError, 401):
        connect(api_key="wrong").chat(user("hi"))
    with raises(openai.NotFoundError, 404):
        connect(model="no-such-model").chat(user("hi"))


def waits() -> None:
    model = connect(api_key=LIMITED_KEY, max_retries=3)
    same(refused_then_served(partial(model.chat, user("hi"))).message.content, HELLO)


run("llama-index-llms-openai-like", streaming, failing, tools, schemas, embeddings, errors, waits)
