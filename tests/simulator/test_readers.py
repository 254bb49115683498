"""Readers: what a trace says is kept, what it cannot say is refused with file, line and cure."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from easyscale.core.errors import UsageError
from easyscale.planner.model import EstSpeed
from easyscale.simulator.readers import FORMATS, guess, read
from easyscale.simulator.readers.assumed import REDUCTION
from easyscale.simulator.readers.rows import Names
from easyscale.simulator.workload import Workload

TRACES = Path(__file__).parents[2].parent / "shared" / "traces"
real = pytest.mark.skipif(not TRACES.is_dir(), reason="needs the public traces in ../shared/traces, which are not here")

HEADER = "job_id,cluster,submit_s,duration_s,num_gpu\n"
OWN = "name,submit,devices,duration\n"


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def refused(path: Path, **options: object) -> str:
    with pytest.raises(UsageError) as error:
        read(path, **options)  # type: ignore[arg-type]
    assert error.value.what
    assert error.value.why
    assert error.value.now
    return str(error.value)


def outcome(path: Path, format: str, skip: bool) -> Workload | UsageError:
    try:
        return read(path, format=format, skip_bad=skip)
    except UsageError as error:
        return error


# ------------------------------------------------------------------------------------------ the short form


def test_a_job_of_the_short_form_takes_its_recorded_time_on_the_devices_it_had(tmp_path: Path) -> None:
    path = written(tmp_path, "t.csv", HEADER + "a,vc,5,1000,4\nb,vc,7,300,16\n")
    first, second = read(path).arrivals
    assert (first.name, first.time, first.requested, first.needs.tenant, first.line) == ("a", 5.0, 4, "vc", 2)
    assert first.needs.ests == 4
    for job, seconds in ((first, 1000.0), (second, 300.0)):
        assert job.work / job.speed.rate({"v100": job.requested}) == pytest.approx(seconds)


def test_a_packed_file_is_read_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress((HEADER + "a,vc,5,1000,4\n").encode()))
    assert read(path).arrivals[0].requested == 4


def test_jobs_come_in_the_order_of_their_times(tmp_path: Path) -> None:
    path = written(tmp_path, "t.csv", HEADER + "a,,50,1,1\nb,,7,1,1\n")
    assert [job.name for job in read(path).arrivals] == ["b", "a"]


def test_jobs_of_one_name_are_kept_apart(tmp_path: Path) -> None:
    path = written(tmp_path, "t.csv", HEADER + "a,,1,1,1\na,,2,1,1\na#2,,3,1,1\na,,4,1,1\n")
    assert [job.name for job in read(path).arrivals] == ["a", "a#2", "a#2#2", "a#3"]


@given(st.lists(st.text(alphabet="ab#2", max_size=4)))
def test_names_are_never_alike(names: list[str]) -> None:
    keeper = Names()
    assert len({keeper.unlike(name) for name in names}) == len(names)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("a,,-5,1000,4", "submit_s is -5"),
        ("a,,5,-1,4", "duration_s is -1"),
        ("a,,5,0,4", "duration_s is zero"),
        ("a,,5,10,0", "num_gpu is 0"),
        ("a,,5,10,1.5", "whole number"),
        ("a,,5,10,1e9", "num_gpu is at most"),
        ("a,,five,10,1", "'five'"),
        ("a,,5,nan,1", "'nan'"),
        ("a,,5,inf,1", "'inf'"),
        ("a,,5", "num_gpu is missing"),
    ],
)
def test_a_row_that_cannot_be_is_refused_with_file_line_and_cure(tmp_path: Path, row: str, said: str) -> None:
    path = written(tmp_path, "t.csv", HEADER + "ok,,1,1,1\n" + row + "\n")
    text = refused(path)
    assert said in text
    assert f"{path}, line 3" in text
    assert "--skip-bad" in text


def test_rows_that_cannot_be_are_left_out_and_counted_on_request(tmp_path: Path) -> None:
    path = written(tmp_path, "t.csv", HEADER + "a,,1,1,0\nb,,1,1,0\nc,,1,1,1\nd,,-1,1,1\n")
    workload = read(path, skip_bad=True)
    assert [job.name for job in workload.arrivals] == ["c"]
    assert sorted(count for _, count in workload.left_out) == [1, 2]


def test_a_missing_column_is_named_with_those_that_are_there(tmp_path: Path) -> None:
    path = written(tmp_path, "t.csv", "job_id,submit_s,num_gpu\na,1,1\n")
    text = refused(path, format="jobs")
    assert "no column duration_s" in text
    assert "job_id, submit_s, num_gpu" in text


@pytest.mark.parametrize("name", ["empty.csv", "empty.yaml"])
def test_a_file_without_a_line_is_told_as_empty(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("\n")
    with pytest.raises(UsageError, match="is empty"):
        read(tmp_path / name)


@pytest.mark.parametrize("text", ["", HEADER])
def test_an_empty_trace_is_refused(tmp_path: Path, text: str) -> None:
    path = written(tmp_path, "t.csv", text)
    assert "job" in refused(path, format="jobs")


def test_a_trace_of_which_nothing_is_left_says_why(tmp_path: Path) -> None:
    path = written(tmp_path, "t.csv", HEADER + "a,,1,1,0\n")
    assert "1 rows: num_gpu is at least 1" in refused(path, skip_bad=True)


def test_a_file_that_is_not_there_a_folder_and_a_strange_one_are_refused(tmp_path: Path) -> None:
    assert "cannot be read" in refused(tmp_path / "none.csv")
    assert "is a folder" in refused(tmp_path)
    assert "format is unknown" in refused(written(tmp_path, "x.txt", "hello\n"))
    cut = tmp_path / "cut.csv.gz"
    cut.write_bytes(gzip.compress((HEADER + "a,,1,1,1\n" * 1000).encode())[:60])
    assert "cannot be read" in refused(cut, format="jobs")


def test_a_format_or_option_that_is_misspelt_is_answered_with_those_that_exist(tmp_path: Path) -> None:
    path = written(tmp_path, "t.csv", HEADER + "a,,1,1,1\n")
    assert "did you mean philly" in refused(path, format="phily")
    assert "has no option profiels" in refused(path, profiels="x")
    assert "cannot be 'fast'" in refused(path, batch_seconds="fast")


def test_options_can_be_given_as_text(tmp_path: Path) -> None:
    path = written(tmp_path, "t.csv", HEADER + "a,x,1,1,4\nb,103959,2,1,4\nc,6214e9,30,1,4\n")
    workload = read(path, kind="a100", elastic="no", reduction="none", relative="t4:0.5", tenants="x,103959")
    first = workload.arrivals[0]
    assert first.needs.gang == 4
    assert first.speed.rate({"t4": 4}) == pytest.approx(first.speed.rate({"a100": 4}) / 2)
    assert [job.name for job in workload.arrivals] == ["a", "b"]
    assert [job.time for job in read(path, since=20).arrivals] == [10.0]
    assert "has no tenant y" in refused(path, tenants="y")


def test_traces_without_types_know_all_usual_ones_by_published_ratios(tmp_path: Path) -> None:
    path = written(tmp_path, "t.csv", HEADER + "a,,1,100,1\n")
    job = read(path, kind="v100").arrivals[0]
    assert job.speed.rate({"a100": 1}) > job.speed.rate({"v100": 1}) > job.speed.rate({"p100": 1}) > 0
    assert job.speed.rate({"abacus": 1}) == 0.0


# ------------------------------------------------------------------------------------------ Philly as published


def attempt(start: str | None, end: str | None, gpus: int) -> dict[str, object]:
    detail = [{"ip": "m1", "gpus": [f"gpu{i}" for i in range(gpus)]}]
    return {"start_time": start, "end_time": end, "detail": detail}


def test_philly_jobs_have_their_queueing_status_and_attempts(tmp_path: Path) -> None:
    log = [
        {
            "status": "Failed",
            "vc": "v",
            "jobid": "j1",
            "submitted_time": "2017-10-07 01:00:00",
            "attempts": [
                attempt("2017-10-07 01:00:30", "2017-10-07 01:01:30", 8),
                attempt("2017-10-07 01:02:00", "2017-10-07 01:03:00", 8),
            ],
        },
        {"status": "Killed", "vc": "v", "jobid": "j2", "submitted_time": "2017-10-07 00:59:00", "attempts": []},
        {"vc": "v", "jobid": "j3", "submitted_time": "2017-10-07 00:00:00", "attempts": [attempt("x", None, 1)]},
    ]
    path = written(tmp_path, "cluster_job_log", json.dumps(log))
    workload = read(path)
    (job,) = workload.arrivals
    assert job.past is not None
    assert (job.past.queued, job.past.seconds, job.past.attempts, job.past.failed) == (30.0, 120.0, 2, True)
    assert (job.time, job.requested, job.needs.tenant) == (0.0, 8, "v")
    assert workload.left_out[0][1] == 2


def test_a_philly_time_that_is_none_is_refused(tmp_path: Path) -> None:
    log = [{"jobid": "j", "submitted_time": "yesterday", "attempts": []}]
    text = refused(written(tmp_path, "log.json", json.dumps(log)), format="philly")
    assert "line 1" in text
    assert "2017-10-07" in text


# ------------------------------------------------------------------------------------------ Alibaba


def test_alibaba_tasks_of_a_job_are_one_job_in_whole_devices(tmp_path: Path) -> None:
    tasks = (
        "j1,ps,1.0,Terminated,100.0,400.0,600.0,29.3,,\n"
        "j1,worker,3.0,Terminated,110.0,400.0,600.0,29.3,50.0,V100\n"
        "j2,worker,1.0,Failed,150.0,250.0,600.0,29.3,25.0,MISC\n"
        "j3,worker,1.0,Running,150.0,,600.0,29.3,100.0,T4\n"
    )
    path = written(tmp_path, "pai_task_table.csv", tasks)
    written(tmp_path, "pai_job_table.csv", "j1,i,u,Terminated,90.0,400.0\nj2,i,u,Failed,150.0,250.0\n")
    first, second = read(path).arrivals
    assert (first.requested, first.needs.types, first.time) == (2, ("v100",), 0.0)
    assert first.past is not None
    assert first.past.queued == 20.0
    assert first.work / first.speed.rate({"v100": 2}) == pytest.approx(290.0)
    assert (second.requested, second.kind, second.time) == (1, "misc", 60.0)
    assert second.past is not None
    assert second.past.failed is True


def test_alibaba_pods_name_their_types_and_waited(tmp_path: Path) -> None:
    head = "name,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
    pods = "p0,1,460,V100M16|V100M32,LS,Running,10,110,15\np1,0,0,,BE,Running,10,20,10\np2,8,1000,,BE,Failed,20,90,20\n"
    path = written(tmp_path, "openb.csv", head + pods)
    workload = read(path)
    first, second = workload.arrivals
    assert first.needs.types == ("v100m16", "v100m32")
    assert first.speed.rate({"v100m32": 1}) == first.speed.rate({"v100m16": 1}) > 0
    assert first.past is not None
    assert (first.past.queued, first.past.seconds) == (5.0, 95.0)
    assert second.requested == 8
    assert workload.left_out == (("a pod without GPUs", 1),)
    assert len(read(path, shares=False).arrivals) == 1


# ------------------------------------------------------------------------------------------ Gavel


def gavel(folder: Path, lines: str) -> Path:
    rates = {
        "v100": {"('M', 1)": {"null": 10.0}, "('M', 2)": {"null": 8.0}},
        "v100_unconsolidated": {"('M', 1)": {"null": 10.0}, "('M', 2)": {"null": 4.0}},
        "k80": {"('M', 1)": {"null": 0.0}},
    }
    written(folder, "simulation_throughputs.json", json.dumps(rates))
    return written(folder, "x.trace", lines)


def test_gavel_jobs_take_turns_on_fewer_devices(tmp_path: Path) -> None:
    path = gavel(tmp_path, "M\tcmd\tdir\t-n\t1\t346\t2\t1\t-1.000000\t7\nM\tcmd\t-n\t1\t100\t3.5\t1\n")
    old, new = read(path).arrivals
    assert (new.time, new.work, new.requested) == (7.0, 346.0, 2)
    assert new.speed.rate({"v100": 2}) == pytest.approx(8.0)
    assert new.speed.rate({"v100": 2}, 2) == pytest.approx(4.0)
    assert new.speed.rate({"v100": 1}) == pytest.approx(1 / (1 / 10 + 1 / 10))
    assert new.speed.rate({"k80": 1}) == 0.0
    assert (old.time, old.work, old.requested) == (3.5, 100.0, 1)


def test_a_gavel_job_without_a_throughput_is_refused(tmp_path: Path) -> None:
    text = refused(gavel(tmp_path, "Other\tcmd\t-n\t1\t100\t3.5\t1\n"))
    assert "no throughput of 'Other'" in text
    assert "line 1" in text


# ------------------------------------------------------------------------------------------ our own


def test_our_csv_says_all_that_a_job_needs(tmp_path: Path) -> None:
    head = "name,submit,devices,steps,ests,min,max,level,types,priority,tenant,application,batch,seconds\n"
    path = written(tmp_path, "t.csv", head + "a,3,2,500,8,2,6,D2,v100|t4,5,us,bert,0.5:4,v100:0.2|t4:0.4\n")
    (job,) = read(path).arrivals
    needs = job.needs
    assert (needs.ests, needs.min_workers, needs.max_workers, needs.level) == (8, 2, 6, "D2")
    assert (needs.types, needs.priority, needs.tenant, needs.batch) == (("v100", "t4"), 5, "us", (0.5, 4.0))
    assert (job.work, job.kind, job.application) == (500.0, "v100", "bert")
    assert job.speed.rate({"v100": 1}) == pytest.approx(1 / (8 * 0.2))


def test_what_a_job_exchanges_and_loses_with_its_batch_decides_its_speed(tmp_path: Path) -> None:
    head = "name,submit,devices,steps,seconds,gradients_mb,link_gb_s,batch,batch_loss\n"
    path = written(tmp_path, "jobs.csv", head + "a,0,4,10,0.1,,,1:4,\nb,0,4,10,0.1,400,2.5,1:4,0.5\n")
    plain, slow = (job.speed for job in read(path).arrivals)
    assert isinstance(plain, EstSpeed)
    assert isinstance(slow, EstSpeed)
    assert slow.reduction == replace(REDUCTION, bytes=4e8, seconds_per_byte=4e-10)
    assert plain.reduction == REDUCTION
    assert (plain.batch_loss, slow.batch_loss) == (0.0, 0.5)
    assert plain.rate({"v100": 4}) > 2 * slow.rate({"v100": 4})
    assert "gradients_mb" in refused(written(tmp_path, "bad.csv", head + "a,0,4,10,0.1,-1,,,\n"))


def test_our_yaml_says_the_same_with_defaults(tmp_path: Path) -> None:
    text = """
