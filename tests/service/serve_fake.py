"""Serve the API and the dashboard with a fake desk: `python tests/service/serve_fake.py --port 8800`.

Prints a token for each user. Running jobs make a step each `--tick` seconds.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from pathlib import Path

import uvicorn

sys.path.insert(0, str(Path(__file__).parent.parent))

from easyscale.service.http.app import make_app
from easyscale.service.http.settings import PAGE, Settings
from service.fake_people import FakePeople
from service.fakes import FakeDesk, busy_desk


def go_on(desk: FakeDesk, seconds: float) -> None:
    while True:
        time.sleep(seconds)
        desk.tick()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8800)
    parser.add_argument("--jobs", type=int, default=0, help="so many more in the queue")
    parser.add_argument("--tick", type=float, default=1.0, help="0: nothing moves")
    parser.add_argument("--page", type=Path, default=PAGE, help="the dashboard's folder")
    given = parser.parse_args()
    desk, people = busy_desk(given.jobs), FakePeople()
    for user in people.users():
        token = people.add_token(user.name, "fake", None).token
        print(f"{user.name} ({user.role} of {user.team}): {token}", flush=True)
    if given.tick > 0:
        threading.Thread(target=go_on, args=(desk, given.tick), daemon=True).start()
    app = make_app(desk, people, Settings(port=given.port, page=given.page))
    uvicorn.run(app, host="127.0.0.1", port=given.port, log_level="warning", timeout_graceful_shutdown=1)


if __name__ == "__main__":
    main()
