"""The chart renders valid manifests, whose commands, settings and images are the service's."""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Iterator
from typing import Any

import kubernetes_validate
import promql_parser
import pytest
from kubernetes_validate import utils as validation
from typer.testing import CliRunner

import cli.processes
import cli.service_access
from cli.checks.configuration import read_configuration
from cli.checks.findings import Status
from cli.checks.process import Process
from cli.main import app
from db.settings import OwnerSettings
from engine.client import CONNECT_LIMIT
from tests.deploy.chart import (
    CHART,
    HELM,
    SETS,
    Manifest,
    environment,
    named,
    own_containers,
    pods,
    rendered,
    run,
    secrets_of,
)
from tests.shipping.checkout import ROOT

KUBERNETES = ("1.31", "1.34", "1.37")
CUSTOM = ("ScaledObject", "ServiceMonitor")
"""Kinds of other projects, whose schemas are not Kubernetes' own."""
EXISTING = {
    ("rootstock", "key-secret"): "k" * 64,
    ("rootstock", "database-url"): "postgresql+psycopg://rootstock_serving:p@db.example:5432/rootstock",
    ("rootstock", "database-owner-url"): "postgresql+psycopg://rootstock:p@db.example:5432/rootstock",
    ("rootstock", "redis-url"): "redis://redis.example:6379/0",
    ("rootstock", "storage-access-key-id"): "id",
    ("rootstock", "storage-secret-access-key"): "secret",
}
"""The keys that docs/kubernetes.md asks of a Secret that exists."""
PROCESSES = {
    "api": {Process.API},
    "engine": {Process.ENGINE},
    "beat": {Process.WORKER},
    "worker": {Process.WORKER},
    "jobs": {Process.JOBS},
}


def test_there_are_five_sets_of_values() -> None:
    assert len(SETS) == 5


@pytest.mark.parametrize("name", SETS)
def test_helm_lints_it(name: str) -> None:
    done = run("lint", "--strict", str(CHART), "-f", str(CHART / "ci" / f"{name}.yaml"))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module", autouse=True)
def schemas_read_once() -> Iterator[None]:
    """Every manifest's validation reads the definitions of all: 50 ms of CPU."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("all_versions", "schema_contents"):
            patch.setattr(validation, name, functools.cache(getattr(validation, name)))
        yield


@pytest.mark.parametrize("name", SETS)
def test_kubernetes_takes_every_manifest(name: str) -> None:
    manifests = [one for one in rendered(name) if one["kind"] not in CUSTOM]
    assert manifests
    for version in KUBERNETES:
        for manifest in manifests:
            kubernetes_validate.validate(manifest, version, strict=True)


def test_the_validation_sees_a_wrong_field() -> None:
    service = named(rendered("try"), "Service", "rootstock-api")
    wrong = {**service, "spec": {**service["spec"], "prots": []}}
    for version in KUBERNETES:
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(wrong, version, strict=True)


@pytest.mark.parametrize("name", SETS)
def test_every_process_has_its_settings_and_no_other(name: str) -> None:
    """Built by the settings' own classes, with defaults, from what Kubernetes would give the process."""
    manifests = rendered(name)
    secrets = secrets_of(manifests) or EXISTING
    containers = own_containers(manifests)
    assert containers.keys() == {*PROCESSES, "migrate"}
    for component, processes in PROCESSES.items():
        names = [variable["name"] for variable in containers[component]["env"]]
        assert len(names) == len(set(names))
        _, findings = read_configuration(
            environment(containers[component], secrets, f"rootstock-{component}-0"), processes
        )
        assert [one for one in findings if one.status is not Status.OK] == [], component


