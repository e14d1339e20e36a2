"""Plain completions: POST /v1/completions of OpenAI, as vLLM 0.32 and SGLang 0.5 serve it."""

from __future__ import annotations

from typing import Any, Final

from gateway.core.policy import Caps
from gateway.core.request import Endpoint
from gateway.wire.answers.as_events import text_events
from gateway.wire.answers.whole import GENERATED
from gateway.wire.apis.chunks import CompletionAssembly, CompletionReader
from gateway.wire.apis.fields import ALLOW, GENERATION
from gateway.wire.apis.row import Answers, Api, Shape
from gateway.wire.body import bounds, checks, prompt
from gateway.wire.body.checks import Check
from gateway.wire.body.prompt import Prompt
from gateway.wire.body.tools import NOT_RENAMED, Renamed

FIELDS: Final[dict[str, Check]] = {
    **GENERATION,
    "prompt": ALLOW,
    "suffix": checks.string,
    "echo": checks.boolean,
    "best_of": bounds.best_of,
    "max_tokens": bounds.output_cap_or_zero,
    "logprobs": bounds.completion_log_probs,
}


def fit(fields: dict[str, Any], caps: Caps, changed: list[str]) -> Renamed:
    """Limit the log-probabilities of an echoed prompt, because vLLM computes as many for each prompt token."""
    if fields.get("echo") and fields.get("logprobs") is not None:
        bounds.echoed_log_probs(fields["logprobs"], "logprobs", caps)
    return NOT_RENAMED


def measure(fields: dict[str, Any], caps: Caps) -> Prompt:
    """The size of a completion's prompt: a text, a list of texts, a list of token ids, or several such lists."""
    measured = prompt.batch(fields["prompt"], "prompt", caps)
    if "suffix" in fields:
        measured.exact = None
    return measured


def _assembly() -> CompletionAssembly:
    return CompletionAssembly(False)


COMPLETIONS: Final = Api(
    "completions",
    (Endpoint.COMPLETIONS,),
    Shape(FIELDS, ("prompt",), measure, usage=True, fit=fit),
    Answers(GENERATED, CompletionReader, _assembly, text_events),
)
