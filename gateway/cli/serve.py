"""`tailgate serve`: run the gateway."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from gateway.cli.output import refuse_unused
from gateway.hash_seed import begin_with_seed
from gateway.settings import PREFIX, Settings

_HINT = ["--policy", "--replica"]
_FLAGS: dict[str, str] = {}
"""Command-line option by setting."""


def _option(field: str, *names: str, **more: Any) -> Any:
    about = Settings.model_fields[field]
    _FLAGS[field] = names[0] if names else f"--{field}".replace("_", "-")
    default = "" if about.default is None or about.default == frozenset() else f" \\[default: {about.default}]"
    text = f"{about.description}{default} \\[env: {PREFIX}{field.upper()}]"
    return typer.Option(*names, help=text, show_default=False, **more)


def serve(
    context: typer.Context,
    policy: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The policy file; it is read again when it changes, and on SIGHUP.",
            show_default=False,
        ),
    ] = None,
    replica: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL",
            help="A replica, http://host:port; may be repeated. Instead of a policy.",
            show_default=False,
        ),
    ] = None,
    origin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ORIGIN",
            help="With --replica: a web page that may use the API, as http://localhost:* or app://; may be repeated.",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST",
            help="With --replica: a name that a Host header may have, such as the name of nginx's upstream; may be "
            "repeated.",
            show_default=False,
        ),
    ] = None,
    host: Annotated[str | None, _option("host", rich_help_panel="Addresses")] = None,
    port: Annotated[int | None, _option("port", rich_help_panel="Addresses")] = None,
    admin_host: Annotated[str | None, _option("admin_host", rich_help_panel="Addresses")] = None,
    admin_port: Annotated[int | None, _option("admin_port", rich_help_panel="Addresses")] = None,
    admin_uds: Annotated[Path | None, _option("admin_uds", rich_help_panel="Addresses")] = None,
    admin_names: Annotated[
        list[str] | None, _option("admin_names", "--admin-name", rich_help_panel="Addresses")
    ] = None,
    ssl_certfile: Annotated[Path | None, _option("ssl_certfile", rich_help_panel="Addresses")] = None,
    ssl_keyfile: Annotated[Path | None, _option("ssl_keyfile", rich_help_panel="Addresses")] = None,
    workers: Annotated[str | None, _option("workers", metavar="N|auto", rich_help_panel="Processes")] = None,
    store: Annotated[str | None, _option("store", metavar="URL", rich_help_panel="Processes")] = None,
    max_connections: Annotated[int | None, _option("max_connections", rich_help_panel="Bounds")] = None,
    max_body_bytes: Annotated[int | None, _option("max_body_bytes", rich_help_panel="Bounds")] = None,
    max_receiving_bytes: Annotated[int | None, _option("max_receiving_bytes", rich_help_panel="Bounds")] = None,
    max_header_bytes: Annotated[int | None, _option("max_header_bytes", rich_help_panel="Bounds")] = None,
    receive_timeout_s: Annotated[
        float | None, _option("receive_timeout_s", "--receive-timeout", rich_help_panel="Times in seconds")
    ] = None,
    keep_alive_s: Annotated[
        float | None, _option("keep_alive_s", "--keep-alive", rich_help_panel="Times in seconds")
    ] = None,
    write_stall_s: Annotated[
        float | None, _option("write_stall_s", "--write-stall", rich_help_panel="Times in seconds")
    ] = None,
    drain_deadline_s: Annotated[
        float | None, _option("drain_deadline_s", "--drain-deadline", rich_help_panel="Times in seconds")
    ] = None,
    drain_notice_s: Annotated[
        float | None, _option("drain_notice_s", "--drain-notice", rich_help_panel="Times in seconds")
    ] = None,
    journal: Annotated[Path | None, _option("journal", metavar="FILE", rich_help_panel="Journal")] = None,
    journal_file_bytes: Annotated[int | None, _option("journal_file_bytes", rich_help_panel="Journal")] = None,
    journal_files: Annotated[int | None, _option("journal_files", rich_help_panel="Journal")] = None,
    records: Annotated[int | None, _option("records", rich_help_panel="Bounds")] = None,
    access_log: Annotated[Path | None, _option("access_log", metavar="FILE", rich_help_panel="Access log")] = None,
    access_log_file_bytes: Annotated[int | None, _option("access_log_file_bytes", rich_help_panel="Access log")] = None,
    access_log_files: Annotated[int | None, _option("access_log_files", rich_help_panel="Access log")] = None,
    trace_share: Annotated[str | None, _option("trace_share", "--traces", metavar="SHARE")] = None,
    otlp_metrics: Annotated[bool | None, _option("otlp_metrics", "--otlp-metrics")] = None,
    usage: Annotated[Path | None, _option("usage", metavar="FILE")] = None,
    state_dir: Annotated[Path | None, _option("state_dir", metavar="DIR")] = None,
    log_level: Annotated[str | None, _option("log_level")] = None,
    log_format: Annotated[str | None, _option("log_format")] = None,
) -> None:
    """Run the gateway, from a policy file or in front of replicas named here.

    `tailgate serve --policy policies/default.yaml`

    `tailgate serve --replica http://10.0.0.1:8000 --replica http://10.0.0.2:8000`

    With --replica alone a built-in policy applies. It has one pool, serves the models that the replicas list, and never
    refuses a request for load.

    Options win over the environment. The token of the admin API comes from TAILGATE_ADMIN_TOKEN only. SIGTERM stops
    accepting, lets running requests finish until the drain deadline, and exits with 0.
    """
    given = _settings_in(locals())
    replicas = tuple(replica or ())
    if policy is not None and replicas:
        raise typer.BadParameter("give one of them: a policy lists its replicas itself", param_hint=_HINT)
    if policy is None and not replicas:
        raise typer.BadParameter(
            "nothing to serve: give --policy FILE (tailgate policy prints some to start from), "
            "or --replica http://host:port for a first look",
            param_hint=_HINT,
        )
    for option, values, field in (("--origin", origin, "listen.origins"), ("--name", name, "listen.names")):
        if policy is not None and values:
            raise typer.BadParameter(f"goes with --replica: list it in `{field}` of the policy", param_hint=[option])
    settings = _settings(given)
    for file in ("journal", "access_log"):
        if getattr(settings, file) is None:
            refuse_unused(context, (f"{file}_file_bytes", f"{file}_files"), f"goes with {_FLAGS[file]}")
    if settings.state_dir is not None:
        begin_with_seed(settings.state_dir)
    from gateway.policy.builtin import builtin
    from gateway.process import serve as run  # imported here, because only this command needs the data plane

    raise typer.Exit(run(settings, policy, partial(builtin, replicas, origin or (), name or ())))


def _settings_in(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the given options that are settings."""
    return {name: value for name, value in options.items() if name in Settings.model_fields and value is not None}


def _settings(given: Mapping[str, Any]) -> Settings:
    try:
        return Settings(**given)
    except ValidationError as error:
        problems = [_problem(detail["loc"], detail["msg"], given) for detail in error.errors(include_input=False)]
        raise typer.BadParameter("; ".join(problems)) from None


def _problem(place: tuple[int | str, ...], message: str, given: Mapping[str, Any]) -> str:
    """The error text for a setting. It names the option or variable that set it."""
    text = message.removeprefix("Value error, ")
    if not place:
        return text
    name = str(place[0])
    return f"{_FLAGS[name] if name in given else PREFIX + name.upper()}: {text}"
