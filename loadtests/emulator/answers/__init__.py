"""The form of an answer in each dialect. One class per dialect, one row per path."""

from __future__ import annotations

from loadtests.emulator import audio
from loadtests.emulator.answers.base import Answer
from loadtests.emulator.answers.chat import ChatAnswer
from loadtests.emulator.answers.completions import CompletionsAnswer
from loadtests.emulator.answers.embeddings import EmbeddingsAnswer
from loadtests.emulator.answers.messages import MessagesAnswer
from loadtests.emulator.answers.pooled import ClassifyAnswer, PooledAnswer, RerankAnswer, ScoreAnswer
from loadtests.emulator.answers.responses import ResponsesAnswer
from loadtests.emulator.answers.tokenized import DetokenizeAnswer, TokenizeAnswer
from loadtests.emulator.answers.transcribed import TranscribedAnswer

ANSWERS: dict[str, type[Answer]] = {
    "/v1/chat/completions": ChatAnswer,
    "/v1/completions": CompletionsAnswer,
    "/v1/embeddings": EmbeddingsAnswer,
    "/v1/responses": ResponsesAnswer,
    "/v1/messages": MessagesAnswer,
    **dict.fromkeys(("/v1/rerank", "/rerank", "/v2/rerank"), RerankAnswer),
    **dict.fromkeys(("/v1/score", "/score"), ScoreAnswer),
    "/pooling": PooledAnswer,
    "/classify": ClassifyAnswer,
    "/tokenize": TokenizeAnswer,
    "/detokenize": DetokenizeAnswer,
    **dict.fromkeys(audio.PATHS, TranscribedAnswer),
}

__all__ = ["ANSWERS", "Answer"]
