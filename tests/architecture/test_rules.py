"""Rules of the house that no import contract can state, checked on the source itself."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    "adapters", "admin", "api", "batches", "billing", "cli", "conversations", "db", "engine", "kernels",
    "retention", "routing", "sla", "telemetry", "tenants", "tokenization", "worker",
)  # fmt: skip
FORBIDDEN_FOLDERS = {"utils", "common", "helpers", "core"}
FORBIDDEN_NAME_ENDINGS = ("Manager", "Handler", "Helper", "Impl", "Utils")
MAX_SETTINGS_FIELDS = 20
MAX_CONSTRUCTOR_PARAMETERS = 8
LOG_LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}


def modules(*packages: str) -> Iterator[tuple[Path, ast.Module]]:
    for package in packages or PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield path.relative_to(ROOT), _parsed(path)


@functools.cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def walked(tree: ast.Module) -> list[ast.AST]:
    return list(ast.walk(tree))


@pytest.fixture(scope="module", autouse=True)
def parsed_for_this_file() -> Iterator[None]:
    """A million nodes, which every full garbage collection after this file would visit."""
    yield
    _parsed.cache_clear()
    walked.cache_clear()


def imported_names(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """(module, name) of every `from module import name`, (module, "") of every `import module`."""
    for node in walked(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((node.module, alias.name) for alias in node.names)


def test_only_repositories_build_queries() -> None:
    builders = {"select", "insert", "update", "delete", "text"}
    offenders = [
        f"{path}: {name}"
        for path, tree in modules(
            "api",
            "admin",
            "worker",
            "tenants",
            "adapters",
            "batches",
            "billing",
            "cli",
            "conversations",
            "retention",
        )
        if path.name != "repository.py"
        for module, name in imported_names(tree)
        if module.startswith("sqlalchemy")
        and name in builders
        # Models state their server defaults and constraints in SQL text; that is schema, not a query.
        and not (path.name == "models.py" and name == "text")
    ]
    assert not offenders


def test_only_the_gateway_talks_to_stripe() -> None:
    offenders = [
        str(path)
        for path, tree in modules()
        for module, _ in imported_names(tree)
        if module.split(".")[0] == "stripe" and path != Path("billing/stripe_gateway.py")
    ]
    assert not offenders


def test_no_junk_drawer_folders() -> None:
    found = [
        str(folder.relative_to(ROOT))
        for package in PACKAGES
        for folder in (ROOT / package).rglob("*")
        if folder.is_dir() and folder.name in FORBIDDEN_FOLDERS
    ]
    assert not found


def test_class_names_say_what_they_are() -> None:
    offenders = [
        f"{path}: {node.name}"
        for path, tree in modules()
        for node in walked(tree)
        if isinstance(node, ast.ClassDef) and node.name.endswith(FORBIDDEN_NAME_ENDINGS)
    ]
    assert not offenders


def test_every_module_says_what_it_owns() -> None:
    silent = [str(path) for path, tree in modules() if tree.body and not ast.get_docstring(tree)]
    assert not silent


def test_settings_stay_small_and_prefixed() -> None:
    for path, tree in modules():
        for node in walked(tree):
            if isinstance(node, ast.ClassDef) and any(
                isinstance(base, ast.Name) and base.id == "BaseSettings" for base in node.bases
            ):
                fields = [item for item in node.body if isinstance(item, ast.AnnAssign)]
                assert len(fields) <= MAX_SETTINGS_FIELDS, f"{path}: {node.name} has {len(fields)} fields"
                assert "env_prefix" in ast.unparse(node), f"{path}: {node.name} has no env prefix"


def test_broad_except_only_with_a_reason() -> None:
    """`except Exception` swallows bugs. Where one must stand (a process main, a thread's end) it carries
    ruff's marker, so that each is a decision somebody can find; re-raising and logging are fine."""
    offenders = []
    for path, tree in modules():
        lines = (ROOT / path).read_text().splitlines()
        for node in walked(tree):
            if not isinstance(node, ast.ExceptHandler):
                continue
            broad = (ast.unparse(node.type) if node.type else "") in {"", "Exception", "BaseException"}
            reraises = any(isinstance(inner, ast.Raise) and inner.exc is None for inner in ast.walk(node))
            logs = any(
                isinstance(inner, ast.Attribute) and inner.attr == "exception" for inner in ast.walk(node)
            )
            if broad and not (reraises or logs) and "noqa: BLE001" not in lines[node.lineno - 1]:
                offenders.append(f"{path}:{node.lineno}")
    assert not offenders


def test_log_lines_are_events_with_fields() -> None:
    """One way to log: structlog. Values are fields, which a search can name, and no part of the event."""
    offenders = []
    for path, tree in modules():
        for node in walked(tree):
            if isinstance(node, ast.ImportFrom) and node.module == "logging" and path.parts[0] != "telemetry":
                offenders.append(f"{path}:{node.lineno}: imports from logging")
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            if called == "logging.getLogger" and path.parts[0] != "telemetry":
                offenders.append(f"{path}:{node.lineno}: {called}")
            owner, _, method = called.rpartition(".")
            is_log = owner in {"log", "self._log"} and method in LOG_LEVELS
            if is_log and (len(node.args) != 1 or isinstance(node.args[0], ast.JoinedStr)):
                offenders.append(f"{path}:{node.lineno}: values in the event")
    assert not offenders


def test_nothing_runs_on_when_one_of_several_fails() -> None:
    """`asyncio.gather` raises the first failure and leaves the rest running; `telemetry.tasks` does not."""
    found = [
        f"{path}:{node.lineno}"
        for path, tree in modules()
        for node in walked(tree)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) == "asyncio.gather"
        and "return_exceptions" not in {keyword.arg for keyword in node.keywords}
    ]
    assert not found, found


