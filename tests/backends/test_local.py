import json
import os
import select
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from easyscale.backends import bounds
from easyscale.backends.local import LocalLauncher, LocalWorker, Target, bounded, cores, gpus, worker_environment
from easyscale.core.cluster import Slot
from easyscale.core.spec import WORKER_VARIABLE, Bounds, WorkerSpec

PYTHON = (sys.executable, "-c")


def start(code: str, *args: str, **environment: str) -> LocalWorker:
    launcher = LocalLauncher({**os.environ, **environment}, (*PYTHON, textwrap.dedent(code)))
    return launcher.start(WorkerSpec(ests=2, threads=3), Target("train.py", args))


def read_line(fd: int) -> str:
    """Wait for a line, however it is cut."""
    data = b""
    while not data.endswith(b"\n"):
        select.select([fd], [], [])
        piece = os.read(fd, 1)
        if not piece:
            break
        data += piece
    return data.decode().rstrip("\n")


def end_of(worker: LocalWorker) -> int:
    code = worker.stop(grace=30.0)
    worker.close()
    return code


def wait_for_exit(worker: LocalWorker) -> int:
    assert worker.ended is not None
    select.select([worker.ended], [], [])
    code = worker.poll()
    assert code is not None
    worker.close()
    return code


def test_a_worker_finds_its_spec_its_target_and_its_pipe() -> None:
    worker = start(
        """
        import json, os, sys
        spec = json.loads(os.environ["EASYSCALE_WORKER"])
        os.write(spec["events_fd"], b"a message\\n")
        print(json.dumps([sys.argv[1:], spec["ests"], os.environ["OMP_NUM_THREADS"]]))
        print("to stderr", file=sys.stderr)
        """,
        "--lr",
        "0.1",
    )
    assert read_line(worker.events) == "a message"
    assert json.loads(read_line(worker.stdout)) == [["train.py", "--lr", "0.1"], 2, "3"]
    assert read_line(worker.stderr) == "to stderr"
    assert wait_for_exit(worker) == 0


def test_a_worker_sees_only_its_own_device() -> None:
    gpu = WorkerSpec(ests=2, slot=Slot(id="g", kind="v100", uuid="GPU-7"))
    found = worker_environment({"CUDA_VISIBLE_DEVICES": "0,1", "HOME": "/h"}, gpu)
    assert (found["CUDA_VISIBLE_DEVICES"], found["HOME"]) == ("GPU-7", "/h")
    told = WorkerSpec.from_json(found[WORKER_VARIABLE])
    assert (told.device, told.slot) == ("cuda", gpu.slot)
    found = worker_environment({}, WorkerSpec(ests=2, device="cuda", slot=Slot(id="c", kind="v100")))
    assert found["CUDA_VISIBLE_DEVICES"] == ""
    assert WorkerSpec.from_json(found[WORKER_VARIABLE]).device == "cpu"
    found = worker_environment({"CUDA_VISIBLE_DEVICES": "1"}, WorkerSpec(ests=2))
    assert found["CUDA_VISIBLE_DEVICES"] == "1"
    assert WorkerSpec.from_json(found[WORKER_VARIABLE]).device == "auto"


LIMITS = """
import resource
print([resource.getrlimit(name)[0] for name in (resource.RLIMIT_AS, resource.RLIMIT_NOFILE, resource.RLIMIT_CORE)])
"""


@pytest.mark.parametrize("apart", [False, True])
def test_a_worker_has_the_limits_of_its_spec(apart: bool, tmp_path: Path) -> None:
    spec = WorkerSpec(ests=1, bounds=Bounds(memory=3 << 30, files=100, processes=10**6))
    launcher = LocalLauncher(os.environ, (*PYTHON, LIMITS))
    if apart:
        process = launcher.start_apart(spec, Target("x"), tmp_path / "out", tmp_path / "err")
        assert process.ended is not None
        select.select([process.ended], [], [])
        assert process.gone()
        process.close()
        told, code = (tmp_path / "out").read_text().strip(), process.code
    else:
        worker = launcher.start(spec, Target("x"))
        told, code = read_line(worker.stdout), wait_for_exit(worker)
    assert (told, code) == (f"[{3 << 30}, 100, 0]", 0)


def test_a_worker_that_takes_more_memory_than_it_may_fails_and_one_with_a_gpu_has_no_such_limit() -> None:
    spec = WorkerSpec(ests=1, bounds=Bounds(memory=1 << 30))
    code = "x = bytearray(2 << 30)"
    assert wait_for_exit(LocalLauncher(os.environ, (*PYTHON, code)).start(spec, Target("x"))) == 1
    on_gpu = replace(spec, slot=Slot(id="g", kind="v100", uuid="GPU-1"))
    assert bounded(on_gpu, ("train",))[4:] == ("-", "-", "-", "train")
    assert bounded(replace(spec, bounds=None), ("train",)) == ("train",)
    assert wait_for_exit(LocalLauncher(os.environ, (*PYTHON, "pass")).start(on_gpu, Target("x"))) == 0


def test_a_limit_never_goes_above_the_one_that_is_there() -> None:
    code = f"""
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (50, 50))
sys.argv = ["bounds", "-", "999", "-", sys.executable, "-c", {LIMITS!r}]
runpy.run_path({bounds.__file__!r}, run_name="__main__")
"""
    done = subprocess.run((*PYTHON, code), capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)[1:] == [50, 0]


