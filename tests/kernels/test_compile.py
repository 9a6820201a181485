"""Every Triton kernel compiles for every architecture it is for, without a GPU, and fits in.

`kernels/<op>/kernel.py` says in `COMPILATIONS` with which types and sizes the op launches its kernels; this
is the one test of them all. Compiling them takes minutes, so `compiled.json` records a digest of what has
passed: the sources of the kernels and of all they call, types and sizes, the limits and Triton's version.
An op is compiled when its digest is another one; `make compile` compiles everything and writes the record.
"""

import ast
import hashlib
import importlib
import json
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import triton
import triton.language as tl
from triton.runtime.jit import JITFunction

from kernels.backend import INTERPRETING
from kernels.compilation import (
    ARCHITECTURES,
    SHARED_MEMORY_BYTES,
    Compilation,
    local_memory_bytes,
)

ROOT = Path(__file__).resolve().parents[2]
OPS = sorted(path.parent.name for path in (ROOT / "kernels").glob("*/kernel.py"))
RECORD = Path(__file__).with_name("compiled.json")
COMPILE_ALL = "ROOTSTOCK_TEST_COMPILE_ALL"
"""Set: compile what the record has, too, and record what passes."""
WORKERS = 2
MAX_LOCAL_BYTES = 256
"""What a kernel may allow itself (`Compilation.local_bytes`): beyond it tiles are plainly too large."""


