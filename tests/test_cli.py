"""The `tailgate` command: its output and exit status."""

from __future__ import annotations

import hashlib
import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import gateway.cli.serve
import gateway.process
from gateway.cli.app import app
from gateway.core.policy import Policy
from gateway.policy import PolicyErrors, load, load_text
from gateway.settings import Settings

KEY = "tg-test-key"
POLICY = f"""\
apiVersion: tailgate/v1
models:
  llama:
    pools: [short, long]
    aliases: [gpt]
    upstream: meta/llama
  secret: {{pools: [private]}}
pools:
  short: {{replicas: [http://127.0.0.1:1], max_prompt_tokens: 100, slots: 4, timeouts: {{ttft: 3s}}}}
  long: {{replicas: [http://127.0.0.1:2], max_prompt_tokens: 1000}}
  private: {{replicas: [http://127.0.0.1:3]}}
tiers:
  paid:
    pools: [short, long]
    slo: {{ttft: {{p50: 500ms, p99: 2s}}, e2e: {{p99: 30s, up_to_tokens: 100}}}}
    max_tokens: {{default: 50, limit: 200}}
    timeouts: {{queue: 1s, ttft: 10s, idle: 5s, total: 1m}}
    limits: {{requests: 60/min, tokens: 1k/min, concurrency: 2}}
keys:
  - {{sha256: {hashlib.sha256(KEY.encode()).hexdigest()}, tenant: acme}}
"""


def run(*arguments: str | Path, stdin: str | None = None, env: dict[str, str] | None = None) -> Result:
    """Runs a command in this process, on a wide terminal that wraps no message."""
    env = {"TAILGATE_KEY": "", "COLUMNS": "300", **(env or {})}
    return CliRunner().invoke(app, [str(a) for a in arguments], input=stdin, env=env)


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY)
    return path


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    path = tmp_path / "broken.yaml"
    path.write_text(POLICY.replace("slots: 4", "slots: four").replace("aliases", "alaises"))
    return path


class TestPolicy:
    def test_policy_lists_the_shipped_policies_and_prints_one_that_can_be_served(self, tmp_path: Path) -> None:
        shipped = {line.split()[0] for line in run("policy").stdout.splitlines()}
        assert shipped == {path.stem for path in (Path(__file__).parents[1] / "policies").glob("*.yaml")}
        for name in shipped:
            (tmp_path / name).write_text(run("policy", name).stdout)
            assert load(tmp_path / name).pools

    def test_unknown_policy_is_named_with_its_likely_meaning(self) -> None:
        result = run("policy", "defualt")
        assert result.exit_code == 2
        assert "there is no policy defualt: " in result.stderr
        assert "default" in result.stderr


