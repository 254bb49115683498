"""What the master relies on in each launcher of elastic workers; run against each one."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from easyscale.backends.apart import process_start
from easyscale.backends.local import LocalLauncher
from easyscale.core.cluster import Slot
from easyscale.core.ports import ApartProcess, ElasticLauncher
from easyscale.core.spec import Bounds, Target, WorkerSpec
from easyscale.testing import FakeLauncher
from elasticity import wait_until

SLEEPER = (sys.executable, "-c", "import sys, time; print('up', flush=True); sys.stderr.write('x\\n'); time.sleep(60)")
RAY = pytest.param("ray", marks=pytest.mark.slow)

Make = Callable[[Sequence[str]], ElasticLauncher]


@pytest.fixture(params=["local", RAY])
def make(request: pytest.FixtureRequest) -> Make:
    """A launcher of real processes, by the command that they run."""
    if request.param == "local":
        return lambda command: LocalLauncher(os.environ, command)
    return ray_launchers(request)


@pytest.fixture(params=["local", "fake", RAY])
def launcher(request: pytest.FixtureRequest) -> ElasticLauncher:
    if request.param == "fake":
        return FakeLauncher()
    return LocalLauncher(os.environ, SLEEPER) if request.param == "local" else ray_launchers(request)(SLEEPER)


def ray_launchers(request: pytest.FixtureRequest) -> Make:
    from easyscale.backends.ray.launcher import RayLauncher

    address = request.getfixturevalue("ray_cluster").address
    return lambda command: RayLauncher("contract", os.environ, address=address, types=["v100"], command=command)


@pytest.fixture
def start(launcher: ElasticLauncher, tmp_path: Path) -> Callable[[], ApartProcess]:
    """A worker that runs: it has printed something, if it is real."""

    def begin() -> ApartProcess:
        out = tmp_path / "out.log"
        worker = launcher.start_apart(WorkerSpec(ests=1), Target("train.py"), out, tmp_path / "err.log")
        if not isinstance(launcher, FakeLauncher):
            wait_until(lambda: "up" in out.read_text(), 60.0)
        return worker

    return begin


def wait_for_end(worker: ApartProcess) -> None:
    if worker.ended is not None:
        assert select.select([worker.ended], [], [], 60.0)[0]
    assert worker.gone()


def test_a_worker_lives_until_it_is_killed_and_its_code_tells_how(start: Callable[[], ApartProcess]) -> None:
    worker = start()
    assert not worker.gone()
    worker.kill()
    wait_for_end(worker)
    assert worker.code == -signal.SIGKILL
    worker.kill()  # nobody: no error
    worker.signal(signal.SIGTERM)
    worker.close()


def test_a_signal_reaches_the_worker(make: Make, tmp_path: Path) -> None:
    code = "import signal, time; signal.signal(15, lambda *a: exit(7)); print('up', flush=True); time.sleep(99)"
    worker = make((sys.executable, "-c", code)).start_apart(
        WorkerSpec(ests=1), Target("x"), tmp_path / "out", tmp_path / "err"
    )
    wait_until(lambda: "up" in (tmp_path / "out").read_text(), 60.0)
    worker.signal(signal.SIGTERM)
    wait_for_end(worker)
    worker.close()
    assert worker.code == 7


def test_a_worker_can_be_killed_before_it_runs(launcher: ElasticLauncher, tmp_path: Path) -> None:
    worker = launcher.start_apart(WorkerSpec(ests=1), Target("x"), tmp_path / "out", tmp_path / "err")
    worker.kill()
    wait_for_end(worker)
    worker.close()
    assert worker.code == -signal.SIGKILL


def test_a_living_worker_can_be_found_again_and_a_dead_one_cannot(
    launcher: ElasticLauncher, start: Callable[[], ApartProcess]
) -> None:
    worker = start()
    again = launcher.attach(worker.pid, worker.started)
    assert again is not None
    assert launcher.attach(worker.pid, "another start") is None
    again.kill()
    wait_for_end(again)
    wait_for_end(worker)
    assert launcher.attach(worker.pid, worker.started) is None
    worker.close()
    again.close()


def test_output_goes_to_the_ends_of_two_private_files(make: Make, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("before\n")
    command = (sys.executable, "-c", "import sys; print('out'); print('err', file=sys.stderr)")
    worker = make(command).start_apart(WorkerSpec(ests=1), Target("x"), tmp_path / "out", tmp_path / "err")
    wait_for_end(worker)
    worker.close()
    assert (tmp_path / "out").read_text() == "before\nout\n"
    assert (tmp_path / "err").read_text() == "err\n"
    assert (tmp_path / "err").stat().st_mode & 0o777 == 0o600
    assert worker.code == 0


SHOWS = (sys.executable, "-c", "import os; print(os.environ.get('CUDA_VISIBLE_DEVICES', 'all'), flush=True)")


@pytest.mark.parametrize(
    ("slot", "sees"),
    [
        (Slot(id="gpu-3", kind="v100", uuid="GPU-1234"), "GPU-1234"),
        (Slot(id="cpu-0", kind="v100"), ""),
        (None, "0,1"),
    ],
)
@pytest.mark.parametrize("bounds", [None, Bounds(files=64)])
def test_a_worker_sees_the_device_that_it_was_started_for(
    slot: Slot | None, sees: str, bounds: Bounds | None, tmp_path: Path
) -> None:
    launcher = LocalLauncher({**os.environ, "CUDA_VISIBLE_DEVICES": "0,1"}, SHOWS)
    spec = WorkerSpec(ests=1, slot=slot, bounds=bounds)
    worker = launcher.start_apart(spec, Target("x"), tmp_path / "out", tmp_path / "err")
    assert os.getsid(worker.pid) == worker.pid, "limits or not, it is the process that was started"
    wait_for_end(worker)
    worker.close()
    assert (tmp_path / "out").read_text() == f"{sees}\n"
    assert worker.code == 0


@pytest.mark.parametrize("backend", ["local", RAY])
def test_a_worker_outlives_its_launcher(backend: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """The next one finds it and can end it; a child's exit code is known to its parent alone."""
    if backend == "local":
        launcher = f"from easyscale.backends.local import LocalLauncher as L\nlauncher = L(os.environ, {SLEEPER!r})"
        make: Make = lambda command: LocalLauncher(os.environ, command)  # noqa: E731
    else:
        address = request.getfixturevalue("ray_cluster").address
        launcher = f"""from easyscale.backends.ray.launcher import RayLauncher as L
launcher = L("contract", os.environ, address={address!r}, types=["v100"], command={SLEEPER!r})"""
        make = ray_launchers(request)
    code = f"""
import os, sys, time
from pathlib import Path
from easyscale.core.spec import Target, WorkerSpec
{launcher}
out = Path({str(tmp_path / "o")!r})
worker = launcher.start_apart(WorkerSpec(ests=1), Target("x"), out, Path({str(tmp_path / "e")!r}))
while not out.read_text():
    time.sleep(0.01)
print(worker.pid, worker.started, flush=True)
os._exit(0)
"""
    done = subprocess.run((sys.executable, "-c", code), capture_output=True, text=True, check=True)
    pid, started = done.stdout.split()
    worker = make(SLEEPER).attach(int(pid), started)
    assert worker is not None
    assert not worker.gone()
    if backend == "local":
        assert os.getsid(worker.pid) == worker.pid
    worker.kill()
    wait_for_end(worker)
    assert worker.code == (None if backend == "local" else -signal.SIGKILL)
    worker.close()


def test_the_start_of_a_process_is_its_own() -> None:
    mine = process_start(os.getpid())
    assert mine is not None
    assert mine == process_start(os.getpid())
    assert mine != process_start(1)
    assert process_start(2**22 + 1) is None
