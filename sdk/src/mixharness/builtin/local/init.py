"""First process of one sandbox: starts its commands, adopts and kills what they leave.

A file of the standard library only, run as `python -I -S -E init.py CONFIG`, so that it starts
fast. It decides nothing: limits and paths come in CONFIG (JSON). When the runner's end of the
socket closes, for whatever reason, it kills everything below itself, removes the folder and ends.
Of a sandbox with namespaces of its own it is process 1, and hands its root folder and listening
sockets out with the first message, so that nobody else has to run in there.

Messages are `verb ident [argument]`; each gets one reply `ident value`:

    run ident            with descriptors (request, stdin, stdout, stderr); replies the exit code
    kill ident target    kill the tree of command `target`
    killall ident        kill every process of the sandbox
    count ident          how many processes are alive
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import signal
import socket
import sys
import time
from typing import Any

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 36, 38
KILL_LIMIT_S = 5.0

libc = ctypes.CDLL(None, use_errno=True)


def descendants(of: int) -> list[int]:
    """Return the live (not zombie) processes below `of`."""
    children: dict[int, list[int]] = {}
    zombies: set[int] = set()
    for name in os.listdir("/proc"):  # noqa: PTH208 - pathlib would double the start-up time
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                # The command name may hold blanks and brackets; the fields follow the last one.
                state, parent = file.read().rsplit(b")", 1)[1].split()[:2]
        except OSError:
            continue
        children.setdefault(int(parent), []).append(int(name))
        if state in (b"Z", b"X"):
            zombies.add(int(name))
    found: list[int] = []
    todo = [of]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return [pid for pid in found if pid not in zombies]


def kill(pids: list[int]) -> None:
    """Send SIGKILL, ignoring those that are gone."""
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


class Init:
    """One sandbox's process tree and the socket to its runner."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.folder: str = config["folder"]
        self.uid: int | None = config["uid"]
        self.rlimits: list[tuple[int, int]] = config["rlimits"]
        self.ports: list[int] = config["ports"]
        for fd in config["private"]:  # inherited by us, not to be by commands
            os.set_inheritable(fd, False)
        self.sock = socket.socket(fileno=config["fd"])
        self.commands: dict[int, str] = {}

    def serve(self) -> None:
        """Answer the runner until it closes the socket or dies."""
        wake, wake_end = os.pipe()
        os.set_blocking(wake_end, False)
        signal.set_wakeup_fd(wake_end)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, lambda *_: None)
        self.hand_out()
        while True:
            readable, _, _ = select.select([self.sock.fileno(), wake], [], [])
            if wake in readable and signal.SIGTERM in os.read(wake, 4096):
                return
            if self.sock.fileno() in readable and not self.answer():
                return
            self.collect()

    def hand_out(self) -> None:
        """Say that we listen; process 1 adds what only a process in its namespaces can open."""
        if os.getpid() != 1:
            self.sock.send(b"ready 0")
            return
        root = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
        servers = [socket.create_server(("127.0.0.1", port), backlog=128) for port in self.ports]
        socket.send_fds(self.sock, [b"ready 0"], [root, *(s.fileno() for s in servers)])
        os.close(root)

    def answer(self) -> bool:
        """Handle one message; return False when the runner is gone."""
        data, fds, _, _ = socket.recv_fds(self.sock, 4096, 4)
        if not data:
            return False
        verb, ident, *rest = data.decode().split()
        if verb == "run":
            self.commands[self.spawn(fds)] = ident
            for fd in fds:
                os.close(fd)
            return True
        if verb == "kill":
            self.kill_command(rest[0])
        elif verb == "killall":
            self.kill_all()
        self.reply(ident, len(descendants(os.getpid())))
        return True

    def reply(self, ident: str, value: int) -> None:
        """Send one reply; a runner that is gone is noticed by the next read."""
        try:
            self.sock.send(f"{ident} {value}".encode())
        except OSError:
            return

    def collect(self) -> None:
        """Reap what has ended, adopted daemons too, and report finished commands."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            ident = self.commands.pop(pid, None)
            if ident is not None:
                self.reply(ident, os.waitstatus_to_exitcode(status))

    def kill_command(self, target: str) -> None:
        """Kill one command, its descendants and its process group."""
        for pid in [pid for pid, ident in self.commands.items() if ident == target]:
            kill([pid, *descendants(pid)])
            try:
                os.killpg(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue

    def kill_all(self) -> None:
        """Kill everything below; orphans become our children, so none escapes the next pass."""
        deadline = time.monotonic() + KILL_LIMIT_S
        while time.monotonic() < deadline:
            self.collect()
            alive = descendants(os.getpid())
            if not alive:
                return
            kill(alive)
            self.strike()
            time.sleep(0.002)

    def strike(self) -> None:
        """Kill all at one moment, where a user or namespace of its own allows it.

        One by one, a program that forks all the time would outrun us.
        """
        if os.getpid() == 1:
            kill([-1])
        elif self.uid is not None:
            pid = os.fork()
            if pid == 0:
                os.setresuid(self.uid, self.uid, self.uid)
                kill([-1])
                os._exit(0)
            os.waitpid(pid, 0)

    def spawn(self, fds: list[int]) -> int:
        """Fork and become the command described by the first descriptor."""
        pid = os.fork()
        if pid:
            return pid
        code = 126
        try:
            self.become(json.loads(os.pread(fds[0], os.fstat(fds[0]).st_size, 0)), fds)
        except FileNotFoundError as exc:
            code = 127
            os.write(2, f"{exc.filename}: command or folder not found\n".encode())
        except BaseException as exc:
            os.write(2, f"{type(exc).__name__}: {exc}\n".encode())
        finally:
            os._exit(code)

    def become(self, request: dict[str, Any], fds: list[int]) -> None:
        """Drop all rights, set the limits and replace this process by the command."""
        os.setsid()
        for target, fd in enumerate(fds[1:]):
            os.dup2(fd, target)
        for fd in fds:
            os.close(fd)
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)  # Python ignores the first two
        os.umask(0o022)
        for kind, value in self.rlimits:
            resource.setrlimit(kind, (value, value))
        if self.uid is not None:
            os.setgroups([])
            os.setresgid(self.uid, self.uid, self.uid)
            os.setresuid(self.uid, self.uid, self.uid)
        libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # after setuid, which clears it
        os.chdir(request["cwd"])
        os.execvpe(request["argv"][0], request["argv"], request["env"])

    def end(self) -> None:
        """Kill everything and remove the folder, where there is one."""
        self.kill_all()
        if self.folder:
            remove(self.folder)


def remove(folder: str) -> None:
    """Remove a folder, also where a program took its own rights away, and at any depth."""
    # Python's own walk and rmtree are recursive: a deep enough nest of folders ends them.
    for argv in (["chmod", "-R", "u+rwX", folder], ["rm", "-rf", folder]):
        nothing = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2)]
        os.waitpid(os.posix_spawnp(argv[0], argv, os.environ, file_actions=nothing), 0)


def main() -> None:
    """Serve one sandbox."""
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    init = Init(json.loads(sys.argv[1]))
    try:
        init.serve()
    finally:
        init.end()


if __name__ == "__main__":
    main()
