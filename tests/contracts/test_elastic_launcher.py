"""What the master relies on in each launcher of elastic workers; run against each one."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from easyscale.backends.apart import attach, process_start
from easyscale.backends.local import LocalLauncher
from easyscale.core.cluster import Slot
from easyscale.core.ports import ApartProcess, ElasticLauncher
from easyscale.core.spec import Bounds, Target, WorkerSpec
from easyscale.testing import FakeLauncher

SLEEPER = (sys.executable, "-c", "import sys, time; print('up', flush=True); sys.stderr.write('x\\n'); time.sleep(60)")


@pytest.fixture(params=["local", "fake"])
def launcher(request: pytest.FixtureRequest) -> ElasticLauncher:
    return LocalLauncher(os.environ, SLEEPER) if request.param == "local" else FakeLauncher()


@pytest.fixture
def start(launcher: ElasticLauncher, tmp_path: Path) -> Callable[[], ApartProcess]:
    return lambda: launcher.start_apart(
        WorkerSpec(ests=1), Target("train.py"), tmp_path / "out.log", tmp_path / "err.log"
    )


def wait_for_end(worker: ApartProcess) -> None:
    if worker.ended is not None:
        assert select.select([worker.ended], [], [], 30.0)[0]
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


def test_output_goes_to_the_ends_of_two_private_files(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("before\n")
    command = (sys.executable, "-c", "import sys; print('out'); print('err', file=sys.stderr)")
    worker = LocalLauncher(os.environ, command).start_apart(
        WorkerSpec(ests=1), Target("x"), tmp_path / "out", tmp_path / "err"
    )
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


def test_a_worker_outlives_its_launcher_and_the_next_one_only_knows_that_it_ended(tmp_path: Path) -> None:
    code = f"""
import os, sys
from pathlib import Path
from easyscale.backends.local import LocalLauncher
from easyscale.core.spec import Target, WorkerSpec
worker = LocalLauncher(os.environ, {SLEEPER!r}).start_apart(
    WorkerSpec(ests=1), Target("x"), Path({str(tmp_path / "o")!r}), Path({str(tmp_path / "e")!r}))
print(worker.pid, worker.started, flush=True)
os._exit(0)
"""
    done = subprocess.run((sys.executable, "-c", code), capture_output=True, text=True, check=True)
    pid, started = done.stdout.split()
    worker = attach(int(pid), started)
    assert worker is not None
    assert os.getsid(worker.pid) == worker.pid
    worker.kill()
    wait_for_end(worker)
    assert worker.code is None
    worker.close()


def test_the_start_of_a_process_is_its_own() -> None:
    mine = process_start(os.getpid())
    assert mine is not None
    assert mine == process_start(os.getpid())
    assert mine != process_start(1)
    assert process_start(2**22 + 1) is None
