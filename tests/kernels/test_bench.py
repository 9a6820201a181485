"""The kernel benchmarks' harness, on an op made for it: what is red is refused, what is green has a line."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch

from kernels import bench
from kernels.timing import Ceilings, measure_ceilings, time_us

CPU = torch.device("cpu")


@dataclass
class Doubling:
    """Twice a vector; `off` of its results are wrong."""

    name: str = "N=4096"
    off: float = 0.0
    flops: int = 0
    bytes: int = 2 * 4 * 4096
    calls: list[str] = field(default_factory=list)

    def make(self, device: torch.device) -> tuple[Callable[[], None], Callable[[], None]]:
        x = torch.randn(4096, device=device)
        out = torch.empty_like(x)

        def run() -> None:
            self.calls.append("run")
            torch.mul(x, 2 + self.off, out=out)

        def check() -> None:
            self.calls.append("check")
            torch.mul(x, 2 + self.off, out=out)
            torch.testing.assert_close(out, x + x)

        return run, check


def run(capsys, *arguments: str, **benches) -> tuple[int, list[str]]:
    code = bench.main([*arguments, "--device", "cpu"], benches=benches)
    return code, capsys.readouterr().out.splitlines()


def test_every_case_is_checked_and_has_a_line(capsys, tmp_path):
    cases = [Doubling(), Doubling("N=4096 again")]
    out = tmp_path / "there" / "kernels.json"
    code, lines = run(capsys, "--out", str(out), doubling=cases)
    assert code == 0
    assert lines[1].split() == ["op", "case", "us", "GB/s", "floor", "us", "%", "of", "floor"]
    assert [line.split()[:2] for line in lines[2:]] == [["doubling", "N=4096"]] * 2
    for case in cases:
        assert case.calls[0] == "check"
        assert case.calls[1:] == ["run"] * (len(case.calls) - 1)
        assert len(case.calls) > 5
    report = json.loads(out.read_text())
    assert {"hardware", "commit", "command", "ceilings", "figures", "refused"} == report.keys()
    first = report["figures"][0]
    assert first["us"] > 0
    assert first["floor_us"] == pytest.approx(1e6 * 32768 / report["ceilings"]["copy"])
    assert first["floor_percent"] == pytest.approx(100 * first["floor_us"] / first["us"])
    assert first["gigabytes_per_s"] == pytest.approx(32768 / first["us"] / 1e3)


def test_an_op_with_a_red_check_is_refused_as_a_whole(capsys, tmp_path):
    broken = Doubling("broken", off=0.25)
    out = tmp_path / "kernels.json"
    code, lines = run(
        capsys, "--out", str(out), doubling=[Doubling("sound"), broken], other=[Doubling("other")]
    )
    assert code == 1
    assert broken.calls == ["check"]
    assert not [line for line in lines if line.startswith("doubling")]
    assert [line.split()[0] for line in lines[2:3]] == ["other"]
    assert lines[-1].startswith("REFUSED, check is red: doubling broken: ")
    report = json.loads(out.read_text())
    assert list(report["refused"]) == ["doubling"]
    assert [figure["op"] for figure in report["figures"]] == ["other"]


def test_an_error_that_is_no_failed_check_is_not_hidden(capsys):
    class Crashing(Doubling):
        def make(self, device):
            raise RuntimeError("no memory")

    with pytest.raises(RuntimeError, match="no memory"):
        run(capsys, crashing=[Crashing()])


def test_listing_runs_nothing(capsys):
    case = Doubling()
    assert run(capsys, "--list", doubling=[case]) == (0, ["doubling N=4096"])
    assert not case.calls


def test_ops_are_chosen_by_name_and_unknown_ones_refused(capsys):
    chosen, other = Doubling(), Doubling()
    assert run(capsys, "one", one=[chosen], two=[other])[0] == 0
    assert chosen.calls
    assert not other.calls
    code, lines = run(capsys, "three", one=[chosen])
    assert code == 2
    assert lines == ["no benches: three; there are one"]


def test_a_floor_is_the_longer_of_bytes_and_operations():
    ceilings = Ceilings(copy=4e12, peak={"bf16": 800e12, "fp8": 1600e12})
    assert ceilings.floor_us(4_000_000, 0) == pytest.approx(1.0)
    assert ceilings.floor_us(4_000_000, 1_600_000_000) == pytest.approx(2.0)
    assert ceilings.floor_us(4_000_000, 3_200_000_000, "fp8") == pytest.approx(2.0)
    with pytest.raises(ValueError, match="int4"):
        ceilings.floor_us(1, 1, "int4")


def test_ceilings_and_times_are_measured():
    ceilings = measure_ceilings(CPU)
    assert 1e8 < ceilings.copy < 1e13
    assert 1e8 < ceilings.peak["bf16"] < 1e14
    small, large = torch.zeros(1000), torch.zeros(1_000_000)

    def fill(vector: torch.Tensor) -> Callable[[], None]:
        def run() -> None:
            vector.exp_()

        return run

    assert time_us(fill(small), CPU) < time_us(fill(large), CPU)


def test_the_ops_with_benches_are_found_and_say_what_they_are():
    for op, benches in bench.find_benches().items():
        names = [one.name for one in benches]
        assert len(set(names)) == len(names), op
        assert all(one.bytes > 0 and one.flops >= 0 for one in benches)