def test_constructors_take_few_parameters() -> None:
    """What belongs together is a small dataclass with a name (whose own constructor is generated)."""
    offenders = [
        f"{path}:{node.lineno}: {count} parameters"
        for path, tree in modules()
        for node in walked(tree)
        if isinstance(node, ast.FunctionDef)
        and node.name == "__init__"
        and (count := len([*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]) - 1)
        > MAX_CONSTRUCTOR_PARAMETERS
    ]
    assert not offenders


def test_engines_make_decoders_before_threads_need_them() -> None:
    """msgspec crashes the process when two threads make the first decoder of a type at once, as
    `decode(..., type=...)` does: an engine's are made when their module is loaded.
    """
    offenders = [
        f"{path}:{node.lineno}"
        for path, tree in modules("engine")
        for node in walked(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("decode", "convert")
        and any(keyword.arg == "type" for keyword in node.keywords)
    ]
    assert offenders == []


def test_kernels_package_is_empty() -> None:
    """PEFT and transformers probe for a distribution called `kernels` and would execute ours."""
    assert (ROOT / "kernels/__init__.py").read_text() == ""


def test_light_processes_load_nothing_large() -> None:
    """The import contracts read the source; this asks the interpreter. What writes Parquet and
    draws PDFs is loaded when a file is asked for.
    """
    light = (
        "engine.client", "cli.main", "tenants.service", "adapters.service", "billing.service", "admin.app",
        "api.app", "api.main",
    )  # fmt: skip
    large = ("torch", "triton", "peft", "transformers", "pyarrow", "fpdf")
    code = f"""
import importlib, sys
for module in {light!r}:
    importlib.import_module(module)
    print(module, [name for name in {large!r} if name in sys.modules])
"""
    shown = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert shown.stdout.splitlines() == [f"{module} []" for module in light]


def test_nothing_depends_on_distributions_that_share_our_names() -> None:
    constraints = (ROOT / "constraints.txt").read_text().splitlines()
    taken = {line.split("==")[0] for line in constraints}
    assert not taken & {"kernels", "adapters", "api", "admin", "engine", "billing"}


def test_planted_defects_fit_the_code() -> None:
    """`make mutants` is run now and then; its lists must not be found outdated only then."""
    run = subprocess.run(
        [sys.executable, "-m", "tests.mutants", "--check"], cwd=ROOT, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout + run.stderr
