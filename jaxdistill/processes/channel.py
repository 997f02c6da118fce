"""A connection among the processes of a run, apart from JAX: they agree through it, and notice when one of them ends.

Process 0 listens at the address of the run, the others connect. Each line is a JSON object:

  {"hello": {...}}            from a process that connects
  {"welcome": {...}}          from process 0 once all are there
  {"say": X}, {"all": [...]}  one round of `exchange`: each process's X, then all of them
  {"stop": STATUS}            to process 0: this process was asked to stop, and to end with that status
  {"stop_at": N, ...}, {"known": N}   from process 0: all stop after step N; the answer
  {"end": TEXT, ...}          this process leaves; an empty text: it is done
  {"lost": TEXT, ...}         from process 0: another process has left or died
  {"refused": TEXT}           from process 0 instead of a welcome
"""

import contextlib
import json
import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, NoReturn

from jaxdistill.cli import AGAIN, BAD_INPUT, INTERRUPTED
from jaxdistill.core import InputError
from jaxdistill.processes.launch import Place
from jaxdistill.processes.relay import connected

HOW_LONG = "(JAXDISTILL_JOIN_SECONDS says how long to wait)"
GRACE_SECONDS = 5.0
"""What a process may still do after another was lost, before it is ended."""


class Peer:
    """The connection to one other process."""

    def __init__(self, connection: socket.socket):
        self.socket = connection
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _notice_lost_hosts(connection)
        self.inbox: queue.Queue[Any] = queue.Queue()
        self.known: queue.Queue[int] = queue.Queue()
        self._lines = connection.makefile("r", encoding="utf-8", newline="\n")
        self._sending = threading.Lock()

    def send(self, **message: Any) -> None:
        with contextlib.suppress(OSError), self._sending:  # its end is noticed where it is read
            self.socket.sendall(json.dumps(message).encode() + b"\n")

    def close(self) -> None:
        self._lines.close()
        self.socket.close()

    def receive(self) -> dict[str, Any] | None:
        """The next message; None where the connection has ended."""
        try:
            line = self._lines.readline()
            message = json.loads(line) if line else None
        except (OSError, ValueError):
            return None
        return message if isinstance(message, dict) else None


class Channel:
    """All processes of a run, as one of them sees them."""

    def __init__(self, place: Place, peers: dict[int, Peer], names: list[str]):
        self.place, self.peers, self.names = place, peers, names
        self._is_waiting = self._is_finishing = self._is_leaving = False
        self._lost = threading.Event()
        self._asked = 0
        """Highest exit status with which a process asks to stop; 0: none does."""
        self._stop: tuple[int, int] | None = None
        """The agreed last step, and the exit status."""
        for index, peer in peers.items():
            threading.Thread(target=self._listen, args=(index, peer), daemon=True).start()

    def exchange(self, value: Any) -> list[Any]:
        """What each process gives, in their order; waits for all as long as they live."""
        self._is_waiting = True
        if self._lost.is_set():
            time.sleep(GRACE_SECONDS)  # the listening thread ends this process
        if self.place.index == 0:
            values = [value, *(self.peers[index].inbox.get() for index in range(1, self.place.count))]
            self._is_waiting = False  # from here on the others may leave
            for peer in self.peers.values():
                peer.send(all=values)
            return values
        self.peers[0].send(say=value)
        return self.peers[0].inbox.get()

    def stop_status(self, asked: int, step: int, stop_at: int) -> int:
        """Exit status with which this process stops after `step`, or 0; see `processes.stop_status`."""
        if asked > self._asked:
            self._asked = asked
            if self.place.index:
                self.peers[0].send(stop=asked)
        if self.place.index == 0 and self._asked and self._stop is None:
            self._announce(stop_at, self._asked)
        return self._stop[1] if self._stop and step >= self._stop[0] else 0

    def _announce(self, step: int, status: int) -> None:
        """Fixes the last step in every process; their listening threads answer even where their loops wait."""
        for peer in self.peers.values():
            peer.send(stop_at=step, status=status)
        for peer in self.peers.values():
            peer.known.get()
        self._stop = step, status

    def leave(self, reason: str = "", *, status: int = BAD_INPUT) -> None:
        """Tells the others, once, that this process ends, with which status; from here on it outlives them."""
        if self._is_leaving:
            return
        self._is_leaving = True
        for peer in self.peers.values():
            peer.send(end=reason, status=status)

    @contextlib.contextmanager
    def finishing(self) -> Iterator[None]:
        """Inside, the loss of another process does not end this one: what it still does needs none of them."""
        self._is_finishing = True
        try:
            yield
        finally:
            self._is_finishing = False

    def await_loss(self, seconds: float) -> None:
        """Gives the end of another process, of which an error is a consequence, the time to be noticed."""
        if self._lost.wait(seconds):
            time.sleep(2 * GRACE_SECONDS)  # the listening thread ends this process

    def _listen(self, index: int, peer: Peer) -> None:
        while (message := peer.receive()) is not None:
            if "say" in message:
                peer.inbox.put(message["say"])
            elif "all" in message:
                self._is_waiting = False  # before process 0 may leave, which this thread reads next
                peer.inbox.put(message["all"])
            elif "stop" in message:
                self._asked = max(self._asked, message["stop"])
            elif "stop_at" in message:
                self._stop = message["stop_at"], message["status"]
                peer.send(known=message["stop_at"])
            elif "known" in message:
                peer.known.put(message["known"])
            elif "lost" in message:
                self._lose(message["lost"], message["status"])
            elif message.get("end"):
                self._lose(f"{self.names[index]}: {message['end']}", message["status"])
            elif "end" in message and not self._is_waiting:
                peer.close()
                return
        died = (
            f"{self.names[index]} died or lost its connection; give the same command again in all processes to go on."
        )
        self._lose(died, AGAIN)
        peer.close()  # this process is leaving too

    def _lose(self, text: str, status: int) -> None:
        """Ends this process with one line, unless it ends by itself meanwhile."""
        if self._lost.is_set() or self._is_leaving:
            return
        self._lost.set()
        for peer in self.peers.values() if self.place.index == 0 else ():
            peer.send(lost=text, status=status)
        deadline = time.monotonic() + GRACE_SECONDS
        while self._is_finishing or (not self._is_waiting and time.monotonic() < deadline):
            if self._is_leaving:
                return
            if self._is_finishing:
                deadline = time.monotonic() + GRACE_SECONDS
            time.sleep(0.05)
        end_process(f"{'interrupted' if status in (AGAIN, INTERRUPTED) else 'error'}: {text}", status)