class TestCheck:
    def test_check_sums_up_a_good_policy(self, policy: Path) -> None:
        result = run("check", policy)
        assert result.exit_code == 0
        assert result.stdout == f"{policy}: ok: 2 models, 3 pools with 3 replicas, 1 tier: paid (default), 1 key\n"

    def test_check_prints_each_error_on_one_line_and_exits_with_1(self, policy: Path, broken: Path) -> None:
        result = run("check", policy, broken)
        assert result.exit_code == 1
        lines = result.stdout.splitlines()
        assert lines[1:] == [
            f"{broken}:5: models.llama.alaises: unknown field: did you mean aliases?",
            f"{broken}:9: pools.short.slots: four is not a number of slots: "
            "write a whole number from 1, auto, or {max: 8, strict: true}",
            f"{broken}: 2 errors",
        ]

    def test_check_says_of_a_pool_that_finds_replicas_that_there_will_be_more(self, policy: Path) -> None:
        policy.write_text(POLICY.replace("replicas:", "discover: {file: found.json}, replicas:", 1))
        assert "3 pools with 3 replicas and those it finds, 1 tier" in run("check", policy).stdout

    def test_check_prints_every_error_however_many(self, policy: Path) -> None:
        policy.write_text(POLICY + "".join(f"field{number}: 1\n" for number in range(30)))
        lines = run("check", policy).stdout.splitlines()
        assert len(lines) == 31
        assert lines[-1] == f"{policy}: 30 errors"

    def test_check_as_json_gives_file_line_path_and_message_of_each_error(self, policy: Path, broken: Path) -> None:
        result = run("check", "--json", policy, broken)
        assert result.exit_code == 1
        good, bad = json.loads(result.stdout)["files"]
        assert good["ok"]
        assert good["digest"] == load(policy).digest
        assert good["pools"]["short"] == ["http://127.0.0.1:1"]
        assert not bad["ok"]
        assert bad["errors"][0] == {
            "file": str(broken),
            "line": 5,
            "path": "models.llama.alaises",
            "message": "unknown field: did you mean aliases?",
        }

    def test_check_prints_notes_and_exits_with_0(self, policy: Path) -> None:
        policy.write_text(
            POLICY.replace("limit: 200}", "limit: 200, degrade: true}").replace(
                ", e2e: {p99: 30s, up_to_tokens: 100}", ""
            )
        )
        result = run("check", policy)
        assert result.exit_code == 0
        assert f"{policy}: note: tiers.paid.max_tokens.degrade: has no effect" in result.stdout

    def test_check_names_a_policy_file_that_does_not_exist(self, tmp_path: Path) -> None:
        result = run("check", tmp_path / "none.yaml")
        assert result.exit_code == 1
        assert "none.yaml: cannot be read: No such file or directory" in result.stdout

    def test_brackets_in_errors_are_not_taken_for_markup(self, policy: Path) -> None:
        policy.write_text(POLICY.replace("[short, long]\n    aliases", '[short, "[red]"]\n    aliases'))
        assert "models.llama.pools[1]: [red] is not a pool" in run("check", policy).stdout


class TestKey:
    def test_key_new_writes_only_the_key_to_standard_output_and_its_policy_line_beside_it(self) -> None:
        result = run("key", "new", "--tenant", "acme", "--tier", "paid")
        assert result.exit_code == 0
        (key,) = result.stdout.splitlines()
        said, under, line = result.stderr.splitlines()
        assert said.startswith("The key, written to standard output (send it as ")
        assert under == "For the policy file, under keys:"
        assert key.startswith("tg-")
        assert len(key) >= 3 + 43  # 256 bits in base64
        text = POLICY[: POLICY.index("keys:")] + f"keys:\n{line}\n"
        (known,) = load_text(text, "p.yaml").keys.values()
        assert known.sha256 == hashlib.sha256(key.encode()).digest()
        assert (known.tenant, known.tier) == ("acme", "paid")
        assert key not in result.stderr

    def test_key_new_at_a_terminal_shows_the_key_between_its_notes(self) -> None:
        ours, theirs = pty.openpty()
        try:
            command = [sys.executable, "-m", "gateway", "key", "new", "--tenant", "acme"]
            subprocess.run(command, stdout=theirs, stderr=theirs, check=True)
            text = os.read(ours, 4096).decode().splitlines()
        finally:
            os.close(ours)
            os.close(theirs)
        assert text[0].startswith("The key, shown this once (send it as ")
        assert text[1].startswith("tg-")
        assert text[2:] == ["For the policy file, under keys:", text[3]]
        assert text[3].startswith("  - {sha256: ")

    def test_new_keys_differ_from_each_other(self) -> None:
        keys = {json.loads(run("key", "new", "--json").stdout)["key"] for _ in range(20)}
        assert len(keys) == 20

    def test_new_key_without_a_tier_gets_the_default_tier(self) -> None:
        made = json.loads(run("key", "new", "--json").stdout)
        assert made["policy_line"] == f"- {{sha256: {made['sha256']}, tenant: my-tenant}}"
        assert hashlib.sha256(made["key"].encode()).hexdigest() == made["sha256"]

    @pytest.mark.parametrize("option", ["--tenant", "--tier"])
    def test_key_new_refuses_a_tenant_or_tier_that_is_not_a_name(self, option: str) -> None:
        assert run("key", "new", option, "a, tier: admin").exit_code == 2


