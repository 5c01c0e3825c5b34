import os
import subprocess
import sys

from mixharness.builtin.docker.owner import abandoned, labels, this_process


def test_this_process_is_there() -> None:
    assert not abandoned(this_process())
    assert this_process() in labels(this_process()).values()


def test_a_process_that_ended_is_gone() -> None:
    code = "from mixharness.builtin.docker.owner import this_process as p; print(p())"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert abandoned(ended.stdout.strip())


def test_a_later_process_of_the_same_number_is_another() -> None:
    pid, started, namespace = this_process().split("-")
    assert int(pid) == os.getpid()
    assert abandoned(f"{pid}-{float(started) - 60:.2f}-{namespace}")


def test_a_process_that_cannot_be_seen_from_here_is_left_alone() -> None:
    pid, started, namespace = this_process().split("-")
    assert not abandoned(f"{pid}-{float(started) - 60:.2f}-{int(namespace) + 1}")
