"""The documents agree with the code: links, commands, names, and the table of reasons."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from asyncio.subprocess import PIPE
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Any, Union, cast, get_args

import pytest
import typer.main
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from ruamel.yaml import YAML
from typer.core import TyperGroup

from gateway.cli.app import app
from gateway.core.admission.rules import RULES
from gateway.core.results import Reason
from gateway.policy import PolicyErrors, load_text
from gateway.policy.builtin import written
from gateway.policy.keys import hash_of, new_key
from gateway.policy.schema import PolicyFile
from gateway.settings import PREFIX, Settings
from gateway.sim.workload.load import load_text as load_workload_text
from gateway.wire.errors.reasons import ROWS
from gateway.wire.target import GETS, POSTS
from loadtests import ports
from loadtests.__main__ import app as loadtests_app
from loadtests.demo_text import OVERLOAD, QUESTION
from loadtests.emulator.__main__ import parser as emulator_parser
from loadtests.experiments.missed import WHY
from loadtests.scenarios.load import load_scenario
from tests.serving import gateways

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
OPERATIONS = ROOT / "docs" / "operations" / "runbook.md"
DATA_PLANE = ROOT / "docs" / "reference" / "data-plane.md"
POLICY = ROOT / "docs" / "reference" / "policy.md"
METRICS = ROOT / "docs" / "reference" / "metrics.md"
ADMISSION = ROOT / "docs" / "internals" / "admission.md"
LOADTESTING = ROOT / "docs" / "guides" / "loadtesting.md"
LOADTEST_OPTIONS = ROOT / "docs" / "reference" / "loadtests.md"
RESULTS = ROOT / "docs" / "results"
PAGES = [README, ROOT / "CONTRIBUTING.md", ROOT / "deploy" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Variables for commands or tests, not for the process: these are not settings.
OTHER_VARIABLES = {"TAILGATE_KEY", "TAILGATE_PURE", "TAILGATE_TEST_LONG", "TAILGATE_TRACES"}
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return FENCE.sub("", page.read_text("utf-8"))


def shell_blocks(page: Path) -> list[str]:
    return [body for language, body in FENCE.findall(page.read_text("utf-8")) if language == "sh"]


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of headings."""
    titles = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@every_page
def test_every_table_of_a_page_has_a_head(page: Path) -> None:
    assert not re.findall(r"(?:\A|\n\n)(\|.*)\n(?!\|[ :|-]+\|(?:\n|\Z))", prose(page))


# ---- links and names


