"""How a machine without Chromium gets it, over a PATH of our own and an apt-get that installs at once."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.admin import browsing
from tests.support import chromium, debian
from tests.support.waiting import until

APT = """#!/bin/sh
echo "$@" >> "{log}"
case "$*" in
  *install*) sleep 0.1; printf '#!/bin/sh\\nexit {status}\\n' > "{bin}/{shell}"; chmod +x "{bin}/{shell}" ;;
esac
"""


class Machine:
    """Programs on its PATH, and what apt-get was asked."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"
        self.bin.mkdir()
        self._log = folder / "apt.log"
        for name in ("env", "sh", "sleep", "chmod"):
            found = next(
                Path(place) / name for place in ("/bin", "/usr/bin") if (Path(place) / name).exists()
            )
            (self.bin / name).symlink_to(found)

    def has(self, name: str, script: str) -> None:
        (self.bin / name).write_text(script)
        (self.bin / name).chmod(0o755)

    def has_apt(self, status: int = 0) -> None:
        self.has("apt-get", APT.format(log=self._log, bin=self.bin, shell=chromium.SHELL, status=status))

    @property
    def asked(self) -> list[str]:
        return self._log.read_text().splitlines() if self._log.exists() else []


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(tmp_path)
    monkeypatch.setenv("PATH", str(made.bin))
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return made


def test_a_bare_machine_gets_debians_once(machine: Machine) -> None:
    machine.has_apt()
    assert chromium.find() is None
    with ThreadPoolExecutor(2) as both:
        found = list(both.map(lambda _: chromium.ensure(), range(2)))
    assert found == [str(machine.bin / "chromium-headless-shell")] * 2
    assert [line.split()[-1] for line in machine.asked] == ["update", "chromium-headless-shell"]
    assert chromium.main() == 0
    assert len(machine.asked) == 2


def test_the_shell_comes_before_what_is_there_and_what_is_there_before_none(machine: Machine) -> None:
    machine.has("chromium", "#!/bin/sh\n")
    assert chromium.ensure() == chromium.find() == str(machine.bin / "chromium"), "there is no apt-get"
    machine.has_apt()
    assert chromium.ensure() == chromium.find() == str(machine.bin / "chromium-headless-shell")


def test_a_stub_that_does_not_start_is_none(machine: Machine) -> None:
    machine.has("chromium-browser", "#!/bin/sh\nexit 1\n")
    assert chromium.find() is None
    machine.has_apt(status=1)
    with pytest.raises(debian.CannotInstall, match="brought none that starts"):
        chromium.ensure()


def test_who_is_not_root_is_told_what_to_do(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.has_apt()
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert chromium.main() == 0, "the tests are skipped"
    assert "run `apt-get install chromium-headless-shell` as root" in capsys.readouterr().err
    machine.has("sudo", "#!/bin/sh\nexit 1\n")
    monkeypatch.setenv("CI", "true")
    assert chromium.main() == 1
    assert not machine.asked
    machine.has("sudo", '#!/bin/sh\nshift\n[ "$1" = true ] || "$@"\n')
    assert chromium.main() == 0
    assert len(machine.asked) == 2


def test_what_apt_says_is_passed_on(machine: Machine) -> None:
    machine.has("apt-get", "#!/bin/sh\necho 'E: no network' >&2\nexit 100\n")
    with pytest.raises(debian.CannotInstall, match=r"(?s)status 100.*no network"):
        chromium.ensure()
    (machine.bin / "apt-get").unlink()
    with pytest.raises(debian.CannotInstall, match="no Debian"):
        chromium.ensure()


async def test_without_one_tests_are_skipped_and_under_ci_they_fail(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(pytest.skip.Exception, match="make browser"):
        async with browsing.chromium():
            pass
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="make browser"):
        async with browsing.chromium():
            pass


def test_the_browser_ends_with_the_process_that_started_it() -> None:
    program = chromium.find()
    if program is None and not chromium.is_required():
        pytest.skip(chromium.MISSING)
    code = f"from tests.admin import browsing; print(browsing._started({program!r}), flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as starter:
        assert starter.stdout is not None
        port = int(starter.stdout.readline().rpartition(":")[2])
        starter.kill()

    def refuses() -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", port)) != 0

    until(refuses, 30, "the browser's end")