class TestExplain:
    def explain(
        self, policy: Path, request: dict[str, Any], *more: str, status: int = 0, key: str | None = KEY
    ) -> dict[str, Any]:
        arguments = ["explain", "--policy", str(policy), "--json", *more]
        result = run(*arguments, stdin=json.dumps(request), env={"TAILGATE_KEY": key} if key else None)
        assert result.exit_code == status, result.output
        assert KEY not in result.output
        found: dict[str, Any] = json.loads(result.stdout)
        return found

    def chat(self, **more: Any) -> dict[str, Any]:
        return {"model": "gpt", "messages": [{"role": "user", "content": "hello"}], **more}

    def test_explain_follows_a_request_from_its_key_to_its_replica(self, policy: Path) -> None:
        found = self.explain(policy, self.chat(max_tokens=500, stream=True, priority=1))
        assert found["refusal"] is None
        assert found["caller"] == {"tenant": "acme", "tier": "paid", "why": "by the key in TAILGATE_KEY"}
        asked = found["asked"]
        assert (asked["model"], asked["upstream_model"], asked["stream"]) == ("llama", "meta/llama", True)
        assert asked["model_why"] == "gpt is an alias of it"
        assert [(pool["name"], pool["fits"], pool["chosen"]) for pool in found["pools"]] == [
            ("short", True, True),
            ("long", True, False),
        ]
        assert (found["output"]["asked"], found["output"]["granted"]) == (500, 200)
        assert found["output"]["changed"] == ["max_tokens", "priority"]
        assert found["timeouts"] == {"queue_s": 1.0, "ttft_s": 3.0, "idle_s": 5.0, "total_s": 60.0}
        assert found["limits"] == {
            "requests_per_min": 60.0,
            "tokens_per_min": 1000.0,
            "count": "all",
            "concurrency": 2,
            "quotas": [],
        }
        assert found["reserved_tokens"] == asked["prompt_tokens_high"] + 200
        assert found["slo"]["ttft_bound_s"] == 2.0
        assert found["slo"]["tpot_bound_s"] is None

    def test_explain_sends_a_long_prompt_to_the_pool_that_takes_it(self, policy: Path) -> None:
        found = self.explain(policy, {"model": "llama", "prompt": [7] * 400}, "--endpoint", "/v1/completions")
        short, long = found["pools"]
        assert short == {
            "name": "short",
            "fits": False,
            "chosen": False,
            "why": "at least 400 tokens, more than its 100",
        }
        assert long["chosen"]
        assert found["asked"]["prompt_why"] == "counted: the prompt is given as token ids"
        assert found["output"]["granted"] == 50

    @pytest.mark.parametrize(
        ("request_body", "why", "detail"),
        [
            ({"model": "llama", "prompt": [7] * 2000}, "context-length", "1000 tokens"),
            ({"model": "secret", "prompt": "x"}, "forbidden-model", "may not use model secret"),
            ({"model": "nobody", "prompt": "x"}, "model-not-found", "nobody"),
            ({"model": "llama", "prompt": "x", "max_tokens": "9"}, "bad-request", "max_tokens"),
            ({"model": "llama", "prompt": [7] * 900, "max_tokens": 200}, "limit-tokens", "1100 tokens"),
        ],
    )
    def test_explain_of_a_refused_request_says_why_and_exits_with_1(
        self, policy: Path, request_body: dict[str, Any], why: str, detail: str
    ) -> None:
        found = self.explain(policy, request_body, "--endpoint", "/v1/completions", status=1)
        assert found["refusal"]["why"] == why
        assert detail in found["refusal"]["detail"]

    @pytest.mark.parametrize("key", [None, "tg-wrong"])
    def test_explain_without_a_known_key_is_unauthorized(self, policy: Path, key: str | None) -> None:
        found = self.explain(policy, self.chat(), status=1, key=key)
        assert found["refusal"]["why"] == "unauthorized"
        assert found["caller"] is None

    def test_explain_says_where_a_key_that_the_policy_does_not_know_is_from(self, policy: Path) -> None:
        found = self.explain(policy, self.chat(), status=1, key="tg-wrong")
        assert found["refusal"]["detail"] == "the policy does not know the key in TAILGATE_KEY"
        found = self.explain(policy, self.chat(), "--key", "tg-wrong", status=1)
        assert found["refusal"]["detail"] == "the policy does not know this key"

    def test_explain_takes_the_key_of_a_client_as_an_option(self, policy: Path) -> None:
        for in_environment in (None, "tg-wrong"):
            found = self.explain(policy, self.chat(), "--key", KEY, key=in_environment)
            assert (found["caller"]["tenant"], found["caller"]["why"]) == ("acme", "by its key")

    def test_explain_without_keys_in_the_policy_uses_the_default_tier(self, policy: Path) -> None:
        policy.write_text(POLICY[: POLICY.index("keys:")])
        found = self.explain(policy, self.chat(), key=None)
        assert (found["caller"]["tenant"], found["caller"]["tier"]) == ("anonymous", "paid")

    def test_explain_shows_that_a_catch_all_model_sends_the_name_unchanged(self, policy: Path) -> None:
        policy.write_text(POLICY.replace("models:\n", 'models:\n  "*": {pools: [long]}\n'))
        found = self.explain(policy, {**self.chat(), "model": "org/any"})
        assert (found["asked"]["model"], found["asked"]["upstream_model"]) == ("*", "org/any")

    def test_explain_prints_lines_for_people(self, policy: Path) -> None:
        request = json.dumps(self.chat(max_tokens=500))
        result = run("explain", "--policy", policy, stdin=request, env={"TAILGATE_KEY": KEY})
        assert result.exit_code == 0
        lines = {line[:11].strip(): line[11:] for line in result.stdout.splitlines()}
        assert lines["tenant"] == "acme  (by the key in TAILGATE_KEY)"
        assert lines["timeouts"] == "queue 1s, ttft 3s, idle 5s, total 1m"
        assert lines["limits"].startswith(
            "60 requests/min, 1000 tokens/min, 2 at the same time  (this request reserves "
        )
        assert lines["slo"] == "ttft p50 500ms, ttft p99 2s, e2e p99 30s, e2e for answers up to 100 tokens"
        assert "asked 500, granted 200" in lines["max tokens"]

    def test_explain_prints_the_status_of_a_refusal_for_people(self, policy: Path) -> None:
        result = run("explain", "--policy", policy, stdin="[]", env={"TAILGATE_KEY": KEY})
        assert result.exit_code == 1
        assert "400 bad-request  (the body must be a JSON object, not an array)" in result.stdout

    def test_explain_with_a_broken_policy_writes_to_stderr_and_exits_with_2(self, broken: Path) -> None:
        result = run("explain", "--policy", broken, stdin="{}")
        assert result.exit_code == 2
        assert "did you mean aliases?" in result.stderr
        assert result.stdout == ""