name: mine
origin: me
defaults: {level: D2, tenant: us}
jobs:
  - {name: a, submit: 3, devices: 2, duration: 100, types: [v100, t4], seconds: {v100: 0.2, t4: 0.4}}
  - name: b
    submit: 1
    devices: 4
    duration: 50
    level: D1
    gang: yes
"""
    workload = read(written(tmp_path, "t.yaml", text))
    b, a = workload.arrivals
    assert (workload.name, workload.origin) == ("mine", "me")
    assert (a.needs.level, a.needs.tenant, a.needs.types, a.line) == ("D2", "us", ("v100", "t4"), 6)
    assert (b.needs.level, b.needs.gang) == ("D1", 4)
    as_json = '{"jobs": [{"name": "a", "submit": 3, "devices": 2, "duration": 100}]}'
    assert read(written(tmp_path, "t.json", as_json)).arrivals[0].requested == 2


@pytest.mark.parametrize(
    ("names", "values", "said"),
    [
        ("min,max", "4,2", "min is 4 and max 2"),
        ("max", "9", "max is 9 and ests 8"),
        ("min", "9", "limits contradict"),
        ("ests", "2", "devices is 8 and ests 2"),
        ("level", "D7", "D0, D1 or D2"),
        ("batch", "4:0.5", "smaller factor first"),
        ("batch", "4", "batch"),
        ("gang,max", "yes,4", "gang of 8"),
        ("gang", "maybe", "yes or no"),
        ("steps", "7", "both a duration and steps"),
        ("seconds", "t4:0.1", "speed on v100"),
        ("seconds", "0", "seconds is zero"),
        ("queued", "-1", "queued is -1"),
    ],
)
def test_limits_that_contradict_each_other_are_refused(tmp_path: Path, names: str, values: str, said: str) -> None:
    path = written(tmp_path, "t.csv", f"name,submit,devices,duration,{names}\na,0,8,100,{values}\n")
    text = refused(path)
    assert said in text
    assert "line 2" in text


def test_a_name_that_is_no_column_of_ours_is_refused(tmp_path: Path) -> None:
    assert "colour is no name" in refused(written(tmp_path, "t.csv", "submit,devices,duration,colour\n0,1,1,red\n"))
    text = refused(written(tmp_path, "t.yaml", "jobs:\n  - {submit: 0, devices: 1, duration: 1, colour: red}\n"))
    assert "line 2: colour" in text


def test_jobs_of_a_measured_application_go_as_fast_as_its_table_says(tmp_path: Path) -> None:
    folder = tmp_path / "a100"
    folder.mkdir()
    written(folder, "net.csv", "global_batch_size,1,2,4,8\n64,2,3.5,6,0\n128,1,1.9,3.5,\n")
    path = written(tmp_path, "t.csv", "submit,devices,duration,types,application,batch_size\n0,4,100,a100,net,64\n")
    (job,) = read(path, tables={"a100": folder}).arrivals
    assert job.speed.rate({"a100": 4}) == pytest.approx(6.0)
    assert job.speed.rate({"a100": 3}) == pytest.approx((3.5 + 6) / 2)
    assert job.work == pytest.approx(600.0)


# ------------------------------------------------------------------------------------------ whatever comes

CELLS = st.sampled_from(
    ["", "0", "1", "-1", "8", "1e9", "nan", "x", "yes", "D1", "v100", "v100:0.1", "a|b", ":", "\u00e9"]
)
HEADERS = {
    "jobs": "job_id,cluster,submit_s,duration_s,num_gpu",
    "csv": "name,submit,devices,duration,steps,ests,min,max,gang,level,types,kind,seconds,batch,queued,attempts",
    "alibaba-2020": "job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type",
    "alibaba-2023": "name,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time",
}


@pytest.mark.parametrize("format", list(HEADERS))
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.lists(CELLS, max_size=17), max_size=4), skip=st.booleans())
def test_whatever_is_in_a_table_it_is_read_or_refused_in_our_words(
    tmp_path: Path, format: str, rows: list[list[str]], skip: bool
) -> None:
    path = written(tmp_path, "t.csv", "\n".join([HEADERS[format], *(",".join(row) for row in rows)]) + "\n")
    found = outcome(path, format, skip)
    if isinstance(found, UsageError):
        assert found.why
        assert found.now
    else:
        assert all(job.work > 0 and job.time >= 0 and job.requested >= 1 for job in found.arrivals)


PLAIN = st.recursive(
    st.none() | st.integers(-5, 5) | st.sampled_from(["", "x", "None", "2017-10-07 01:00:00"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["submitted_time", "attempts", "start_time", "end_time", "detail", "gpus", "jobs", "submit"]
            ),
            inner,
            max_size=4,
        )
    ),
)


@pytest.mark.parametrize("format", ["philly", "yaml"])
@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=PLAIN | st.lists(PLAIN), skip=st.booleans())
def test_whatever_is_in_a_json_file_it_is_read_or_refused_in_our_words(
    tmp_path: Path, format: str, content: object, skip: bool
) -> None:
    path = written(tmp_path, "t.json", json.dumps(content))
    found = outcome(path, format, skip)
    assert not isinstance(found, UsageError) or (found.why and found.now)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"v100": {"x": {}}}', '{"v100": 3}', "\x00"])
def test_a_table_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    path = gavel(tmp_path, "M\tcmd\t-n\t1\t100\t3.5\t1\n")
    table = written(tmp_path, f"{abs(hash(text))}.json", text)
    refused(path, throughputs=table)
    names = "name,time,application,max_parallelism,batch_size,epochs,enable_heterogeneous_deterministic,preferred_gpu,"
    trace = written(tmp_path, "w.csv", f"{names}\na,1,bert,4,8,2,1,v100,\n")
    refused(trace, step_times=table)


# ------------------------------------------------------------------------------------------ the real ones


@real
@pytest.mark.parametrize(
    ("name", "format", "jobs"),
    [
        ("philly.csv.gz", "jobs", 82_247),
        ("itp_2021.csv.gz", "jobs", 69_351),
        ("alibaba_openb_2023_gpu.csv.gz", "alibaba-2023", 6_203),
        ("easyscale/workload_test.csv", "easyscale", 68),
        ("pollux-workloads/workload-6.csv", "pollux", 160),
    ],
)
def test_published_traces_are_read_whole_and_their_format_is_told_by_the_file(
    name: str, format: str, jobs: int
) -> None:
    path = TRACES / name
    assert guess(path) == format
    workload = read(path)
    assert len(workload.arrivals) == jobs
    assert len({job.name for job in workload.arrivals}) == jobs
    assert all(job.work > 0 and job.needs.least <= job.needs.most for job in workload.arrivals)
    assert workload.origin


@real
def test_six_rows_of_easyscales_trace_are_jobs_of_their_own_unless_asked_otherwise() -> None:
    path = TRACES / "easyscale" / "workload_test.csv"
    assert len(read(path, duplicates="last").arrivals) == 62
    jobs = {job.name: job for job in read(path).arrivals}
    assert {"electra-28-1", "electra-28-1#2", "electra-28-1#3"} <= jobs.keys()
    # the header has a comma too many, so nothing is shifted: 4 epochs, and a flag of 40 means yes
    first = jobs["bert-0"]
    assert (first.needs.ests, first.needs.level, first.kind) == (16, "D2", "v100")
    assert first.work == pytest.approx(4 * 886.41 / (8 * 16))
    assert jobs["swintransformer-60-1"].needs.ests == 32


def test_each_format_says_what_it_is() -> None:
    for how in FORMATS.values():
        assert how.what
        assert callable(how.function)
