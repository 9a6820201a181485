"""The units of deploy/systemd/ as systemd reads them, and their commands as the command line does."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

import cli.processes
from cli.main import app
from tests.shipping.checkout import ROOT

UNITS = sorted((ROOT / "deploy" / "systemd").iterdir())
PROGRAM = "/opt/rootstock/bin/rootstock"


def test_systemd_takes_every_unit(tmp_path: Path) -> None:
    verify = shutil.which("systemd-analyze")
    if verify is None:
        pytest.skip("there is no systemd-analyze on this machine")
    for unit in UNITS:
        name = unit.name.replace("@.", "@1.")
        # Verification asks for programs that are there.
        (tmp_path / name).write_text(unit.read_text().replace(PROGRAM, "/bin/true"))
    paths = [str(path) for path in tmp_path.iterdir()]
    done = subprocess.run([verify, "verify", "--man=no", *paths], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert str(tmp_path) not in done.stderr  # where a line that is not understood is named


def test_every_command_is_one_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    for function in ("serve_api", "serve_engine", "work"):
        monkeypatch.setattr(cli.processes, function, lambda *_, name=function: called.append(name))
    for unit in UNITS:
        for command in re.findall(r"^ExecStart=(.+)$", unit.read_text(), re.MULTILINE):
            program, *arguments = shlex.split(command)
            assert program == PROGRAM
            result = CliRunner().invoke(app, arguments)
            assert result.exit_code == 0, result.output
    assert sorted(called) == ["serve_api", "serve_engine", "work", "work"]


def test_the_target_wants_every_service() -> None:
    target = (ROOT / "deploy" / "systemd" / "rootstock.target").read_text()
    wanted = set(re.findall(r"rootstock-\S+\.service", target))
    assert {re.sub(r"@\d+", "@", name) for name in wanted} == {
        unit.name for unit in UNITS if unit.suffix == ".service"
    }