class TestServe:
    @pytest.fixture
    def served(self, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Settings, Path | None, Callable[[], Policy]]]:
        calls: list[tuple[Settings, Path | None, Callable[[], Policy]]] = []

        def serve(settings: Settings, policy_path: Path | None, make: Callable[[], Policy]) -> int:
            calls.append((settings, policy_path, make))
            return 7

        monkeypatch.setattr(gateway.process, "serve", serve)
        monkeypatch.setattr(gateway.cli.serve, "begin_with_seed", lambda _: None)  # it would replace this process
        return calls

    def test_serve_takes_a_policy_and_settings_from_options(self, served: list[Any], policy: Path) -> None:
        result = run("serve", "--policy", policy, "--port", "0", "--admin-host", "::1", "--drain-deadline", "5")
        assert result.exit_code == 7
        ((settings, path, _),) = served
        assert (settings.port, settings.admin_host, settings.drain_deadline_s) == (0, "::1", 5.0)
        assert settings.host == "127.0.0.1"
        assert path == policy

    def test_serve_takes_replicas_without_a_policy(self, served: list[Any]) -> None:
        run("serve", "--replica", "http://a:1", "--replica", "http://b:1")
        ((_, path, make),) = served
        assert path is None
        assert [spec.url for spec in make().pools["default"].replicas] == ["http://a:1", "http://b:1"]

    def test_serve_allows_pages_and_host_names_without_a_policy(self, served: list[Any]) -> None:
        pages = ("--origin", "http://localhost:*", "--origin", "app://")
        run("serve", "--replica", "http://a:1", *pages, "--name", "backend")
        ((_, _, make),) = served
        assert (make().origins, make().host_names) == (("http://localhost:*", "app://"), ("backend",))

    def test_serve_names_the_option_of_an_origin_that_is_none(self, served: list[Any]) -> None:
        run("serve", "--replica", "http://a:1", "--origin", "localhost")
        ((_, _, make),) = served
        with pytest.raises(PolicyErrors, match=r"^--origin \(number 1\): localhost is not an origin"):
            make()

    @pytest.mark.parametrize(("option", "field"), [("--origin", "origins"), ("--name", "names")])
    def test_serve_with_a_policy_refuses_pages_and_names_beside_it(
        self, served: list[Any], policy: Path, option: str, field: str
    ) -> None:
        result = run("serve", "--policy", policy, option, "http://localhost:*")
        assert result.exit_code == 2
        assert f"list it in `listen.{field}` of the policy" in " ".join(result.stderr.replace("│", " ").split())
        assert not served

    def test_serve_prefers_options_to_environment_variables(self, served: list[Any]) -> None:
        env = {"TAILGATE_PORT": "1111", "TAILGATE_ADMIN_PORT": "2222", "TAILGATE_ADMIN_TOKEN": "0123456789abcdef"}
        run("serve", "--replica", "http://a:1", "--port", "3333", env=env)
        ((settings, _, _),) = served
        assert (settings.port, settings.admin_port) == (3333, 2222)
        assert settings.admin_token.get_secret_value() == "0123456789abcdef"

    def test_serve_refuses_an_admin_token_that_is_too_short(self, served: list[Any]) -> None:
        result = run("serve", "--replica", "http://a:1", env={"TAILGATE_ADMIN_TOKEN": "c4n4ry"})
        assert result.exit_code == 2
        told = " ".join(result.stderr.replace("│", " ").split())
        assert "TAILGATE_ADMIN_TOKEN: is too short for a token: give at least 16 characters" in told
        assert "c4n4ry" not in told
        assert not served

    def test_every_setting_except_the_admin_token_has_an_option(self, served: list[Any], tmp_path: Path) -> None:
        pem = tmp_path / "a.pem"
        pem.touch()
        given = {
            "--host": "::1",
            "--port": "1",
            "--admin-host": "::1",
            "--admin-port": "2",
            "--admin-uds": "/run/a.sock",
            "--admin-name": "tailgate.internal",
            "--log-level": "debug",
            "--log-format": "json",
            "--drain-deadline": "0",
            "--drain-notice": "1",
            "--max-body-bytes": "2048",
            "--max-receiving-bytes": "8192",
            "--max-header-bytes": "4096",
            "--receive-timeout": "1.5",
            "--keep-alive": "2.5",
            "--write-stall": "3.5",
            "--max-connections": "9",
            "--records": "100",
            "--access-log": "/var/requests.jsonl",
            "--access-log-file-bytes": "9999999",
            "--access-log-files": "3",
            "--usage": "/var/usage.db",
            "--traces": "0.5",
            "--workers": "2",
            "--ssl-certfile": str(pem),
            "--ssl-keyfile": str(pem),
            "--journal": "/var/calls.jsonl",
            "--journal-file-bytes": "9999999",
            "--journal-files": "3",
            "--store": "redis://valkey:6379/0",
            "--state-dir": "/var/lib/tailgate",
        }
        run("serve", "--replica", "http://a:1", "--otlp-metrics", *(part for pair in given.items() for part in pair))
        ((settings, _, _),) = served
        assert settings.model_fields_set == set(Settings.model_fields) - {"admin_token"}
        assert settings.write_stall_s == 3.5

    def test_serve_without_a_policy_or_replica_names_the_options(self, served: list[Any]) -> None:
        result = run("serve")
        assert result.exit_code == 2
        assert "--policy FILE" in result.stderr
        assert not served

    def test_serve_refuses_a_policy_and_replicas_together(self, served: list[Any], policy: Path) -> None:
        result = run("serve", "--policy", policy, "--replica", "http://a:1")
        assert result.exit_code == 2
        assert not served

    @pytest.mark.parametrize(
        ("arguments", "env", "said"),
        [
            (["--port", "70000"], {}, "--port:"),
            (["--log-level", "loud"], {}, "--log-level:"),
            (["--workers", "0"], {}, "--workers: 0 is not a number of processes: write 1 to 64, or auto"),
            (["--workers", "two"], {}, "--workers: two is not a number of processes: write 1 to 64, or auto"),
            (["--receive-timeout", "0"], {}, "--receive-timeout:"),
            (["--journal-files", "3"], {}, "--journal-files: goes with --journal"),
            (["--access-log-file-bytes", "9999999"], {}, "--access-log-file-bytes: goes with --access-log"),
            ([], {"TAILGATE_ADMIN_PORT": "many"}, "TAILGATE_ADMIN_PORT:"),
            ([], {"TAILGATE_PORT": "tcp://10.0.0.1:8080"}, "enableServiceLinks: false"),
        ],
    )
    def test_bad_setting_is_named_as_the_option_or_variable_that_set_it(
        self, served: list[Any], arguments: list[str], env: dict[str, str], said: str
    ) -> None:
        result = run("serve", "--replica", "http://a:1", *arguments, env=env)
        assert result.exit_code == 2
        assert said in " ".join(result.stderr.replace("│", " ").split())
        assert not served

    @pytest.mark.parametrize(
        "token", ["hunter2", "hunter2-hunter2-hunter2\n", "hunter2 hunter2 hunter2", "hunter2-hunter2-ü"]
    )
    def test_error_about_an_unusable_admin_token_does_not_show_the_token(self, served: list[Any], token: str) -> None:
        result = run("serve", "--replica", "http://a:1", env={"TAILGATE_ADMIN_TOKEN": token})
        assert result.exit_code == 2
        assert "TAILGATE_ADMIN_TOKEN" in result.stderr
        assert "hunter2" not in result.output


