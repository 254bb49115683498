"""Compiles the C of the D2 kernels when the package is built or installed; `python hatch_build.py` does it in place.

Three libraries come of the same sources, one for each x86 instruction set (elsewhere only the plain one); which is
loaded is decided at run time (`numerics/kernels/native/library.py`). OpenMP's symbols are left open on purpose: they
are found in the libgomp that torch has loaded, so that a process has one pool of threads and not two. Without a C
compiler the package is built all the same and D2 runs by torch operators: the same bits, slowly. Needs the standard
library only.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shlex
import subprocess
import sys
import sysconfig
import tempfile
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run as a script, where hatchling need not be
    BuildHookInterface = object  # type: ignore[assignment,misc]

ROOT = Path(__file__).resolve().parent
KERNELS = Path("src/easyscale/numerics/kernels")
NATIVE = KERNELS / "native"

# No -ffast-math, and no contraction: a fused multiply-add is where the source says fmaf and nowhere else. The two
# -fno-... only drop errno and the floating-point exception flags, which nobody reads; values stay as they are.
EXACT = ["-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]
FLAGS = ["-O3", "-std=gnu11", "-fPIC", "-fopenmp", "-Wall", *EXACT]
AVX512 = ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mf16c", "-mprefer-vector-width=512"]
AVX2 = ["-mavx2", "-mfma", "-mf16c"]

Command = tuple[list[str], Path]  # a command and the file it makes


class BuildError(Exception):
    """No libraries could be made; the text says why."""


def variants() -> dict[str, list[str]]:
    """Instruction sets to build for, with their flags."""
    if platform.machine().lower() in ("x86_64", "amd64"):
        return {"avx512": AVX512, "avx2": AVX2, "base": []}
    return {"base": []}


def generate(root: Path, folder: Path) -> None:
    """Write the C of the formulas into the folder, in a process of its own: `emit_c` is part of a package whose other
    modules need torch, which is not here at build time."""
    done = subprocess.run(
        [sys.executable, __file__, "--generate", str(root), str(folder)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise BuildError(f"the C of the formulas could not be written:\n{done.stderr}")


def generate_here(root: Path, folder: Path) -> None:
    """`generate`, in this process. The package's folders stand in for its packages, so no `__init__` is run."""
    path = root / "src"
    for depth in range(1, len(KERNELS.parts)):
        name = ".".join(KERNELS.parts[1 : depth + 1])
        path = path / KERNELS.parts[depth]
        package = types.ModuleType(name)
        package.__path__ = [str(path)]
        sys.modules[name] = package
    from easyscale.numerics.kernels import emit_c, formulas

    emit_c.write(folder, formulas.FORMULAS)


def compiler() -> list[str]:
    """The C compiler's command."""
    return shlex.split(os.environ.get("CC", "")) or ["cc"]


def run(command: list[str]) -> None:
    """Run the compiler; BuildError with what it said if it cannot."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise BuildError(f"the C compiler {command[0]!r} does not start: {error}") from None
    if done.returncode:
        raise BuildError(f"{shlex.join(command)}\n{done.stderr}")
    if done.stderr:
        print(done.stderr, file=sys.stderr)


def abi(root: Path) -> str:
    """The number in `library.py` that the libraries must carry as well."""
    found = re.search(r"^ABI = (\d+)$", (root / NATIVE / "library.py").read_text(), re.MULTILINE)
    assert found, "library.py has no line ABI = <number>"
    return found[1]


def compile_to(command: list[str], target: Path) -> None:
    """Run a command that makes `target`, under another name first: no half-written file is ever seen."""
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = Path(folder) / target.name
        run([*command, "-o", str(made)])
        made.replace(target)


def build(root: Path) -> list[Path]:
    """Compile everything that has changed; the libraries made."""
    native = root / NATIVE
    cache = root / "build" / "d2"
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        generated = Path(folder)
        if (root / KERNELS / "emit_c.py").exists() and (root / KERNELS / "formulas.py").exists():
            generate(root, generated)
        sources = sorted((native / "c").glob("*.c")) + sorted(generated.glob("*.c"))
        headers = sorted((native / "c").glob("*.h")) + sorted(generated.glob("*.h"))
        about = generated / "about.c"
        about.write_text(f"int d2_abi(void) {{ return {abi(root)}; }}\n")
        common = b"".join(header.read_bytes() for header in headers)
        objects: dict[str, list[Path]] = {}
        jobs: list[Command] = []
        for variant, flags in variants().items():
            for source in [*sources, about]:
                command = [*compiler(), *FLAGS, *flags]
                digest = hashlib.sha256(repr(command).encode() + common + source.read_bytes()).hexdigest()
                target = cache / f"{source.stem}-{variant}-{digest[:16]}.o"
                objects.setdefault(variant, []).append(target)
                if not target.exists():
                    includes = ["-I", str(generated), "-I", str(native / "c")]
                    jobs.append(([*command, *includes, "-c", str(source)], target))
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda job: compile_to(*job), jobs))
    made = []
    for variant, parts in objects.items():
        target = native / f"_d2_{variant}.so"
        # no -fopenmp here: the library names no libgomp, see above
        compile_to([*compiler(), "-shared", *map(str, parts), "-lm"], target)
        made.append(target)
    return made


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """What hatchling calls before it packs a wheel or makes an editable install."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        try:
            made = build(root)
        except BuildError as error:
            for old in (root / NATIVE).glob("_d2_*.so"):
                old.unlink()  # of other sources, or of another machine
            print(
                "easyscale: the D2 kernels were not compiled, so level D2 will run by torch operators: the same bits, "
                f"but slow. Install a C compiler (gcc) and install the package again. What happened: {error}",
                file=sys.stderr,
            )
            return
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{re.sub(r'[-.]', '_', sysconfig.get_platform())}"
        build_data["artifacts"].extend("/" + made_one.relative_to(root).as_posix() for made_one in made)


def main() -> None:
    """`python hatch_build.py`: rebuild in place."""
    if sys.argv[1:2] == ["--generate"]:
        generate_here(Path(sys.argv[2]), Path(sys.argv[3]))
        return
    try:
        for made in build(ROOT):
            print(made.relative_to(ROOT))
    except BuildError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
