"""Run folders in other programs' formats. How a rollout looks in one is tree/'s."""

from __future__ import annotations

from pathlib import Path

from mixharness.errors import ConfigError
from mixharness.proxy.log import BODIES, read_bodies
from mixharness.proxy.transcript import read_exchanges
from mixharness.rollout.store import RunStore, write_atomically
from mixharness.runs import pruning_of
from mixharness.tree.atif import to_atif
from mixharness.tree.prune import Pruning


def export_atif(run_dir: Path, out: Path) -> int:
    """Write the finished rollouts of a run as ATIF trajectories; return how many there were.

    Args:
        run_dir: the run's folder.
        out: a `.jsonl` file gets one trajectory a line; any other path is a folder, made when it
            is not there, and gets `<rollout>.json` files.

    Raises:
        ConfigError: there is no finished rollout.
        ValueError: a recorded body is damaged.
    """
    store, pruning = RunStore(run_dir), pruning_of(run_dir)
    names = store.finished()
    if not names:
        raise ConfigError(str(run_dir), [("rollouts", "no finished rollout in this folder")])
    texts = (_trajectory(store, name, pruning) for name in names)
    if out.suffix == ".jsonl":
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(out, b"".join(text + b"\n" for text in texts))
        return len(names)
    out.mkdir(parents=True, exist_ok=True)
    for name, text in zip(names, texts, strict=True):
        write_atomically(out / f"{name}.json", text)
    return len(names)


def _trajectory(store: RunStore, name: str, pruning: Pruning) -> bytes:
    folder = store.path(name)
    # A rollout whose sandbox did not start has no bodies.
    bodies = read_bodies(folder) if (folder / BODIES).exists() else ()
    trajectory = to_atif(store.load(name), read_exchanges(bodies), pruning)
    return trajectory.model_dump_json(exclude_none=True).encode()