class TestScript:
    """Run the console script in a process of its own."""

    def test_check_writes_plain_text_when_stdout_is_no_terminal(self, policy: Path, broken: Path) -> None:
        script = Path(sys.executable).with_name("tailgate")
        done = subprocess.run([script, "check", policy, broken], capture_output=True, text=True, timeout=300)
        assert done.returncode == 1
        assert f"{broken}:5: models.llama.alaises: unknown field: did you mean aliases?\n" in done.stdout
        assert "\x1b" not in done.stdout
        assert done.stderr == ""

    def test_serve_refuses_a_public_address_without_keys(self) -> None:
        command = [sys.executable, "-m", "gateway", "serve", "--replica", "http://127.0.0.1:1", "--host", "0.0.0.0"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 1
        assert "refusing to serve without keys on 0.0.0.0" in done.stderr

    def test_serve_prints_every_error_of_a_policy_and_exits(self, broken: Path) -> None:
        command = [sys.executable, "-m", "gateway", "serve", "--policy", str(broken)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 1
        assert done.stderr.count("broken.yaml:") == 2

    def test_help_names_every_command(self) -> None:
        result = run("--help")
        assert result.exit_code == 0
        for command in ("serve", "check", "explain", "key"):
            assert command in result.stdout

    def test_a_light_command_does_not_load_the_data_plane(self) -> None:
        code = (
            "import sys; from typer.testing import CliRunner; from gateway.cli.app import app; "
            "CliRunner().invoke(app, ['key', 'new']); "
            "print(sorted({m for m in sys.modules if m.startswith(('uvicorn', 'fastapi', 'httpx', 'gateway.proxy'))}))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
        assert done.stdout.strip() == "[]"


def test_explain_names_the_known_paths_when_the_endpoint_is_unknown(policy: Path) -> None:
    result = run("explain", "--policy", policy, "--endpoint", "bad", stdin="{}")
    assert result.exit_code == 2
    assert "'--endpoint': bad is not a path that reaches a replica; known: /v1/chat/completions," in result.stderr
    assert "Value error" not in result.stderr


def test_serve_without_anything_to_serve_names_two_ways_to_begin() -> None:
    done = CliRunner().invoke(app, ["serve"], env={"COLUMNS": "300"})
    assert done.exit_code == 2
    assert "tailgate policy prints some to start from" in done.stderr


def test_ctrl_c_while_modules_are_read_ends_without_a_traceback() -> None:
    code = (
        "import sys, types\n"
        "def find_spec(name, *_):\n"
        "    if name == 'gateway.cli.app': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, types.SimpleNamespace(find_spec=find_spec))\n"
        "import gateway.__main__"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (130, "")
