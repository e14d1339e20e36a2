"""The Job of a load test: its manifests are valid, and its command line is one of the load tester."""

from __future__ import annotations

from typing import Any, cast
from urllib.parse import urlsplit

import kubernetes_validate
import pytest
import typer.main

from loadtests.__main__ import app
from loadtests.replay.shard import shard_of

from .files import DEPLOY, manifest, read_yaml

FOLDER = DEPLOY / "kubernetes" / "loadtest"
JOB = read_yaml(FOLDER / "job.yaml")
POD = JOB["spec"]["template"]
(CONTAINER,) = POD["spec"]["containers"]


@pytest.mark.parametrize("name", ["job.yaml", "volume.yaml"])
@pytest.mark.parametrize("version", ["1.34", "1.37"])
def test_load_test_manifest_is_accepted_by_the_kubernetes_schema(name: str, version: str) -> None:
    kubernetes_validate.validate(read_yaml(FOLDER / name), version, strict=True)


def test_job_has_a_pod_for_every_shard_and_options_that_exist() -> None:
    assert CONTAINER["args"][:2] == ["load", "run"]
    run = cast(Any, typer.main.get_command(app)).get_command(None, "run")
    known = {name for parameter in run.params for name in parameter.opts}
    given = dict(part.split("=", 1) for part in CONTAINER["args"][2:] if "=" in part)
    assert {part.split("=")[0] for part in CONTAINER["args"][2:]} <= known
    count = JOB["spec"]["completions"]
    assert JOB["spec"]["parallelism"] == count
    shards = {shard_of(given["--shard"], {"JOB_COMPLETION_INDEX": f"{index}"}).index for index in range(count)}
    assert shards == set(range(count))


def test_job_aims_at_the_port_of_the_gateways_service() -> None:
    (target,) = (part for part in CONTAINER["args"] if part.startswith("--target="))
    url, service = urlsplit(target.removeprefix("--target=")), manifest("service")
    assert (url.hostname, url.port or 80) == (service["metadata"]["name"], service["spec"]["ports"][0]["port"])


def test_rows_of_each_pod_go_to_a_folder_of_its_own_on_the_volume() -> None:
    (claim,) = POD["spec"]["volumes"]
    assert claim["persistentVolumeClaim"]["claimName"] == read_yaml(FOLDER / "volume.yaml")["metadata"]["name"]
    (mount,) = CONTAINER["volumeMounts"]
    assert f"--out={mount['mountPath']}/$({CONTAINER['env'][0]['name']})" in CONTAINER["args"]
