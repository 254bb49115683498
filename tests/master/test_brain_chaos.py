"""Random kills, freezes, broken connections, wishes and slow starts: the rules hold, and the job goes on.

The simulation itself checks each order: no dead member, all ESTs covered in order, nobody living loses an EST in a
recovery, epochs grow, numbers are used once.
"""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.master.simulation import Simulation

from easyscale.master.limits import Limits


class Chaos(RuleBasedStateMachine):
    job: Simulation

    @initialize(
        ests=st.integers(1, 7), workers=st.integers(1, 4), restarts=st.integers(0, 3), schedule=st.booleans(),
        start=st.sampled_from((0.5, 3.0)), named=st.booleans(),
    )  # fmt: skip
    def begin(self, ests: int, workers: int, restarts: int, start: float, schedule: bool, named: bool) -> None:
        count = min(ests, workers)
        schedule = schedule and not named
        self.job = Simulation(
            ests, count, limits=Limits(max_restarts=restarts, start=10.0, join=20.0, stop=30.0), start=start,
            schedule=f"0:{count},60:1,120:{ests}" if schedule else None,
            slots="abcdefg"[:count] if named else None,
        )  # fmt: skip
        self.ests = ests

    def living(self) -> list[int]:
        return [worker.number for worker in self.job.workers.values() if worker.alive]

    def choose(self, data: st.DataObject) -> int | None:
        living = self.living()
        return data.draw(st.sampled_from(living)) if living else None

    @rule(seconds=st.floats(0.001, 4.0))
    def time_passes(self, seconds: float) -> None:
        self.job.run(seconds)

    @rule(data=st.data(), code=st.sampled_from((-9, -11, 1, 7)))
    def a_worker_dies(self, data: st.DataObject, code: int) -> None:
        number = self.choose(data)
        if number is not None:
            self.job.kill(number, code)

    @rule(data=st.data())
    def a_worker_freezes(self, data: st.DataObject) -> None:
        number = self.choose(data)
        if number is not None:
            self.job.freeze(number)

    @rule(data=st.data())
    def a_worker_thaws(self, data: st.DataObject) -> None:
        number = self.choose(data)
        if number is not None:
            self.job.thaw(number)

    @rule(data=st.data())
    def a_connection_breaks(self, data: st.DataObject) -> None:
        number = self.choose(data)
        if number is not None and self.job.workers[number].spoke:
            self.job.workers[number].mute = True

    @rule(data=st.data())
    def a_connection_is_back(self, data: st.DataObject) -> None:
        number = self.choose(data)
        if number is not None and self.job.workers[number].mute:
            self.job.reconnect(number)

    @rule(workers=st.integers(1, 7))
    def more_or_fewer_are_wished(self, workers: int) -> None:
        self.job.scale(workers)

    @rule(slots=st.lists(st.sampled_from("abcdefg"), min_size=1, max_size=7, unique=True))
    def devices_are_named(self, slots: list[str]) -> None:
        self.job.place("".join(slots))

    @rule(data=st.data())
    def one_is_to_leave(self, data: st.DataObject) -> None:
        number = self.choose(data)
        if number is not None:
            if data.draw(st.booleans()):
                self.job.scale(leave=number)
            elif self.job.workers[number].ready:
                self.job.leave(number)

    @rule()
    def they_lose_each_other(self) -> None:
        self.job.lose_each_other()

    @rule(data=st.data(), oom=st.booleans())
    def one_fails(self, data: st.DataObject, oom: bool) -> None:
        number = self.choose(data)
        if number is not None and self.job.workers[number].spoke:
            self.job.fail(number, oom=oom)

    @rule()
    @precondition(lambda self: self.job.clock.now > 20.0)
    def it_is_stopped(self) -> None:
        self.job.stop()

    @invariant()
    def nobody_sits_on_a_device_that_another_has(self) -> None:
        if hasattr(self, "job"):
            seats = [slot for slot in self.job.where() if slot != "?"]
            living = [w.slot for w in self.job.workers.values() if w.alive and w.slot is not None]
            assert len(seats) == len(set(seats))
            assert len(living) == len(set(living))

    @invariant()
    def nobody_lives_after_the_end(self) -> None:
        if hasattr(self, "job") and self.job.end is not None:
            assert not self.living()

    def teardown(self) -> None:
        """Left alone, the job ends or goes on: it never just waits."""
        if not hasattr(self, "job"):
            return
        job = self.job
        for worker in list(job.workers.values()):
            if worker.alive:
                job.thaw(worker.number)
                if worker.mute:
                    job.reconnect(worker.number)
        job.run(200.0)
        if job.end is None:
            before = job.step
            job.run(5.0)
            assert job.step > before, job.story()


Chaos.TestCase.settings = settings(
    max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestChaos = Chaos.TestCase