@pytest.fixture(scope="module", autouse=True)
def compilations_of_their_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache that begins empty, unless whoever runs the tests keeps one."""
    assert not INTERPRETING, "an interpreted kernel cannot be compiled"
    with pytest.MonkeyPatch.context() as patch:
        if "TRITON_CACHE_DIR" not in os.environ:
            patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        patch.setenv("TRITON_DISABLE_LINE_INFO", "1")  # a tenth of the time, and nobody debugs these
        yield


@pytest.fixture(scope="module", autouse=True)
def one_parse_at_a_time() -> Iterator[None]:
    """Python 3.11 counts the depth of syntax trees for all threads in one place, and trips over itself."""
    parse, lock = ast.parse, threading.Lock()

    def alone(*arguments: Any, **options: Any) -> ast.AST:
        with lock:
            return parse(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ast, "parse", alone)
        yield


def compilations(module: ModuleType) -> list[Compilation]:
    found = getattr(module, "COMPILATIONS", None)
    assert found, f"{module.__name__} has kernels and no COMPILATIONS"
    return found


def launched(op: str) -> Iterator[JITFunction]:
    """The kernels that the modules of an op launch: `kernel[grid](...)`."""
    for path in sorted((ROOT / "kernels" / op).rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        module = importlib.import_module(name)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(func=ast.Subscript(value=ast.Name(id=name))):
                    function = getattr(module, name, None)
                    if isinstance(function, JITFunction):
                        yield function


def what_is_wrong(one: Compilation, architecture: int) -> str | None:
    """None: it compiles, and takes no more than there is."""
    where = f"{one.name} for sm_{architecture}"
    if one.local_bytes > MAX_LOCAL_BYTES:
        return f"{where}: allows itself {one.local_bytes} bytes of local memory of at most {MAX_LOCAL_BYTES}"
    try:
        compiled = one.compile(architecture)
    except Exception as error:  # noqa: BLE001 (whatever keeps it from compiling is the finding)
        return f"{where}: {type(error).__name__}: {error}"
    shared, limit = compiled.metadata.shared, SHARED_MEMORY_BYTES[architecture]
    if shared > limit:
        return f"{where}: {shared} bytes of shared memory of {limit}"
    local = local_memory_bytes(compiled.asm["cubin"])
    if local > one.local_bytes:
        return f"{where}: {local} bytes of local memory, {one.local_bytes} allowed"
    return None


def test_there_are_kernels():
    assert OPS


def digest(listed: list[Compilation]) -> str:
    """Of everything that decides whether these compile and fit, as 16 hexadecimal digits."""
    made_from = [
        (
            one.kernel.cache_key,
            sorted(one.signature.items()),
            sorted((name, str(value)) for name, value in one.constexprs.items()),
            (one.num_warps, one.num_stages, one.architectures, one.local_bytes),
        )
        for one in listed
    ]
    limits = (triton.__version__, sorted(SHARED_MEMORY_BYTES.items()), MAX_LOCAL_BYTES)
    return hashlib.sha256(repr((limits, made_from)).encode()).hexdigest()[:16]


def recorded() -> dict[str, str]:
    return json.loads(RECORD.read_text()) if RECORD.exists() else {}


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("op", OPS)
def test_every_kernel_compiles_and_fits(op):
    listed = compilations(importlib.import_module(f"kernels.{op}.kernel"))
    if COMPILE_ALL not in os.environ and recorded().get(op) == digest(listed):
        return
    todo = [(one, architecture) for one in listed for architecture in one.architectures]
    with ThreadPoolExecutor(WORKERS) as pool:
        found = list(pool.map(lambda both: what_is_wrong(*both), todo))
    problems = [problem for problem in found if problem]
    assert not problems, "\n".join(problems)
    if COMPILE_ALL in os.environ:
        kept = {name: value for name, value in recorded().items() if name in OPS}
        RECORD.write_text(json.dumps(kept | {op: digest(listed)}, indent=1, sort_keys=True) + "\n")


@pytest.mark.parametrize("op", OPS)
def test_every_kernel_launched_is_compiled(op):
    listed = {one.kernel for one in compilations(importlib.import_module(f"kernels.{op}.kernel"))}
    missing = {function.__name__ for function in launched(op) if function not in listed}
    assert not missing, f"launched, but not in COMPILATIONS: {missing}"


@pytest.mark.parametrize("op", OPS)
def test_every_kernel_is_interpreted(op):
    assert (ROOT / "tests" / "interpreted" / f"test_{op}.py").exists()


# ---- the checks themselves


@triton.jit
def _scan(x_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i)
    tl.store(x_ptr + i, tl.cumsum(x) + tl.cumsum(-x * x) + tl.cumsum(x * x * x))


@triton.jit
def _product(a_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    at = i[:, None] * BLOCK + i[None, :]
    a = tl.load(a_ptr + at)
    tl.store(a_ptr + at, tl.dot(a, tl.trans(a)).to(tl.bfloat16))


@triton.jit
def _wrong(x_ptr, BLOCK: tl.constexpr):
    tl.store(x_ptr + tl.arange(0, BLOCK), tl.arange(0, 2 * BLOCK))


def test_a_digest_tells_types_sizes_and_limits(monkeypatch):
    one = Compilation(_scan, {"x_ptr": "*fp32"}, {"BLOCK": 1024})
    others = [
        Compilation(_product, {"a_ptr": "*fp32"}, {"BLOCK": 1024}),
        Compilation(_scan, {"x_ptr": "*bf16"}, {"BLOCK": 1024}),
        Compilation(_scan, {"x_ptr": "*fp32"}, {"BLOCK": 512}),
        Compilation(_scan, {"x_ptr": "*fp32"}, {"BLOCK": 1024}, num_warps=8),
        Compilation(_scan, {"x_ptr": "*fp32"}, {"BLOCK": 1024}, architectures=(90,)),
    ]
    digests = [digest([one]), *(digest([other]) for other in others)]
    monkeypatch.setitem(SHARED_MEMORY_BYTES, 80, 4096)
    digests.append(digest([one]))
    assert len(set(digests)) == len(digests)


def test_a_kernel_that_fits_passes():
    assert what_is_wrong(Compilation(_scan, {"x_ptr": "*fp32"}, {"BLOCK": 1024}), 90) is None


def test_registers_that_spill_are_found_and_may_be_allowed():
    large = Compilation(_scan, {"x_ptr": "*fp32"}, {"BLOCK": 8192}, num_warps=1)
    assert "bytes of local memory, 0 allowed" in (what_is_wrong(large, 90) or "")
    generous = Compilation(
        _scan, {"x_ptr": "*fp32"}, {"BLOCK": 8192}, num_warps=1, local_bytes=MAX_LOCAL_BYTES + 1
    )
    assert "allows itself" in (what_is_wrong(generous, 90) or "")


def test_too_much_shared_memory_is_found(monkeypatch):
    product = Compilation(_product, {"a_ptr": "*bf16"}, {"BLOCK": 64})
    assert what_is_wrong(product, 80) is None
    monkeypatch.setitem(SHARED_MEMORY_BYTES, 80, 4096)
    assert "bytes of shared memory of 4096" in (what_is_wrong(product, 80) or "")


def test_what_does_not_compile_is_found():
    assert "CompilationError" in (
        what_is_wrong(Compilation(_wrong, {"x_ptr": "*i32"}, {"BLOCK": 64}), 90) or ""
    )


@pytest.mark.parametrize("content", ["", "COMPILATIONS = []"])
def test_a_module_of_kernels_without_compilations_is_found(content):
    module = ModuleType("kernels.fake.kernel")
    exec(content, module.__dict__)
    with pytest.raises(AssertionError, match="COMPILATIONS"):
        compilations(module)


def test_local_memory_wants_a_cubin():
    with pytest.raises(ValueError, match="ELF"):
        local_memory_bytes(b"// ptx")
    assert set(ARCHITECTURES) == set(SHARED_MEMORY_BYTES)
