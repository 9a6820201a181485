"""Renders the chart of deploy/helm/ as `helm template` does, and reads its manifests."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import pytest
import yaml

from tests.shipping.checkout import ROOT
from tests.support import helm

HELM = ROOT / "deploy" / "helm"
CHART = HELM / "rootstock"
SETS = sorted(path.stem for path in (CHART / "ci").glob("*.yaml"))
"""Names of the values that the chart is tested with."""
Manifest = dict[str, Any]
_REFERENCE = re.compile(r"\$\((\w+)\)")


def program() -> str:
    """Returns helm's path. Without helm the test is skipped, and fails under CI."""
    found = helm.find()
    if found is None:
        if helm.is_required():
            pytest.fail(helm.MISSING)
        pytest.skip(helm.MISSING)
    return found


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program(), *arguments], capture_output=True, text=True, timeout=60)


@cache
def rendered(name: str, *options: str) -> tuple[Manifest, ...]:
    """Returns the manifests of a release `rootstock`; `options`: more of the command line."""
    done = run("template", "rootstock", str(CHART), "-f", str(CHART / "ci" / f"{name}.yaml"), *options)
    assert done.returncode == 0, done.stderr
    return tuple(manifest for manifest in yaml.safe_load_all(done.stdout) if manifest)


def named(manifests: tuple[Manifest, ...], kind: str, name: str) -> Manifest:
    [found] = [one for one in manifests if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return found


def pods(manifests: tuple[Manifest, ...]) -> Iterator[tuple[str, Manifest]]:
    """Yields the component and the pod's specification of every workload."""
    for manifest in manifests:
        if manifest["kind"] in ("Deployment", "StatefulSet", "Job"):
            template = manifest["spec"]["template"]
            yield template["metadata"]["labels"]["app.kubernetes.io/component"], template["spec"]


def own_containers(manifests: tuple[Manifest, ...]) -> dict[str, Manifest]:
    """Returns the containers that run our image, by component."""
    containers = {component: pod["containers"][0] for component, pod in pods(manifests)}
    return {component: one for component, one in containers.items() if "args" in one and "command" not in one}


def environment(container: Manifest, secrets: Mapping[tuple[str, str], str], pod_name: str) -> dict[str, str]:
    """Returns a container's variables as Kubernetes makes them. `secrets`: values by Secret and key;
    KeyError for one that is not there.
    """
    made: dict[str, str] = {}
    for variable in container["env"]:
        source = variable.get("valueFrom", {})
        if "secretKeyRef" in source:
            reference = source["secretKeyRef"]
            place = reference["name"], reference["key"]
            if reference.get("optional") and place not in secrets:
                continue
            value = secrets[place]
        elif "fieldRef" in source:
            assert source["fieldRef"]["fieldPath"] == "metadata.name"
            value = pod_name
        else:
            value = _REFERENCE.sub(lambda found: made.get(found[1], found[0]), variable["value"])
        made[variable["name"]] = value
    return made


def secrets_of(manifests: tuple[Manifest, ...]) -> dict[tuple[str, str], str]:
    """Returns the values of the Secrets that the chart makes."""
    return {
        (manifest["metadata"]["name"], key): value
        for manifest in manifests
        if manifest["kind"] == "Secret"
        for key, value in manifest["stringData"].items()
    }
