"""Relays a process's connection to JAX's coordination service, so that the end of process 0 is not the end of this one.

JAX aborts a process with a stack trace at the moment that the connection to the service breaks. A relay keeps its side of
the connection open, which leaves the time to say in one line who has died.
"""

import socket
import threading
import time

RETRY_SECONDS = 0.2


class Relay:
    """Listens on a local port and forwards what comes to `target`; runs in threads until the process ends."""

    def __init__(self, target: tuple[str, int], *, timeout_s: float):
        """
        Args:
          target: host and port, which may begin to listen later.
          timeout_s: how long to try to reach it.
        """
        self._target, self._timeout_s = target, timeout_s
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            near, _ = self._server.accept()
            threading.Thread(target=self._connect, args=(near,), daemon=True).start()

    def _connect(self, near: socket.socket) -> None:
        far = connected(self._target, timeout_s=self._timeout_s)
        if far is None:
            near.close()
            return
        threading.Thread(target=_forward, args=(far, near), daemon=True).start()
        _forward(near, far)
        far.close()


def _forward(source: socket.socket, target: socket.socket) -> None:
    """Copies bytes until one side ends; the other is not told."""
    try:
        while block := source.recv(1 << 16):
            target.sendall(block)
    except OSError:
        pass


def connected(target: tuple[str, int], *, timeout_s: float) -> socket.socket | None:
    """A connection to `target`, tried until it is accepted; None if that takes too long."""
    deadline = time.monotonic() + timeout_s
    while (left := deadline - time.monotonic()) > 0:
        try:
            found = socket.create_connection(target, timeout=min(left, 5.0))
            found.settimeout(None)
            return found
        except OSError:
            time.sleep(RETRY_SECONDS)
    return None
