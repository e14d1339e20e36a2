"""The manifests are valid, and fit each other and the process."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from fastapi.testclient import TestClient

from gateway.api_side import CLOSE_GRACE_S
from gateway.observe.admin import Access, admin_app
from gateway.observe.metrics.gauges import ProcessFamilies
from gateway.observe.metrics.metrics import Metrics
from gateway.policy.load import load
from gateway.settings import PREFIX, Settings
from tests.observe.made import POLICY, SOURCES

from .files import BASE, OVERLAY, Document, environment, manifest, read_yaml

KUSTOMIZATION = read_yaml(BASE / "kustomization.yaml")
DEPLOYMENT = manifest("deployment")
POD = DEPLOYMENT["spec"]["template"]
(CONTAINER,) = POD["spec"]["containers"]
BUILTIN = [name for name in KUSTOMIZATION["resources"] if name != "servicemonitor.yaml"]


@pytest.mark.parametrize("name", BUILTIN)
@pytest.mark.parametrize("version", ["1.34", "1.37"])
def test_manifest_is_accepted_by_the_kubernetes_schema(name: str, version: str) -> None:
    kubernetes_validate.validate(read_yaml(BASE / name), version, strict=True)


def test_kubernetes_schema_refuses_an_unknown_field() -> None:
    wrong = manifest("deployment")
    wrong["spec"]["template"]["spec"]["containers"][0]["livenessProbe"]["httpGet"]["prot"] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, "1.34", strict=True)


def test_the_servicemonitor_has_the_shape_of_its_crd() -> None:
    monitor = manifest("servicemonitor")
    assert (monitor["apiVersion"], monitor["kind"]) == ("monitoring.coreos.com/v1", "ServiceMonitor")
    assert set(monitor["spec"]) == {"selector", "endpoints"}
    (endpoint,) = monitor["spec"]["endpoints"]
    assert set(endpoint) == {"port", "path", "interval", "scrapeTimeout"}
    assert endpoint["path"] == "/metrics"
    assert int(endpoint["scrapeTimeout"][:-1]) < int(endpoint["interval"][:-1])


@pytest.mark.parametrize("folder", [BASE, OVERLAY])
def test_kustomization_lists_every_file_beside_it(folder: Path) -> None:
    kustomization = read_yaml(folder / "kustomization.yaml")
    listed = {name for name in kustomization["resources"] if name.endswith(".yaml")}
    listed |= {file for generator in kustomization["configMapGenerator"] for file in generator["files"]}
    listed |= {patch["path"] for patch in kustomization.get("patches", [])}
    assert listed | {"kustomization.yaml"} == {path.name for path in folder.iterdir()}


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl builds kustomizations")
def test_the_overlay_builds_to_valid_manifests_that_drain_as_long_as_its_policy(tmp_path: Path) -> None:
    built = subprocess.run(["kubectl", "kustomize", str(OVERLAY)], capture_output=True, check=True, text=True).stdout
    (tmp_path / "all.yaml").write_text(built)
    documents = {document["kind"]: document for document in _documents(tmp_path / "all.yaml")}
    for kind, document in documents.items():
        if kind != "ServiceMonitor":
            kubernetes_validate.validate(document, "1.34", strict=True)
    assert documents["ConfigMap"]["data"]["policy.yaml"] == (OVERLAY / "policy.yaml").read_text()
    assert documents["ConfigMap"]["metadata"]["name"] == "tailgate-policy"
    assert (
        documents["NetworkPolicy"]["spec"]["egress"][-1]["to"] == manifest("networkpolicy")["spec"]["egress"][-1]["to"]
    )
    assert _drains_long_enough(documents["Deployment"], OVERLAY / "policy.yaml")


def test_the_base_drains_as_long_as_its_policys_longest_stream() -> None:
    assert _drains_long_enough(DEPLOYMENT, BASE / "policy.yaml")


def test_a_grace_period_of_a_pod_that_is_shorter_than_its_drain_is_noticed() -> None:
    short = manifest("deployment")
    short["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 130
    assert not _drains_long_enough(short, BASE / "policy.yaml")


def test_selectors_match_the_pods_and_only_them() -> None:
    labels = POD["metadata"]["labels"]
    services = [manifest("service"), manifest("service-admin")]
    selectors = [
        DEPLOYMENT["spec"]["selector"]["matchLabels"],
        manifest("poddisruptionbudget")["spec"]["selector"]["matchLabels"],
        manifest("networkpolicy")["spec"]["podSelector"]["matchLabels"],
        POD["spec"]["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"],
        *(service["spec"]["selector"] for service in services),
    ]
    assert selectors == [labels] * 6
    monitored = manifest("servicemonitor")["spec"]["selector"]["matchLabels"]
    chosen = [s["metadata"]["name"] for s in services if monitored.items() <= s["metadata"]["labels"].items()]
    assert chosen == ["tailgate-admin"]


def test_every_named_port_in_the_manifests_exists() -> None:
    ports = {port["name"]: str(port["containerPort"]) for port in CONTAINER["ports"]}
    variables = environment(CONTAINER)
    assert ports == {"http": variables["TAILGATE_PORT"], "admin": variables["TAILGATE_ADMIN_PORT"]}
    targets = [manifest(name)["spec"]["ports"][0]["targetPort"] for name in ("service", "service-admin")]
    assert targets == ["http", "admin"]
    probed = {CONTAINER[probe]["httpGet"]["port"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert probed == {"admin"}
    allowed = {port["port"] for rule in manifest("networkpolicy")["spec"]["ingress"] for port in rule["ports"]}
    assert allowed == set(ports)
    (admin,) = manifest("service-admin")["spec"]["ports"]
    assert manifest("servicemonitor")["spec"]["endpoints"][0]["port"] == admin["name"]


def test_probed_and_scraped_paths_are_served() -> None:
    client = TestClient(admin_app(Metrics(POLICY), SOURCES, {}, {}, Access(token=None)))
    paths = [CONTAINER[probe]["httpGet"]["path"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")]
    assert paths == ["/livez", "/livez", "/readyz"]
    for path in (*paths, "/metrics"):
        assert client.get(path).status_code == 200
    assert client.get("/other").status_code == 404


def test_every_variable_in_the_manifests_is_a_setting() -> None:
    known = {PREFIX + name.upper() for name in Settings.model_fields} | {"VLLM_API_KEY"}
    assert set(environment(CONTAINER)) <= known
    plain: dict[str, Any] = {
        name.removeprefix(PREFIX).lower(): value for name, value in environment(CONTAINER).items() if value is not None
    }
    assert Settings(**plain).host == "0.0.0.0"  # and none of the values is refused


def test_manifests_contain_no_secret() -> None:
    from_secret = {v["name"]: v["valueFrom"]["secretKeyRef"] for v in CONTAINER["env"] if "valueFrom" in v}
    assert set(from_secret) == {"TAILGATE_ADMIN_TOKEN", "VLLM_API_KEY"}
    assert "Secret" not in {read_yaml(BASE / name)["kind"] for name in KUSTOMIZATION["resources"]}


def test_gateway_pod_is_restricted() -> None:
    assert POD["spec"]["securityContext"]["runAsNonRoot"] is True
    assert POD["spec"]["securityContext"]["runAsUser"] > 0
    assert POD["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert CONTAINER["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert POD["spec"]["automountServiceAccountToken"] is False
    # Without this, a Service named tailgate sets TAILGATE_PORT, which is a setting.
    assert POD["spec"]["enableServiceLinks"] is False


def test_an_updated_policy_reaches_running_pods() -> None:
    """The ConfigMap keeps its name and is mounted as a directory: the kubelet never updates a subPath."""
    assert KUSTOMIZATION["generatorOptions"]["disableNameSuffixHash"] is True
    assert read_yaml(OVERLAY / "kustomization.yaml")["generatorOptions"]["disableNameSuffixHash"] is True
    volume, _ = POD["spec"]["volumes"]
    assert volume["configMap"] == {"name": KUSTOMIZATION["configMapGenerator"][0]["name"]}
    mount, state = CONTAINER["volumeMounts"]
    assert set(mount) == {"name", "mountPath", "readOnly"}
    (kept,) = [each["value"] for each in CONTAINER["env"] if each["name"] == "TAILGATE_STATE_DIR"]
    assert kept == state["mountPath"]
    assert CONTAINER["args"] == ["serve", "--policy", f"{mount['mountPath']}/policy.yaml"]


def _documents(path: Path) -> list[Document]:
    return list(yaml.safe_load_all(path.read_text()))


def _drains_long_enough(deployment: Document, policy: Path) -> bool:
    """A stream that began just before the end may take as long as its tier allows."""
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    drain_s = float(environment(container)["TAILGATE_DRAIN_DEADLINE_S"] or 0)
    prestop_s = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    longest_s = max(tier.timeouts.total_s for tier in load(policy).tiers.values())
    return drain_s >= longest_s and pod["terminationGracePeriodSeconds"] >= prestop_s + drain_s + CLOSE_GRACE_S


# ---- autoscaling


def autoscaling(name: str) -> Document:
    return read_yaml(BASE.parent / "autoscaling" / f"{name}.yaml")


@pytest.mark.parametrize("version", ["1.34", "1.37"])
def test_the_horizontal_pod_autoscaler_is_what_kubernetes_accepts(version: str) -> None:
    kubernetes_validate.validate(autoscaling("hpa"), version, strict=True)


def test_the_scaledobject_has_the_shape_of_its_crd() -> None:
    scaled = autoscaling("scaledobject")
    assert (scaled["apiVersion"], scaled["kind"]) == ("keda.sh/v1alpha1", "ScaledObject")
    known = {
        "scaleTargetRef",
        "minReplicaCount",
        "maxReplicaCount",
        "pollingInterval",
        "fallback",
        "advanced",
        "triggers",
    }
    assert set(scaled["spec"]) <= known
    for trigger in scaled["spec"]["triggers"]:
        assert set(trigger) == {"type", "metricType", "metadata"}
        asked = {"serverAddress", "query", "threshold", "activationThreshold", "ignoreNullValues"}
        assert set(trigger["metadata"]) == asked
        # KEDA accepts only strings here.
        assert all(isinstance(value, str) for value in trigger["metadata"].values())


def test_both_autoscalers_scale_the_same_target_by_an_exported_metric() -> None:
    horizontal, scaled = autoscaling("hpa")["spec"], autoscaling("scaledobject")["spec"]
    assert horizontal["scaleTargetRef"] == scaled["scaleTargetRef"]
    assert (horizontal["minReplicas"], horizontal["maxReplicas"]) == (
        scaled["minReplicaCount"],
        scaled["maxReplicaCount"],
    )
    assert horizontal["behavior"] == scaled["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    (metric,) = horizontal["metrics"]
    name = metric["external"]["metric"]["name"]
    assert name in scaled["triggers"][0]["metadata"]["query"]
    assert metric["external"]["target"]["averageValue"] == scaled["triggers"][0]["metadata"]["threshold"]
    exported = {family.name for family in ProcessFamilies(SOURCES, Metrics(POLICY)).collect()}
    asked = {re.findall(r"tailgate_\w+", trigger["metadata"]["query"])[0] for trigger in scaled["triggers"]}
    assert asked == {name, "tailgate_pool_on_hold"} <= exported


DISCOVERY = BASE.parent / "discovery"


@pytest.mark.parametrize("name", ["serviceaccount", "role", "rolebinding", "networkpolicy"])
@pytest.mark.parametrize("version", ["1.34", "1.37"])
def test_manifest_of_discovery_is_accepted_by_the_kubernetes_schema(name: str, version: str) -> None:
    kubernetes_validate.validate(read_yaml(DISCOVERY / f"{name}.yaml"), version, strict=True)


def test_discovery_lets_the_account_of_the_pod_list_and_watch_slices_and_no_more() -> None:
    kustomization = read_yaml(DISCOVERY / "kustomization.yaml")
    listed = {*kustomization["resources"], *(patch["path"] for patch in kustomization["patches"])}
    assert listed | {"kustomization.yaml"} == {path.name for path in DISCOVERY.iterdir()}
    role, binding = read_yaml(DISCOVERY / "role.yaml"), read_yaml(DISCOVERY / "rolebinding.yaml")
    (rule,) = role["rules"]
    assert rule == {
        "apiGroups": ["discovery.k8s.io"],
        "resources": ["endpointslices"],
        "verbs": ["get", "list", "watch"],
    }
    account = read_yaml(DISCOVERY / "serviceaccount.yaml")["metadata"]["name"]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account}]
    patch = read_yaml(DISCOVERY / "account.yaml")
    assert patch["metadata"]["name"] == DEPLOYMENT["metadata"]["name"]
    pod = patch["spec"]["template"]["spec"]
    assert pod == {"serviceAccountName": account, "automountServiceAccountToken": True}


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl builds kustomizations")
def test_overlay_with_discovery_builds_to_a_pod_with_its_account(tmp_path: Path) -> None:
    shutil.copytree(BASE.parent, tmp_path / "kubernetes")
    overlay = tmp_path / "kubernetes" / "overlays" / "example"
    file = overlay / "kustomization.yaml"
    file.write_text(file.read_text() + "\ncomponents: [../../discovery]\n")
    built = subprocess.run(["kubectl", "kustomize", str(overlay)], capture_output=True, check=True, text=True).stdout
    (tmp_path / "all.yaml").write_text(built)
    documents = {document["kind"]: document for document in _documents(tmp_path / "all.yaml")}
    assert documents["Deployment"]["spec"]["template"]["spec"]["automountServiceAccountToken"]
    assert documents["RoleBinding"]["subjects"][0]["namespace"] == documents["Role"]["metadata"]["namespace"] == "llm"


# ---- two gateways with a store


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl builds kustomizations")
def test_overlay_of_two_gateways_builds_to_gateways_that_reach_their_store(tmp_path: Path) -> None:
    folder = OVERLAY.parent / "two-gateways"
    built = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, check=True, text=True).stdout
    (tmp_path / "all.yaml").write_text(built)
    documents = {
        (document["kind"], document["metadata"]["name"]): document for document in _documents(tmp_path / "all.yaml")
    }
    for (kind, _), document in documents.items():
        if kind != "ServiceMonitor":
            kubernetes_validate.validate(document, "1.34", strict=True)
    gateway, store = documents["Deployment", "tailgate"], documents["Deployment", "valkey"]
    assert gateway["spec"]["replicas"] == 2
    assert documents["PodDisruptionBudget", "tailgate"]["spec"]["maxUnavailable"] == 1
    (container,) = gateway["spec"]["template"]["spec"]["containers"]
    service = documents["Service", "valkey"]
    assert environment(container)["TAILGATE_STORE"] == f"redis://valkey:{service['spec']['ports'][0]['port']}/0"
    labels = store["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    (ingress,) = documents["NetworkPolicy", "valkey"]["spec"]["ingress"]
    (egress,) = documents["NetworkPolicy", "tailgate-store"]["spec"]["egress"]
    pods = gateway["spec"]["template"]["metadata"]["labels"]
    assert ingress["from"][0]["podSelector"]["matchLabels"].items() <= pods.items()
    assert egress["to"][0]["podSelector"]["matchLabels"].items() <= labels.items()
    listed = {*read_yaml(folder / "kustomization.yaml")["resources"], "../../base", "store.yaml", "kustomization.yaml"}
    assert {path.name for path in folder.iterdir()} | {"../../base"} == listed
