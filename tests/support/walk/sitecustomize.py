"""Records which of the project's files gunicorn's threads enter, and when.

Python imports this module at start if its folder is on PYTHONPATH. It writes WALK_FOLDER/PID.json
five times a second: {"written": time, "threads": {thread: {file: time of the last call into it}}},
in time.monotonic().
"""

import os
import sys

if any("gunicorn" in argument for argument in sys.orig_argv):
    import json
    import threading
    import time
    from pathlib import Path
    from types import FrameType
    from typing import Any

    ROOT = f"{Path(__file__).resolve().parents[3]}/"
    PROJECT = tuple(
        f"{ROOT}{name}"
        for name in ("predictor.py", "wsgi.py", "serving/", "clients/", "model_repository/")
    )
    threads: dict[str, dict[str, float]] = {}
    writers: set[int] = set()

    def note(frame: FrameType, event: str, _argument: Any) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(PROJECT):
            files = threads.setdefault(threading.current_thread().name, {})
            files[name.removeprefix(ROOT)] = time.monotonic()
            if os.getpid() not in writers:  # starts in each process after gunicorn has forked it
                writers.add(os.getpid())
                threading.Thread(target=write, daemon=True).start()

    def write() -> None:
        sys.setprofile(None)  # do not record this thread
        file = Path(os.environ["WALK_FOLDER"], f"{os.getpid()}.json")
        while True:
            document = {"written": time.monotonic(), "threads": threads}
            new = file.with_suffix(".new")
            new.write_text(json.dumps(document))
            new.replace(file)
            time.sleep(0.2)

    threading.setprofile(note)
