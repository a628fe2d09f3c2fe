"""A library that starts a thread some time after it was imported: here, when it gets a signal."""

import signal
import threading
from typing import Any


def _start(*_: Any) -> None:
    threading.Thread(target=threading.Event().wait, daemon=True).start()


signal.signal(signal.SIGUSR1, _start)
