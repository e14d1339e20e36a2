"""Rankings and scores of the emulated replica, in the form of vLLM 0.32."""

from __future__ import annotations

import json

import pytest

from loadtests.emulator import Emulator

from .wire import http

QUERY = {"query": "What is a slot?", "documents": ["A lease.", "A fruit, of late summer.", "A gap."]}


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/v2/rerank"])
async def test_emulator_ranks_documents_by_relevance(emulator: Emulator, connect, path: str) -> None:
    wire = await connect(emulator.url, http(path, json.dumps(QUERY).encode()))
    body = (await wire.answer()).json()
    scores = [result["relevance_score"] for result in body["results"]]
    assert scores == sorted(scores, reverse=True)
    assert sorted(result["index"] for result in body["results"]) == [0, 1, 2]
    assert all(QUERY["documents"][result["index"]] == result["document"]["text"] for result in body["results"])
    assert body["usage"] == {"prompt_tokens": 28, "total_tokens": 28}
    wire.send(http(path, json.dumps(QUERY | {"top_n": 1}).encode()))
    assert (await wire.answer()).json()["results"] == body["results"][:1]


@pytest.mark.parametrize("path", ["/v1/score", "/score"])
async def test_the_emulator_scores_every_pair_of_texts(emulator: Emulator, connect, path: str) -> None:
    wire = await connect(emulator.url, http(path, b'{"text_1":"one","text_2":["two","three"]}'))
    body = (await wire.answer()).json()
    assert [(entry["index"], entry["object"]) for entry in body["data"]] == [(0, "score"), (1, "score")]
    assert all(0.0 <= entry["score"] <= 1.0 for entry in body["data"])
    assert (body["object"], body["usage"]["total_tokens"]) == ("list", 9)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b'{"text_1":["a","b"],"text_2":["a","b","c"]}', "1:1, 1:N or N:N"),
        (b'{"text_1":"a"}', "Field required"),
        (b'{"text_1":"a","text_2":5}', "valid string"),
    ],
)
async def test_emulator_refuses_texts_that_form_no_pairs(emulator: Emulator, connect, body: bytes, says: str) -> None:
    answer = await (await connect(emulator.url, http("/score", body))).answer()
    assert answer.status == 400
    assert says in answer.json()["error"]["message"]


async def test_every_input_is_pooled_or_gets_its_class(emulator: Emulator, connect) -> None:
    wire = await connect(emulator.url, http("/pooling", b'{"input":["one",[1,2]]}'))
    pooled = (await wire.answer()).json()
    wire.send(http("/classify", b'{"messages":[{"role":"user","content":"one"}]}'))
    classified = (await wire.answer()).json()
    assert [(entry["object"], len(entry["data"])) for entry in pooled["data"]] == [("pooling", 16), ("pooling", 16)]
    (entry,) = classified["data"]
    assert entry["label"] == ("LABEL_0" if entry["probs"][0] >= 0.5 else "LABEL_1")
    assert (entry["num_classes"], sum(entry["probs"])) == (2, 1.0)


async def test_the_emulator_turns_text_into_token_ids_and_back(emulator: Emulator, connect) -> None:
    wire = await connect(emulator.url, http("/tokenize", b'{"prompt":"A lease.","return_token_strs":true}'))
    tokenized = (await wire.answer()).json()
    assert tokenized == {
        "count": 2,
        "max_model_len": 4096,
        "tokens": [0x41206C65, 0x6173652E],
        "token_strs": ["A le", "ase."],
    }
    wire.send(http("/detokenize", json.dumps({"tokens": tokenized["tokens"]}).encode()))
    assert (await wire.answer()).json() == {"prompt": "A lease."}
    wire.send(http("/tokenize", b'{"messages":[{"role":"user","content":"A lease."}]}'))
    assert (await wire.answer()).json()["count"] == 9
    assert emulator.replicas[0].engine.prompt_tokens_total == 0