def end_process(line: str, status: int) -> NoReturn:
    """Ends the process from any thread: another one may hang in a collective, and JAX's own end waits for the dead."""
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    os.write(2, f"\n{line.rstrip()}\n".encode())
    os._exit(status)


def opened(place: Place, *, timeout_s: float) -> tuple[Channel, int]:
    """The channel, and the port of process 0 for JAX; raises `InputError` if a process does not come in time."""
    return (_led if place.index == 0 else _followed)(place, timeout_s)


def _led(place: Place, timeout_s: float) -> tuple[Channel, int]:
    deadline = time.monotonic() + timeout_s
    peers: dict[int, Peer] = {}
    names = {0: _own_name(place)}
    try:
        server = _listening(place.port)
    except OSError as error:
        raise InputError(
            f"process 0 cannot listen at port {place.port} ({error.strerror}): another run may use it; choose another port "
            "in JAX_COORDINATOR_ADDRESS or JAX_COORDINATOR_PORT."
        ) from error
    with server:
        while len(names) < place.count:
            absent = ", ".join(str(index) for index in range(place.count) if index not in names)
            server.settimeout(max(deadline - time.monotonic(), 0.01))
            try:
                peer = Peer(server.accept()[0])
            except TimeoutError:
                _refuse_all(
                    peers, f"process {absent} of {place.count} did not come within {timeout_s:.0f} s {HOW_LONG}."
                )
            peer.socket.settimeout(5.0)
            hello = (peer.receive() or {}).get("hello")
            peer.socket.settimeout(None)
            if not isinstance(hello, dict):  # not one of ours
                peer.close()
                continue
            index = hello["index"]
            if hello["count"] != place.count or index in names:
                peers[-1] = peer
                what = f"JAX_NUM_PROCESSES is {place.count} in process 0 and {hello['count']} in process {index}"
                twice = f"two processes have JAX_PROCESS_ID={index}"
                _refuse_all(
                    peers, f"{what if hello['count'] != place.count else twice}; give each its own number from 0."
                )
            peers[index], names[index] = peer, hello["name"]
    port = _free_port()
    everyone = [names[index] for index in range(place.count)]
    for peer in peers.values():
        peer.send(welcome={"names": everyone, "port": port})
    return Channel(place, peers, everyone), port


def _followed(place: Place, timeout_s: float) -> tuple[Channel, int]:
    found = connected((place.host, place.port), timeout_s=timeout_s)
    late = (
        f"process 0 of {place.count} did not answer at {place.host}:{place.port} within {timeout_s:.0f} s {HOW_LONG}."
    )
    if found is None:
        raise InputError(late)
    peer = Peer(found)
    peer.send(hello={"index": place.index, "count": place.count, "name": _own_name(place)})
    answer = peer.receive() or {}
    if "welcome" not in answer:
        peer.close()
        raise InputError(answer.get("refused", late))
    return Channel(place, {0: peer}, answer["welcome"]["names"]), answer["welcome"]["port"]


def _refuse_all(peers: dict[int, Peer], text: str) -> NoReturn:
    for peer in peers.values():
        peer.send(refused=text)
        peer.close()
    raise InputError(text)


def _own_name(place: Place) -> str:
    return f"process {place.index} (pid {os.getpid()} on {socket.gethostname()})"


def _listening(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("", 0))
        return free.getsockname()[1]


def _notice_lost_hosts(connection: socket.socket) -> None:
    """Ends a connection whose other host does not answer for 20 s, whether it is idle or has data on the way."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    of_idle = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 2))
    for option, value in (*of_idle, ("TCP_USER_TIMEOUT", 20_000)):  # the latter in milliseconds, Linux alone
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
