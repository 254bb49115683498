"""The rules about imports, checked by the tools that state them."""

import resource
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_imports_go_downwards_only() -> None:
    done = subprocess.run(
        (sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"),
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def children_seconds() -> float:
    """Processor time: unlike the clock on the wall it does not depend on what else the machine does."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_help_answers_at_once_and_loads_nothing_heavy() -> None:
    code = """
import sys
sys.argv = ["easyscale", *sys.argv[1:]]
from easyscale.cli.main import main
try:
    main()
finally:
    service = {"fastapi", "httpx", "sqlalchemy", "yaml"} | ({"pydantic"} if sys.argv[1] == "--help" else set())
    heavy = ({"torch", "numpy", "matplotlib", "sklearn", "rich"} | service) & set(sys.modules)
    print("loaded:", sorted(heavy), file=sys.stderr)
"""
    # typer itself loads pydantic for some kinds of options, when it shows them.
    for args in (("--help",), ("run", "--help"), ("submit", "--help")):
        before = children_seconds()
        done = subprocess.run((sys.executable, "-c", code, *args), capture_output=True, text=True, check=False)
        seconds = children_seconds() - before
        assert done.returncode == 0, done.stderr
        assert "Usage:" in done.stdout
        assert done.stderr.strip() == "loaded: []"
        assert seconds < 2.0, "it takes a tenth of a second; torch alone would take two"


def test_the_launcher_runs_a_job_without_torch(tmp_path: Path) -> None:
    code = f"""
import io, os, sys
from pathlib import Path
from easyscale.backends.local import LocalLauncher, Target
from easyscale.core.plan import Plan, Schedule
from easyscale.core.spec import WorkerSpec
from easyscale.master.launch import Outputs, run_job
from easyscale.master.progress import Screen
from easyscale.master.supervisor import Job
import easyscale.cli.demo, easyscale.cli.export
launcher = LocalLauncher(os.environ, (sys.executable, {str(ROOT / "tests" / "stub_worker.py")!r}))
job = Job(target=Target("train"), schedule=Schedule(((0, Plan((1,))),)), template=WorkerSpec(ests=1))
outcome = run_job(job, launcher, Screen(sys.stdout, sys.stderr), Outputs(metrics_dir=Path({str(tmp_path)!r})))
assert outcome.exit_code == 0
assert outcome.state.steps == 4
assert not {{"torch", "numpy", "matplotlib"}} & set(sys.modules)
"""
    done = subprocess.run((sys.executable, "-c", code), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