@every_page
def test_links_of_documents_lead_to_files_and_headings_that_exist(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


@every_page
def test_files_that_documents_name_exist(page: Path) -> None:
    for name in re.findall(r"(?<![\w./-])((?:gateway|loadtests|policies|tests)/[\w./-]*\w)", page.read_text("utf-8")):
        assert (ROOT / name).exists(), name


@every_page
def test_metrics_named_in_documents_are_in_the_reference(page: Path) -> None:
    known = set(re.findall(r"^\| `(tailgate_\w+)`", METRICS.read_text("utf-8"), re.MULTILINE))
    assert len(known) > 30
    named = set(re.findall(r"\b(tailgate_[a-z_]+[a-z])\b", page.read_text("utf-8")))
    assert {re.sub(r"_(bucket|sum|count)$", "", name) for name in named} <= known


@every_page
def test_variables_named_in_documents_are_settings(page: Path) -> None:
    known = {PREFIX + name.upper() for name in Settings.model_fields} | OTHER_VARIABLES
    assert set(re.findall(rf"\b{PREFIX}[A-Z_]+[A-Z]\b", page.read_text("utf-8"))) <= known


@every_page
def test_policy_fields_named_in_documents_exist(page: Path) -> None:
    for path in re.findall(r"`((?:pools|tiers|models)\.\*\.[\w.*]+)", page.read_text("utf-8")):
        section: Any = PolicyFile
        for part in path.split("."):
            section = _inside(section, part)
            assert section is not None, path


def _inside(section: Any, part: str) -> Any:
    """The kind of the value at `part` of a section, a mapping or a list; None if no value is allowed there."""
    if part == "*":
        return _bare(get_args(section)[-1])
    if not (isinstance(section, type) and issubclass(section, BaseModel)):
        return None
    field = section.model_fields.get(part)
    return _bare(field.annotation) if field else None


def _bare(kind: Any) -> Any:
    while (
        getattr(kind, "__metadata__", None) or isinstance(kind, UnionType) or getattr(kind, "__origin__", None) is Union
    ):
        kind = next(part for part in get_args(kind) if part is not type(None))
    return kind


# ---- tables


def test_runbook_lists_every_reason_with_its_status() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| (\d+) \|", OPERATIONS.read_text("utf-8"), re.MULTILINE)
    assert sorted(rows) == sorted((why.value, str(ROWS[why].status)) for why in Reason)


def test_admission_page_lists_the_rules_in_the_order_in_which_they_are_asked() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| (.+) \|$", ADMISSION.read_text("utf-8"), re.MULTILINE)
    assert rows == [(rule.rule.value, rule.says) for rule in RULES]


def test_the_data_plane_reference_names_every_path() -> None:
    named = re.findall(r"`(GET|POST) (/[\w/]+)(?:/\{id\})?`", DATA_PLANE.read_text("utf-8"))
    assert set(named) == {("POST", path.decode()) for path in POSTS} | {("GET", path.decode()) for path in GETS}


def test_data_plane_reference_names_every_header_of_the_gateway() -> None:
    source = "".join(
        file.read_text("utf-8") for room in ("proxy", "wire") for file in (ROOT / "gateway" / room).rglob("*.py")
    )
    sent = set(re.findall(r"(x-tailgate-[a-z-]+): (?:%|[a-z_]+\\r)", source))
    assert "x-tailgate-reason" in sent
    assert set(re.findall(r"`(x-tailgate-[a-z-]+)`", DATA_PLANE.read_text("utf-8"))) == sent


# ---- the policy file


ENVIRONMENT = {"VLLM_API_KEY": "key-of-the-replicas"}


def yaml_blocks(page: Path) -> list[str]:
    return [body for language, body in FENCE.findall(page.read_text("utf-8")) if language == "yaml"]


def policy_tables() -> Iterator[tuple[list[str], dict[str, list[str]]]]:
    """For each section of the reference: its paths, and the rows of its table by field. Fields may share a row."""
    for title, body in re.findall(r"^##+ (.+)\n((?:(?!^##).*\n)*)", prose(POLICY), re.MULTILINE):
        rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| (.*) \| (.*) \| (.*) ?\|$", body, re.MULTILINE)
        if rows:
            fields = {name: rest for names, *rest in rows for name in re.findall(r"\w+", names)}
            yield re.findall(r"`(.+?)`", title), fields


def policy_sections(section: Any = PolicyFile, path: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """Every section a policy may have, with its path."""
    if isinstance(section, type) and issubclass(section, BaseModel):
        yield path, section
        for name, field in section.model_fields.items():
            yield from policy_sections(_bare(field.annotation), f"{path}.{name}".lstrip("."))
    elif getattr(section, "__origin__", None) in (dict, list):
        yield from policy_sections(_inside(section, "*"), f"{path}.*")


def _shown_default(field: FieldInfo) -> str | None:
    """The default in the form of the page; None if the page describes it in words."""
    if field.is_required():
        return "required"
    match field.json_schema_extra:
        case {"default": str(shown)}:
            return f"`{shown}`"
        case None:
            return f"`{field.default if isinstance(field.default, str) else json.dumps(field.default)}`"
        case _:
            return None


def test_the_policy_page_has_every_field_with_its_default() -> None:
    sections = dict(policy_sections())
    told: set[str] = set()
    for paths, rows in policy_tables():
        paths = paths or [""]
        told |= set(paths)
        fields = {name: field for path in paths for name, field in sections[path].model_fields.items()}
        assert list(rows) == list(fields), paths
        for name, (_, default, _) in rows.items():
            assert default == (_shown_default(fields[name]) or default), (paths, name)
    assert told == set(sections)


@every_page
def test_examples_of_files_in_documents_can_be_loaded(page: Path, tmp_path: Path) -> None:
    for block in yaml_blocks(page):
        if "kind: Scenario" in block:
            file = tmp_path / "scenario.yaml"
            file.write_text(block)
            assert load_scenario(str(file)).contenders
        elif "kind: Workload" in block:
            assert load_workload_text(block, page.name).shares
        elif "apiVersion: tailgate/" in block or page == POLICY:
            assert load_text(block, page.name, ENVIRONMENT).models


def test_the_errors_that_the_policy_page_shows_are_those_of_its_example() -> None:
    example = yaml_blocks(POLICY)[0].replace("slots: 64", "slot: 64").replace("queue: 2s", "queue: 2")
    with pytest.raises(PolicyErrors) as caught:
        load_text(example, "policy.yaml", ENVIRONMENT)
    (shown,) = (body for language, body in FENCE.findall(POLICY.read_text("utf-8")) if language == "text")
    assert str(caught.value) == shown.rstrip("\n")


def test_the_policy_page_has_the_policy_of_serving_without_one() -> None:
    (pool,) = load_text(yaml_blocks(POLICY)[-1], "policy.yaml", ENVIRONMENT).pools.values()
    replicas = [replica.url for replica in pool.replicas]
    assert YAML(typ="safe", pure=True).load(yaml_blocks(POLICY)[-1]) == written(replicas)


# ---- commands


@every_page
def test_shell_blocks_of_documents_parse(page: Path) -> None:
    for block in shell_blocks(page):
        done = subprocess.run(["sh", "-n"], input=block, capture_output=True, text=True, check=False)
        assert done.returncode == 0, block + done.stderr


def commands(page: Path) -> Iterator[list[str]]:
    """The words of every command in a shell block, and of our own commands in prose."""
    lines = [line for block in shell_blocks(page) for line in block.splitlines()]
    lines += re.findall(r"`((?:tailgate|make|\S*python -m loadtests[\w.]*) [^`]+)`", prose(page))
    for line in lines:
        words: list[str] = []
        try:
            lexer = shlex.shlex(line, posix=True, punctuation_chars="|<>;&")
            lexer.whitespace_split = True
            parts = list(lexer)
        except ValueError:
            continue  # one line of a quotation over several lines; `sh -n` has read it whole
        for word in [*parts, ";"]:
            if word in (";", "|", "<", "&&"):
                yield words
                words = []
            else:
                words.append(word)


@every_page
def test_options_of_tailgate_in_documents_exist(page: Path) -> None:
    for words in commands(page):
        if words and Path(words[0]).name == "tailgate":
            command: Any = typer.main.get_command(app)
            options: set[str] = set()
            for word in words[1:]:
                if isinstance(command, TyperGroup):
                    found = command.get_command(cast(Any, None), word)
                    assert found or word.startswith("-"), words
                    command = found or command
                options |= {word} if word.startswith("--") else set()
            if words[1:3] == ["load", "emulate"]:
                emulator_parser().parse_args(words[3:])
                continue
            known = {name for parameter in command.params for name in parameter.opts} | {"--help", "--version"}
            assert options <= known, words


def test_the_page_of_load_tests_has_every_option_of_run() -> None:
    text = LOADTEST_OPTIONS.read_text("utf-8")
    run = cast(Any, typer.main.get_command(loadtests_app)).get_command(None, "run")
    options = {parameter.opts[0] for parameter in run.params} - {"--json", "--out", "--probe"}
    assert {option for option in options if option not in text} == set()


@every_page
def test_targets_of_make_that_documents_name_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    for words in commands(page):
        if words and words[0] == "make":
            assert {word for word in words[1:] if "=" not in word} <= targets, words


@every_page
def test_modules_in_documents_exist(page: Path) -> None:
    for words in commands(page):
        if "-m" in words[:2]:
            module = words[words.index("-m") + 1]
            assert importlib.util.find_spec(module), words


def test_request_in_the_readme_is_the_one_of_the_demo() -> None:
    lines = [line for block in shell_blocks(README) for line in block.splitlines() if line.startswith("curl")]
    words = shlex.split(lines[0])
    assert f"http://{ports.HOST}:{ports.PORT}/v1/chat/completions" in words
    assert json.loads(words[words.index("-d") + 1]) == QUESTION
    assert f"http://127.0.0.1:{ports.ADMIN_PORT}/" in README.read_text("utf-8")


@pytest.mark.skipif(not shutil.which("curl"), reason="there is no curl")
async def test_readme_lists_the_models_of_a_key_with_curl() -> None:
    (line,) = (line for block in shell_blocks(README) for line in block.splitlines() if "/v1/models" in line)
    key = new_key()
    policy = (ROOT / "policies" / "chat-with-tiers.yaml").read_text()
    policy = re.sub(r"sha256: \w+, tenant: acme", f"sha256: {hash_of(key).hex()}, tenant: acme", policy)
    async with gateways() as start:
        gateway = await start(policy)
        typed = line.replace(f"http://127.0.0.1:{ports.PORT}", gateway.url)
        environment = {**os.environ, "TAILGATE_KEY": key, "NO_PROXY": "127.0.0.1"}
        curl = await asyncio.create_subprocess_shell(typed, env=environment, stdout=PIPE, stderr=PIPE)
        answer, _ = await curl.communicate()
    assert [model["id"] for model in json.loads(answer)["data"]]


@pytest.mark.parametrize("page", [README, LOADTESTING], ids=lambda page: page.name)
def test_overload_command_in_the_documents_is_the_one_that_the_demo_prints(page: Path) -> None:
    (line,) = (line for block in shell_blocks(page) for line in block.splitlines() if "--workload climb" in line)
    typed = f"load run --target http://{ports.HOST}:{ports.PORT} --policy policies/default.yaml {OVERLOAD}"
    assert line == f".venv/bin/tailgate {typed}"


def test_readme_commands_that_do_not_serve_succeed(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "policies", tmp_path / "policies")
    tailgate = f"{shlex.quote(sys.executable)} -m gateway"
    lines = [line for block in shell_blocks(README) for line in block.splitlines()]
    wanted = [line for line in lines if re.match(r"cp |echo |\S*tailgate (check|key)", line)]
    assert len(wanted) == 4
    script = "\n".join(["set -e", *wanted]).replace(".venv/bin/tailgate", tailgate)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["sh", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "goes here" in done.stdout


def test_pages_of_experiments_give_reasons_for_missed_targets_and_only_for_these() -> None:
    texts = {page.stem: page.read_text() for page in (RESULTS / "experiments").glob("*.md") if page.stem != "README"}
    missed = {name for name, text in texts.items() if "| **missed** |" in text}
    assert missed == set(WHY)
    assert all(f"## Missed\n\n{WHY[name]}\n" in texts[name] for name in missed)


def test_every_experiment_is_listed_with_the_targets_it_met() -> None:
    folder = RESULTS / "experiments"
    rows = re.findall(r"^\| \[([\w-]+)\]\(\1\.md\) \| .+ \| (.+) \|$", (folder / "README.md").read_text(), re.MULTILINE)
    found = {}
    for page in folder.glob("*.md"):
        met, missed = (page.read_text().count(f"| {verdict} |") for verdict in ("met", "**missed**"))
        found[page.stem] = f"{met}/{met + missed}" if met + missed else "none set"
    del found["README"]
    assert dict(rows) == found


def test_runbook_lists_every_alert() -> None:
    alerts = set(
        re.findall(r"^ +- alert: (\w+)$", (ROOT / "deploy" / "prometheus" / "alerts.yaml").read_text(), re.MULTILINE)
    )
    told = OPERATIONS.read_text().partition("## By alert")[2].partition("\n## ")[0]
    assert alerts == set(re.findall(r"`(Tailgate\w+)`", told))


@pytest.mark.parametrize("page", sorted((RESULTS / "scenarios").glob("*.md")), ids=lambda page: page.stem)
def test_scenario_page_agrees_with_the_scenario_file(page: Path) -> None:
    assert " ".join(load_scenario(page.stem).about.split()) in page.read_text()
