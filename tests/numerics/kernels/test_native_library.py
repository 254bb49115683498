"""The compiled library: the right one is loaded, a missing one is said once, and a build without a compiler goes on."""

import importlib.util
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from easyscale.numerics.kernels import native, portable, primitives
from easyscale.numerics.kernels.native import library

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def unloaded() -> Iterator[None]:
    """As in a process that has not asked for the library yet."""
    library._load.cache_clear()
    yield
    library._load.cache_clear()


@pytest.fixture
def hatch_build() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def sources(tmp_path: Path, hatch_build: ModuleType) -> Path:
    """What the build reads, elsewhere; of the C only one small file."""
    native = tmp_path / hatch_build.NATIVE
    (native / "c").mkdir(parents=True)
    shutil.copy(ROOT / hatch_build.NATIVE / "library.py", native)
    (native / "c" / "small.c").write_text("int d2_small(void) { return 41; }\n")
    return tmp_path


def test_the_instruction_set_is_the_one_torch_uses() -> None:
    expected = {"AVX512": "avx512", "AVX2": "avx2"}.get(torch.backends.cpu.get_cpu_capability(), "base")
    assert library.available()
    assert library.which() == expected
    assert library.library().d2_abi() == library.ABI


@pytest.mark.parametrize(("capability", "expected"), [("avx2", "avx2"), ("default", "base")])
def test_an_older_cpu_is_imitated_as_torch_does_it(capability: str, expected: str) -> None:
    if capability == "avx2" and torch.backends.cpu.get_cpu_capability() == "DEFAULT":
        pytest.skip("this CPU is the older one")
    script = (
        "from easyscale.numerics.kernels.native import library\n"
        "print(library._load.cache_info().currsize, library.which())"
    )
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": capability}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", expected], "nothing is loaded before it is asked for"


def test_no_library_brings_an_openmp_of_its_own() -> None:
    built = sorted(Path(library.__file__).parent.glob("_d2_*.so"))
    assert built
    for path in built:
        content = path.read_bytes()
        assert b"GOMP_parallel" in content, "it uses OpenMP"
        assert b"libgomp" not in content, "and names no library for it"


def test_a_missing_library_is_said_once(
    unloaded: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(library, "path_of", lambda variant: tmp_path / variant)
    with pytest.warns(UserWarning, match="slow") as said:
        assert not library.available()
    assert "no C compiler" in str(said[0].message)
    assert "install" in str(said[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not library.available()
    assert library.which() == "none"


def test_a_library_of_other_sources_is_not_used(unloaded: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "ABI", -1)
    with pytest.warns(UserWarning, match="other sources"):
        assert not library.available()


def test_a_file_that_is_no_library_is_not_used(
    unloaded: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "_d2_broken.so"
    broken.write_text("no library")
    monkeypatch.setattr(library, "path_of", lambda variant: broken)
    with pytest.warns(UserWarning, match="cannot be loaded"):
        assert not library.available()


def test_sources_are_compiled_for_each_instruction_set(hatch_build: ModuleType, sources: Path) -> None:
    made = hatch_build.build(sources)
    assert [path.name for path in made] == [f"_d2_{variant}.so" for variant in hatch_build.variants()]
    base = library.open_library(made[-1])
    assert base.d2_small() == 41
    assert base.d2_abi() == library.ABI


def test_a_build_without_a_compiler_says_so_and_goes_on(
    hatch_build: ModuleType, sources: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stale = sources / hatch_build.NATIVE / "_d2_base.so"
    stale.write_text("built long ago")
    monkeypatch.setenv("CC", str(sources / "no-such-compiler"))
    hook = hatch_build.CustomBuildHook.__new__(hatch_build.CustomBuildHook)
    vars(hook)["root" if hatch_build.BuildHookInterface is object else "_BuildHookInterface__root"] = str(sources)
    data: dict[str, object] = {"artifacts": []}
    hook.initialize("standard", data)
    assert "Install a C compiler" in capsys.readouterr().err
    assert data == {"artifacts": []}, "the wheel is pure"
    assert not stale.exists()


def test_a_build_with_a_compiler_makes_a_wheel_of_this_platform(hatch_build: ModuleType, sources: Path) -> None:
    hook = hatch_build.CustomBuildHook.__new__(hatch_build.CustomBuildHook)
    vars(hook)["root" if hatch_build.BuildHookInterface is object else "_BuildHookInterface__root"] = str(sources)
    data: dict[str, object] = {"artifacts": []}
    hook.initialize("standard", data)
    assert data["pure_python"] is False
    assert str(data["tag"]).startswith("py3-none-")
    assert f"/{hatch_build.NATIVE.as_posix()}/_d2_base.so" in data["artifacts"]  # type: ignore[operator]


def test_what_computes_is_chosen_anew_when_torch_operators_are_asked_for() -> None:
    """Else every comparison of the two would be one of a thing with itself."""
    device = torch.device("cpu")
    assert primitives.implementation(device) is native
    try:
        primitives.use_portable(True)
        assert primitives.implementation(device) is portable
    finally:
        primitives.use_portable(False)
    assert primitives.implementation(device) is native