def test_a_module_is_named_as_such_on_the_command_line() -> None:
    assert Target("train.py", ("--x",)).command() == ("train.py", "--x")
    assert Target("pkg.train", ("--x",), module=True).command() == ("--module", "pkg.train", "--x")


def test_an_exit_code_is_the_workers_own_and_a_signal_is_negative() -> None:
    assert wait_for_exit(start("raise SystemExit(7)")) == 7
    assert wait_for_exit(start("import os; os.kill(os.getpid(), 9)")) == -9


def test_a_command_that_does_not_exist_ends_like_a_worker_that_failed() -> None:
    worker = LocalLauncher(os.environ, ("/no/such/command",)).start(WorkerSpec(ests=1), Target("train.py"))
    assert "cannot start /no/such/command" in read_line(worker.stderr)
    assert wait_for_exit(worker) == 1


def test_a_worker_is_in_a_session_of_its_own() -> None:
    worker = start("import os; print(os.getsid(0) == os.getpid())")
    assert read_line(worker.stdout) == "True"
    wait_for_exit(worker)


def test_stop_lets_a_worker_finish_in_its_grace() -> None:
    worker = start(
        """
        import signal, sys
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
        print("ready", flush=True)
        signal.pause()
        """
    )
    read_line(worker.stdout)
    assert end_of(worker) == 5


def test_stop_kills_a_worker_that_does_not_listen() -> None:
    worker = start(
        """
        import signal
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("ready", flush=True)
        while True: signal.pause()
        """
    )
    read_line(worker.stdout)
    assert worker.stop(grace=0.05) == -signal.SIGKILL
    assert worker.stop(grace=0.05) == -signal.SIGKILL
    worker.signal(signal.SIGTERM)  # to nobody: no error
    worker.kill()
    worker.close()


def test_processes_that_a_worker_leaves_behind_are_killed_and_do_not_hold_its_pipes() -> None:
    worker = start(
        """
        import os, signal
        child = os.fork()
        if child == 0:
            signal.pause()
        print(child, flush=True)
        """
    )
    child = os.pidfd_open(int(read_line(worker.stdout)))
    assert worker.ended is not None
    select.select([worker.ended], [], [])
    assert worker.poll() == 0
    assert read_line(worker.events) == ""  # the end of the pipe: nobody has it open
    select.select([child], [], [])
    os.close(child)
    worker.close()


def test_a_signal_goes_to_the_worker_and_not_to_its_data_loading_processes() -> None:
    worker = start(
        """
        import os, signal, sys
        child = os.fork()
        if child == 0:
            signal.pause()
        def handler(*_):
            print("alive" if os.waitpid(child, os.WNOHANG) == (0, 0) else "dead", flush=True)
            sys.exit(0)
        signal.signal(signal.SIGTERM, handler)
        print("ready", flush=True)
        signal.pause()
        """
    )
    read_line(worker.stdout)
    worker.signal(signal.SIGTERM)
    assert read_line(worker.stdout) == "alive"
    assert wait_for_exit(worker) == 0


def test_workers_die_with_their_launcher() -> None:
    code = """
        import os, signal, sys
        from easyscale.backends.local import LocalLauncher, Target
        from easyscale.core.spec import WorkerSpec
        deaf = "import signal; signal.signal(15, signal.SIG_IGN); print('up', flush=True); signal.pause()"
        worker = LocalLauncher(os.environ, (sys.executable, "-c", deaf)).start(WorkerSpec(ests=1), Target("x"))
        os.set_blocking(worker.stdout, True)
        os.read(worker.stdout, 10)
        print(worker.pid, flush=True)
        signal.pause()
        """
    with subprocess.Popen((*PYTHON, textwrap.dedent(code)), stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        worker = os.pidfd_open(int(launcher.stdout.readline()))
        launcher.kill()
        ready, _, _ = select.select([worker], [], [], 30.0)
        os.close(worker)
    assert ready, "the worker outlived its launcher"


def test_settings_that_libraries_read_once_are_set_but_the_users_own_choice_stays() -> None:
    spec = WorkerSpec(ests=1, threads=2)
    plain = worker_environment({"OMP_NUM_THREADS": "64"}, spec)
    assert WorkerSpec.from_json(plain.pop(WORKER_VARIABLE)) == spec
    assert plain == {
        "OMP_NUM_THREADS": "2",
        "MKL_NUM_THREADS": "2",
        "PYTHONUNBUFFERED": "1",
        "PYTHONHASHSEED": "0",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    }
    chosen = worker_environment({"PYTHONHASHSEED": "5", "CUBLAS_WORKSPACE_CONFIG": ":16:8"}, spec)
    assert (chosen["PYTHONHASHSEED"], chosen["CUBLAS_WORKSPACE_CONFIG"]) == ("5", ":16:8")


@pytest.mark.parametrize(
    ("visible", "expected"), [(None, 3), ("", 0), ("-1", 0), ("0", 1), ("2,0", 2), ("0,-1,2", 1), ("0,1,2,3,4", 3)]
)
def test_gpus_are_those_that_a_worker_would_see(tmp_path: Path, visible: str | None, expected: int) -> None:
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidiactl", "nvidia-uvm", "nvidia-caps"):
        (tmp_path / name).touch()
    assert gpus({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}, tmp_path) == expected


def test_there_is_at_least_one_core() -> None:
    assert cores() >= 1
