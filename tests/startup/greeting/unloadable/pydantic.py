"""Takes the place of a library that the server needs, so that only the first answers are ever there.

The server is loaded in a thread while requests are answered: there the import waits until the process ends. A client
on a busy machine has all the time it needs then. Without first answers the import is in the main thread, and fails.
"""

import threading

if threading.current_thread() is not threading.main_thread():
    threading.Event().wait()
raise ImportError("this server is not to be loaded")
