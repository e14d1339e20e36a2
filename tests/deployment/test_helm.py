"""The chart renders to manifests that Kubernetes accepts, and refuses wrong values.

Rendered by Helm's own library (helm-python-sdk); without it those tests skip. `.ci/run` installs it.
"""

from __future__ import annotations

import copy
import json
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from deploy.release.chart_schema import chart_schema
from gateway.policy.load import load_text

from .files import DEPLOY, manifest, read_yaml

CHART = DEPLOY / "helm" / "tailgate"
EXAMPLE = read_yaml(DEPLOY / "helm" / "example-values.yaml")
DEFAULTS = read_yaml(CHART / "values.yaml")
SCHEMA = json.loads((CHART / "values.schema.json").read_text())


def texts_of(values: dict[str, Any]) -> dict[str, str]:
    """The rendered templates by file, of a release called gate."""
    helm = pytest.importorskip("helm_python", reason="helm-python-sdk is not installed: the chart is not rendered")
    with helm.Chart.load(str(CHART)) as chart:
        return dict(chart.render(values, name="gate", namespace="prod"))


def notes(values: dict[str, Any]) -> str:
    """What `helm install` prints."""
    return next(text for file, text in texts_of(values).items() if file.endswith("NOTES.txt"))


def rendered(values: dict[str, Any]) -> dict[str, Any]:
    """The manifests by kind and name."""
    texts = [text for file, text in texts_of(values).items() if file.endswith(".yaml")]
    documents = [one for text in texts for one in yaml.safe_load_all(text) if one]
    return {f"{one['kind']}/{one['metadata']['name']}": one for one in documents}


def test_schema_of_the_values_is_derived_from_that_of_policies() -> None:
    assert (CHART / "values.schema.json").read_text() == chart_schema()


def test_schema_accepts_the_example_and_names_the_wrong_field() -> None:
    values = {**DEFAULTS, **EXAMPLE}
    jsonschema.validate(values, SCHEMA)
    for change, told in (
        (lambda it: it.update(replcias=3), "replcias"),
        (lambda it: it.update(policy=None), "None is not of type 'object'"),
        (lambda it: it["policy"]["pools"]["main"].update(slot=4), "slot"),
        (lambda it: it["service"].update(port=0), "0 is less than the minimum"),
    ):
        wrong = copy.deepcopy(values)
        change(wrong)
        with pytest.raises(jsonschema.ValidationError, match=told):
            jsonschema.validate(wrong, SCHEMA)


def test_example_has_the_policy_of_the_kustomize_base() -> None:
    assert EXAMPLE["policy"] == read_yaml(DEPLOY / "kubernetes" / "base" / "policy.yaml")


@pytest.mark.parametrize("version", ["1.34", "1.37"])
def test_rendered_manifests_are_accepted_by_the_kubernetes_schema(version: str) -> None:
    found = rendered({**EXAMPLE, "serviceMonitor": True})
    assert len(found) == 7
    for name, one in found.items():
        if not name.startswith("ServiceMonitor/"):
            kubernetes_validate.validate(one, version, strict=True)


def test_rendered_policy_is_one_that_the_gateway_loads() -> None:
    text = rendered(EXAMPLE)["ConfigMap/gate-policy"]["data"]["policy.yaml"]
    assert load_text(text, "policy.yaml", {"VLLM_API_KEY": "key"}).tiers.keys() == {"premium", "standard"}


def test_rendered_pod_is_that_of_the_kustomize_base() -> None:
    pod = rendered(EXAMPLE)["Deployment/gate"]["spec"]["template"]["spec"]
    base = manifest("deployment")["spec"]["template"]["spec"]
    base["volumes"][0]["configMap"]["name"] = "gate-policy"
    base["containers"][0]["imagePullPolicy"] = "IfNotPresent"
    for constraint in base["topologySpreadConstraints"]:
        constraint["labelSelector"]["matchLabels"]["app.kubernetes.io/name"] = "gate"
    assert pod == base


@pytest.mark.parametrize(
    ("store", "variable"),
    [
        ({"url": "redis://valkey:6380/0"}, {"value": "redis://valkey:6380/0"}),
        ({"secretKey": "store-url"}, {"valueFrom": {"secretKeyRef": {"name": "tailgate", "key": "store-url"}}}),
    ],
)
def test_store_reaches_the_gateway_and_its_port_is_open(store: dict[str, str], variable: dict[str, Any]) -> None:
    values = {**EXAMPLE, "store": {**DEFAULTS["store"], **store, "port": 6380}}
    found = rendered(values)
    assert not notes(values).strip()
    assert not notes({**EXAMPLE, "replicas": 1}).strip()
    assert "2 gateways run without a store" in notes(EXAMPLE)
    (container,) = found["Deployment/gate"]["spec"]["template"]["spec"]["containers"]
    assert {"name": "TAILGATE_STORE", **variable} in container["env"]
    assert found["NetworkPolicy/gate"]["spec"]["egress"][-1] == {"ports": [{"port": 6380}]}
    wrong = {**DEFAULTS, **EXAMPLE, "store": {"url": "redis://a", "secretKey": "b"}}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, SCHEMA)


def test_services_and_network_policy_select_the_pods_of_the_release() -> None:
    found = rendered(EXAMPLE)
    labels = found["Deployment/gate"]["spec"]["template"]["metadata"]["labels"]
    for name in ("Service/gate", "Service/gate-admin"):
        assert found[name]["spec"]["selector"].items() <= labels.items()
    assert found["NetworkPolicy/gate"]["spec"]["podSelector"]["matchLabels"] == labels
    assert "NetworkPolicy/gate" not in rendered({**EXAMPLE, "networkPolicy": {"enabled": False}})


def test_pod_has_time_for_notice_and_drain() -> None:
    pod = rendered({**EXAMPLE, "drainDeadlineSeconds": 600, "drainNoticeSeconds": 20})["Deployment/gate"]
    spec = pod["spec"]["template"]["spec"]
    assert spec["terminationGracePeriodSeconds"] > 620
    assert {"name": "TAILGATE_DRAIN_DEADLINE_S", "value": "600"} in spec["containers"][0]["env"]


def test_pod_without_notice_does_not_sleep_for_no_time_which_kubernetes_before_1_33_refuses() -> None:
    pod = rendered({**EXAMPLE, "drainNoticeSeconds": 0})["Deployment/gate"]["spec"]["template"]["spec"]
    assert "lifecycle" not in pod["containers"][0]


@pytest.mark.parametrize("version", ["1.34", "1.37"])
def test_discovery_gives_the_pod_the_account_and_the_rights_of_the_kustomize_component(version: str) -> None:
    found, component = rendered({**EXAMPLE, "discovery": True}), DEPLOY / "kubernetes" / "discovery"
    for document in found.values():
        kubernetes_validate.validate(document, version, strict=True)
    pod = found["Deployment/gate"]["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is True
    assert f"ServiceAccount/{pod['serviceAccountName']}" in found
    binding = found["RoleBinding/gate-discovery"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": pod["serviceAccountName"]}]
    assert found[f"Role/{binding['roleRef']['name']}"]["rules"] == read_yaml(component / "role.yaml")["rules"]
    egress = read_yaml(component / "networkpolicy.yaml")["spec"]["egress"]
    assert found["NetworkPolicy/gate"]["spec"]["egress"][-1:] == egress
    assert not [name for name in rendered(EXAMPLE) if name.startswith(("Role", "ServiceAccount"))]
