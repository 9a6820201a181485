"""Builds the wheel, compares its files with the checkout's, installs it and runs the demo from it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from openai import OpenAI

from tests.shipping.bytecode import packages_of, share_bytecode, share_unchanged
from tests.shipping.checkout import ROOT, copy_to, tracked_files
from tests.support.waiting import until

CHECKOUT_ONLY = {".ci", "deploy", "docs", "tests"}
"""Top-level folders that are not shipped. Every other folder is a package and has to be in the wheel."""
SITE = "api/site/built/"
"""The documentation, made while the wheel is built."""
UV = Path(sys.executable).with_name("uv")
START_S = 150.0


def shipped_files() -> set[str]:
    return {name for name in tracked_files() if "/" in name and name.split("/")[0] not in CHECKOUT_ONLY}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("wheel")


@pytest.fixture(scope="module")
def wheel(folder: Path) -> Path:
    """Built as a release is: an sdist of the tracked files, and the wheel from that sdist."""
    copy_to(folder / "source")
    _uv("build", "--out-dir", str(folder / "dist"), cwd=folder / "source")
    return next((folder / "dist").glob("*.whl"))


@pytest.fixture(scope="module")
def command(wheel: Path, folder: Path) -> Path:
    """The `rootstock` of an environment that holds the wheel and its dependencies, and nothing else."""
    environment = {"UV_TOOL_DIR": str(folder / "tools"), "UV_TOOL_BIN_DIR": str(folder / "bin")}
    constraints = ROOT / "constraints.txt"
    _uv("tool", "install", "-p", sys.executable, "-c", str(constraints), str(wheel), **environment)
    share_bytecode(folder / "tools" / "rootstock")
    for package in {name.split("/")[0] for name in shipped_files()}:
        share_unchanged(packages_of(folder / "tools" / "rootstock") / package, ROOT / package)
    return folder / "bin" / "rootstock"


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A working directory with a package named like one of ours, which must not be imported."""
    (tmp_path / "cwd" / "api").mkdir(parents=True)
    (tmp_path / "cwd" / "api" / "__init__.py").write_text("raise ImportError('not the service')\n")
    return tmp_path / "cwd"


@pytest.fixture
def clean_environment() -> dict[str, str]:
    """Without settings of the service, and without the variables by which Python finds this checkout."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ROOTSTOCK_")}
    return {name: value for name, value in kept.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


@pytest.fixture
def demo(
    command: Path, elsewhere: Path, clean_environment: dict[str, str], tmp_path: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """`rootstock up --demo`, ready to serve."""
    log_path = tmp_path / "up.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [command, "up", "--demo", "--port", "0", "--data", "data"],
            cwd=elsewhere, env=clean_environment, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        published = elsewhere / "data" / "demo.json"
        until(lambda: process.poll() is not None or published.exists(), START_S, "demo.json")
        assert process.poll() is None, log_path.read_text()
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(60)


def test_the_wheel_holds_every_tracked_file_of_every_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert {name for name in names if not name.startswith(SITE)} == shipped_files()


def test_the_wheel_holds_the_documentation_with_its_search(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        built = {name.removeprefix(SITE) for name in archive.namelist() if name.startswith(SITE)}
        index = json.loads(archive.read(f"{SITE}search.json"))
        home = archive.read(f"{SITE}index.html").decode()
    pages = {name for name in tracked_files() if name.startswith("docs/") and name.endswith(".md")}
    for page in pages:
        place = page.removeprefix("docs/").removesuffix(".md").removesuffix("index").rstrip("/")
        assert f"{place}/index.html".lstrip("/") in built, page
    assert any("Idempotency-Key" in item["text"] for item in index["items"])
    assert not re.search(r"<(?:script|link|img)[^>]*(?:src|href)=\"?https?:", home)


def test_no_other_distribution_brings_a_package_of_the_same_name() -> None:
    """All of them lie side by side in one site-packages."""
    owners = packages_distributions()
    packages = {name.split("/")[0] for name in shipped_files()}
    assert {name: set(owners.get(name, ())) - {"rootstock"} for name in packages} == {
        name: set() for name in packages
    }


def test_what_is_shipped_imports_no_dependency_of_the_tests() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    of_users = project["dependencies"] + extras["ray"]
    of_tests = {_name(line) for line in extras["dev"]} - {_name(line) for line in of_users}
    owners = packages_distributions()
    offenders = [
        f"{name}: {module}"
        for name in sorted(shipped_files())
        if name.endswith(".py")
        for module in re.findall(r"^ *(?:import|from) (\w+)", (ROOT / name).read_text(), re.MULTILINE)
        if of_tests & {_name(owner) for owner in owners.get(module, ())}
    ]
    assert not offenders


def test_the_demo_runs_from_an_installed_wheel(demo: subprocess.Popen[bytes], elsewhere: Path) -> None:
    facts = json.loads((elsewhere / "data" / "demo.json").read_text())
    with OpenAI(base_url=facts["base_url"], api_key=facts["api_key"], timeout=60) as client:
        answer = client.chat.completions.create(
            model="sapling:reverse-words",
            messages=[{"role": "user", "content": "the red fox runs"}],
            temperature=0,
        )
    assert answer.choices[0].message.content == "runs fox red the"
    demo.send_signal(signal.SIGTERM)
    assert demo.wait(60) == 0


def test_benchmarks_are_found_in_an_installed_wheel(
    command: Path, elsewhere: Path, clean_environment: dict[str, str]
) -> None:
    done = subprocess.run([command, "bench"], cwd=elsewhere, env=clean_environment, capture_output=True)
    assert b"Measures tokens per second over HTTP" in done.stdout


def _uv(*arguments: str, cwd: Path = ROOT, **variables: str) -> None:
    """uv takes local wheels from its own variable, not from pip's."""
    links = os.environ.get("UV_FIND_LINKS") or os.environ.get("PIP_FIND_LINKS", "")
    environment = os.environ | {"UV_FIND_LINKS": links} | variables
    done = subprocess.run([UV, *arguments], cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def _name(requirement: str) -> str:
    """The normalized name of the distribution that a requirement asks for."""
    found = re.match(r"[\w.-]+", requirement)
    assert found is not None
    return re.sub(r"[-_.]+", "-", found[0]).lower()
