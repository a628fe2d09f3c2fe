"""A library that starts a thread when it is imported: a process that has done so can't be copied safely."""

import threading

threading.Thread(target=threading.Event().wait, daemon=True).start()
