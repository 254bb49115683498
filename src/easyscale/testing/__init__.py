"""Public fakes: time that only moves when told, workers that are no processes, and a fleet of masters that are none.

They stand in for the real ones behind the same ports, so that code which starts, watches and moves workers can be
tested in microseconds, with every death at the moment of choice.
"""

from easyscale.testing.fleet import FakeFleet, FakeRun, fake_fingerprint
from easyscale.testing.workers import FakeLauncher, FakeProcess, VirtualClock

__all__ = ["FakeFleet", "FakeLauncher", "FakeProcess", "FakeRun", "VirtualClock", "fake_fingerprint"]
