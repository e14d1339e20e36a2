"""Bodies that try to get past a cap: every field that costs, in every spelling, type and encoding."""

from __future__ import annotations

import json
import random

MINIMAL: dict[str, dict[str, object]] = {
    "/v1/chat/completions": {"model": "emulated", "messages": [{"role": "user", "content": "a"}]},
    "/v1/completions": {"model": "emulated", "prompt": "a"},
    "/v1/embeddings": {"model": "emulated", "input": "a"},
    "/v1/responses": {"model": "emulated", "input": "a"},
    "/v1/messages": {"model": "emulated", "messages": [{"role": "user", "content": "a"}], "max_tokens": 5},
    "/v1/rerank": {"model": "emulated", "query": "a", "documents": ["a"]},
    "/v1/score": {"model": "emulated", "text_1": "a", "text_2": "a"},
}
UNCAPPED = ("/v1/embeddings", "/v1/rerank", "/v1/score")
OUTPUT = ("max_tokens", "max_completion_tokens", "max_output_tokens")
COSTLY = (
    *OUTPUT,
    *("n", "best_of", "min_tokens", "logprobs", "top_logprobs", "prompt_logprobs", "thinking_token_budget"),
    *("ignore_eos", "use_beam_search", "echo", "max_new_tokens", "max_length", "num_predict", "length_penalty"),
)
CONTROL = (
    *("priority", "request_id", "cache_salt", "kv_transfer_params", "vllm_xargs", "chat_template", "rid"),
    *("media_io_kwargs", "data_parallel_rank", "stream_interval", "extra_body", "lora_path"),
    *("custom_logit_processor", "mm_processor_kwargs", "prompt_embeds"),
)
HARMLESS = (
    *("temperature", "top_p", "seed", "user", "stop", "stream", "stream_options", "thinking", "reasoning"),
    *("chat_template_kwargs", "add_generation_prompt", "continue_final_message"),
)
NUMBERS = (
    *("1", "2", "3", "5", "49", "50", "51", "100000", "-1", "0", "-0", "2147483648", "9007199254740993"),
    *("18446744073709551616", "1" + "0" * 40, "5.0", "1e5", "1E2", "50.5", "1e400", "1e-400", "100000.0"),
    *("NaN", "Infinity", "-Infinity", "+7", "007", "0x10", "1_000", ".5", "5.", "true", "false", "null"),
)
TEXTS = ('"100000"', '"5"', '" 7"', '"1_000"', '"+7"', '"0x10"', '"1e5"', '"\\u0663"', '"true"', '""')
SHAPES = (
    *("[100000]", "[]", "{}", '{"value":100000}', '{"max_tokens":100000}', "[[[[1]]]]", '{"budget_tokens":100000}'),
    *('{"type":"enabled","budget_tokens":100000}', '{"include_usage":true}', '{"effort":"high","n":9}'),
)


def nasty(dice: random.Random, path: str) -> bytes:
    """A body for `path`: a valid one with added fields anywhere, and perhaps damaged as a whole."""
    pairs = [(json.dumps(name), json.dumps(value)) for name, value in MINIMAL[path].items()]
    for _ in range(dice.randint(1, 5)):
        name = dice.choice(dice.choice((OUTPUT, COSTLY, COSTLY, CONTROL, HARMLESS)))
        pairs.insert(dice.randint(0, len(pairs)), (_spelled(dice, name), _value(dice)))
    if dice.random() < 0.2:
        pairs.append(dice.choice(pairs[-3:]))
    space = dice.choice(("", "", " ", "\n", "\t\r\n "))
    text = "{" + ",".join(f"{space}{name}{space}:{value}" for name, value in pairs) + space + "}"
    return _encoded(dice, _spoilt(dice, text))


def _value(dice: random.Random) -> str:
    draw = dice.random()
    if draw < 0.5:
        return str(dice.randint(1, 60))
    return dice.choice(NUMBERS if draw < 0.8 else TEXTS if draw < 0.92 else SHAPES)


def _spelled(dice: random.Random, name: str) -> str:
    """The name as a JSON string, perhaps in a form that only some readers accept as this name."""
    match dice.randrange(16):
        case 0:
            name = name.upper()
        case 1:
            name = name.title()
        case 2:
            head, *rest = name.split("_")
            name = head + "".join(part.title() for part in rest)
        case 3:
            name = name.replace("_", dice.choice("- .\u2010"))
        case 4:
            name += dice.choice((" ", "\x00", "\u200b", "\n", "[]", "\ufeff"))
        case 5:
            name = dice.choice((" ", "\x00", "\u200b", "\ufeff", "$.")) + name
        case 6:
            # Letters that fold to s, k and i.
            name = name.replace("s", "\u017f").replace("k", "\u212a").replace("i", "\u0131")
        case 7:
            name = "".join(chr(ord(c) + 0xFEE0) if c.isalpha() else c for c in name)
        case 8 | 9:
            return '"' + "".join(f"\\u{ord(c):04x}" if dice.random() < 0.5 else c for c in name) + '"'
        case _:
            pass
    return json.dumps(name, ensure_ascii=dice.random() < 0.5)


def _spoilt(dice: random.Random, text: str) -> str:
    more = '"max_tokens":100000,"n":99'
    match dice.randrange(40):
        case 0:
            return text + "{" + more + "}"
        case 1:
            return f"[{text}]"
        case 2:
            return text[:-1] + ",}"
        case 3:
            return text[:-1] + f"/*,*/,{more}" + "}"
        case 4:
            return text.replace('"', "'")
        case 5:
            return text[:-1] + ',"a":' + "[" * 1100 + "]" * 1100 + "}"
        case 6:
            return text[:-1] + ',"a":"\\ud800",' + more + "}"
        case 7:
            return text[:-1] + f',"extra_body":{{{more}}},"sampling_params":{{{more}}}' + "}"
        case 8:
            return text[: dice.randrange(len(text))]
        case _:
            return text


def _encoded(dice: random.Random, text: str) -> bytes:
    match dice.randrange(30):
        case 0:
            return text.encode("utf-8-sig")
        case 1:
            return text.encode(dice.choice(("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-7")), "replace")
        case 2:
            # An overlong m: not UTF-8, but some decoders read it as the letter.
            return text.encode().replace(b"m", b"\xc1\xad", 1)
        case 3:
            return text.encode() + dice.choice((b"\x00", b"\xff", b"\x1a", b"\n\n"))
        case _:
            return text.encode()