@pytest.mark.parametrize("name", SETS)
def test_migrations_alone_have_the_owners_rights(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    manifests = rendered(name)
    secrets = secrets_of(manifests) or EXISTING
    containers = own_containers(manifests)
    for variable, value in environment(containers.pop("migrate"), secrets, "rootstock-migrate-0").items():
        monkeypatch.setenv(variable, value)
    owner = OwnerSettings().owner_url  # type: ignore[call-arg]
    for component, container in containers.items():
        assert owner not in environment(container, secrets, component).values()


@pytest.mark.parametrize("name", SETS)
def test_every_command_is_one_of_ours(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parsed by the command line itself, behind the image's entry point, and not run."""
    called: list[str] = []
    for module, function in (
        (cli.processes, "serve_api"),
        (cli.processes, "serve_engine"),
        (cli.processes, "work"),
        (cli.service_access, "migrate"),
    ):
        monkeypatch.setattr(module, function, lambda *_, name=function: called.append(name))
    containers = own_containers(rendered(name))
    for container in containers.values():
        result = CliRunner().invoke(app, container["args"])
        assert result.exit_code == 0, result.output
    assert sorted(called) == ["migrate", "serve_api", "serve_engine", "work", "work", "work"]
    assert 'ENTRYPOINT ["rootstock"]' in (ROOT / "deploy" / "Dockerfile").read_text()


def test_the_image_list_is_what_the_templates_render() -> None:
    """But for the set that takes images from a registry of its own."""
    images = {
        container["image"]
        for name in SETS
        if name != "offline"
        for _, pod in pods(rendered(name))
        for container in pod["containers"]
    }
    assert sorted((HELM / "images.txt").read_text().split()) == sorted(images)
    other = {container["image"] for _, pod in pods(rendered("offline")) for container in pod["containers"]}
    assert other == {f"registry.internal/{image}" for image in images}


def test_versions_and_copies_are_the_releases() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    about = (CHART / "Chart.yaml").read_text()
    assert f'appVersion: "{version}"' in about
    assert f"\nversion: {version}\n" in about
    original = ROOT / "deploy" / "postgres" / "serving-role.sh"
    assert (CHART / "files" / "serving-role.sh").read_text() == original.read_text()
    lowest = re.search(r'kubeVersion: ">=(\d+\.\d+)', about)
    assert lowest is not None
    assert lowest[1] == KUBERNETES[0]


@pytest.mark.parametrize("name", SETS)
def test_pods_have_no_more_rights_than_they_need(name: str) -> None:
    for component, pod in pods(rendered(name)):
        assert pod["automountServiceAccountToken"] is False
        security = pod["securityContext"]
        assert security["runAsNonRoot"] is True, component
        assert security["runAsUser"] > 0
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert "/tmp" in {mount["mountPath"] for mount in container["volumeMounts"]}


@pytest.mark.parametrize("name", SETS)
def test_what_is_mounted_and_selected_is_there(name: str) -> None:
    manifests = rendered(name)
    made = {(one["kind"], one["metadata"]["name"]) for one in manifests}
    given = {("PersistentVolumeClaim", "models"), ("PersistentVolumeClaim", "adapters")}
    given |= {("Secret", "rootstock-engine-clients"), ("Secret", "rootstock-signing")}
    for _, pod in pods(manifests):
        volumes = {volume["name"] for volume in pod["volumes"]} | {"data"}
        for container in pod["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
        for volume in pod["volumes"]:
            assert _source(volume) in made | given | {None}, volume
    labels = [_labels(one) for one in manifests if "template" in one.get("spec", {})]
    for manifest in manifests:
        selector = _selector(manifest)
        assert selector is None or any(selector.items() <= one.items() for one in labels), manifest[
            "metadata"
        ]


def _source(volume: dict[str, Any]) -> tuple[str, str] | None:
    if "secret" in volume:
        return "Secret", volume["secret"]["secretName"]
    if "configMap" in volume:
        return "ConfigMap", volume["configMap"]["name"]
    if "persistentVolumeClaim" in volume:
        return "PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]
    assert "emptyDir" in volume
    return None


def _labels(manifest: Manifest) -> dict[str, str]:
    found: dict[str, str] = manifest["spec"]["template"]["metadata"]["labels"]
    return found


def _selector(manifest: Manifest) -> dict[str, str] | None:
    spec = manifest.get("spec", {})
    selector = spec.get("selector", spec.get("podSelector"))
    if selector is None:
        return None
    found: dict[str, str] = selector.get("matchLabels", selector)
    return found


@pytest.mark.parametrize("name", SETS)
def test_drains_end_before_they_are_cut(name: str) -> None:
    specs = dict(pods(rendered(name)))
    containers = own_containers(rendered(name))
    api = environment(containers["api"], secrets_of(rendered(name)) or EXISTING, "api")
    [*_, waits] = containers["api"]["lifecycle"]["preStop"]["exec"]["command"]
    assert specs["api"]["terminationGracePeriodSeconds"] > int(waits) + int(
        api["ROOTSTOCK_API_DRAIN_TIMEOUT"]
    )
    engine = environment(containers["engine"], secrets_of(rendered(name)) or EXISTING, "engine")
    assert specs["engine"]["terminationGracePeriodSeconds"] > int(engine["ROOTSTOCK_ENGINE_DRAIN_SECONDS"])


@pytest.mark.parametrize("name", SETS)
def test_updates_take_no_serving_pod_away_before_another_serves(name: str) -> None:
    for manifest in rendered(name):
        if manifest["kind"] == "Deployment":
            assert manifest["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
        if manifest["kind"] == "StatefulSet" and "engine" in manifest["metadata"]["name"]:
            # API processes connect to the new engine before the next one ends.
            assert manifest["spec"]["minReadySeconds"] > 2 * CONNECT_LIMIT
    probes = own_containers(rendered(name))["api"]
    assert probes["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert probes["livenessProbe"]["httpGet"]["path"] == "/livez"


def test_migrations_run_before_everything_else() -> None:
    hook = {"helm.sh/hook": "pre-install,pre-upgrade"}
    for name, options in (("production", ()), ("autoscaled", ()), ("try", ("--is-upgrade",))):
        manifests = rendered(name, *options)
        job = named(manifests, "Job", "rootstock-migrate")
        assert hook.items() <= job["metadata"]["annotations"].items()
        [container] = job["spec"]["template"]["spec"]["containers"]
        needed = {one["valueFrom"]["secretKeyRef"]["name"] for one in container["env"]}
        if name == "production":
            assert needed == {"rootstock"}  # which was there before
            continue
        [secret] = [named(manifests, "Secret", one) for one in needed]
        assert hook.items() <= secret["metadata"]["annotations"].items()
        weights = [int(one["metadata"]["annotations"]["helm.sh/hook-weight"]) for one in (secret, job)]
        assert weights[0] < weights[1]
    # There is no PostgreSQL yet when a chart that brings it is installed.
    assert "annotations" not in named(rendered("try"), "Job", "rootstock-migrate")["metadata"]


def test_engines_are_reached_by_api_and_jobs_alone() -> None:
    policy = named(rendered("production"), "NetworkPolicy", "rootstock-engine")["spec"]
    [rule] = policy["ingress"]
    components = {peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"] for peer in rule["from"]}
    assert components == {"api", "jobs"}
    endpoints = environment(own_containers(rendered("production"))["api"], EXISTING, "api")
    assert endpoints["ROOTSTOCK_API_ENGINE_ENDPOINT"] == (
        "tcp://rootstock-engine-0.rootstock-engine:5700,tcp://rootstock-engine-1.rootstock-engine:5700"
    )


def test_engines_metrics_are_reached_where_they_are_on() -> None:
    assert "annotations" not in named(rendered("try"), "StatefulSet", "rootstock-engine")["spec"]["template"]
    options = ("--set", "engine.metrics.enabled=true,serviceMonitor.enabled=true")
    manifests = rendered("try", *options, "--set-json", 'engine.metrics.from=[{"namespaceSelector":{}}]')
    pod = named(manifests, "StatefulSet", "rootstock-engine")["spec"]["template"]
    [container] = pod["spec"]["containers"]
    [port] = [one["containerPort"] for one in container["ports"] if one["name"] == "metrics"]
    settings = environment(container, secrets_of(manifests), "rootstock-engine-0")
    assert settings["ROOTSTOCK_ENGINE_METRICS_ENDPOINT"] == f"0.0.0.0:{port}"
    assert pod["metadata"]["annotations"] == {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(port),
        "prometheus.io/path": "/metrics",
    }
    policy = named(manifests, "NetworkPolicy", "rootstock-engine")["spec"]
    assert policy["ingress"][1] == {"ports": [{"port": "metrics"}], "from": [{"namespaceSelector": {}}]}
    monitor = named(manifests, "ServiceMonitor", "rootstock-engine")["spec"]
    assert monitor["endpoints"][0]["port"] == "metrics"
    service = named(manifests, "Service", "rootstock-engine")
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert "metrics" in {one["name"] for one in service["spec"]["ports"]}
    for manifest in manifests:
        if manifest["kind"] not in CUSTOM:
            for version in KUBERNETES:
                kubernetes_validate.validate(manifest, version, strict=True)
    _, findings = read_configuration(settings, {Process.ENGINE})
    assert [one for one in findings if one.status is not Status.OK] == []


def test_queries_of_the_autoscaler_are_promql() -> None:
    triggers = named(rendered("autoscaled"), "ScaledObject", "rootstock-engine")["spec"]["triggers"]
    assert len(triggers) == 2
    for trigger in triggers:
        promql_parser.parse(trigger["metadata"]["query"])
        assert 'namespace="default",service="rootstock-api"' in trigger["metadata"]["query"]
    assert "replicas" not in named(rendered("autoscaled"), "StatefulSet", "rootstock-engine")["spec"]


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ("secrets.keySecret=", "secrets.keySecret is not set"),
        ("secrets.keySecret=short", "keySecret"),
        ("redis.bundled=false", "secrets.redisUrl is not set"),
        ("secrets.existingSecret=mine", "bundled servers have their passwords from secrets.keySecret"),
        ("engine.autoscaling.enabled=true", "engine.autoscaling needs engine.encryption"),
        ("engine.gpus=2,engine.tensorParallel=4", "each part needs a GPU"),
        ("engine.replica=2", "replica"),
        ("engine.encryption.publicKey=abc", "publicKey"),
        ("signing.required=true", "signing.required needs signing.publicKeys"),
    ],
)
def test_values_that_cannot_work_are_refused(values: str, reason: str) -> None:
    done = run("template", "rootstock", str(CHART), "-f", str(CHART / "ci" / "try.yaml"), "--set", values)
    assert done.returncode != 0
    assert reason in done.stderr


def test_the_signing_key_reaches_jobs_alone() -> None:
    manifests = rendered("production")
    containers = own_containers(manifests)
    mounting = [
        component
        for component, container in containers.items()
        if any(one["name"] == "signing" for one in container.get("volumeMounts", ()))
    ]
    assert mounting == ["jobs"]
    names = {
        component: {variable["name"] for variable in container["env"]}
        for component, container in containers.items()
    }
    assert [one for one in names if "ROOTSTOCK_SIGNING_KEY_FILE" in names[one]] == ["jobs"]
    verifying = {one for one in names if "ROOTSTOCK_SIGNING_PUBLIC_KEYS" in names[one]}
    assert verifying == {"api", "engine"}


def test_both_secrets_of_a_rotation_reach_the_processes() -> None:
    keys = f"{'a' * 64},{'b' * 64}"
    escaped = keys.replace(",", "\\,")
    values = f"secrets.previousKeySecret={'p' * 64},engine.encryption.publicKey={escaped}"
    values += ",engine.encryption.existingSecret=clients"
    manifests = rendered("try", "--set-string", values)
    containers = own_containers(manifests)
    api = environment(containers["api"], secrets_of(manifests), "rootstock-api-0")
    assert api["ROOTSTOCK_TENANTS_PREVIOUS_KEY_SECRET"] == "p" * 64
    engine = environment(containers["engine"], secrets_of(manifests), "rootstock-engine-0")
    assert engine["ROOTSTOCK_CLUSTER_CLIENT_KEYS"] == keys
