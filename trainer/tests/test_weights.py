import anyio
import pytest

from mixharness.builtin.scripted import ScriptedConfig, ScriptedEngine
from mixharness.proxy.gate import Gate
from mixharness_trainer.policy import Policy, PolicyShape, new_policy, weight_hash
from mixharness_trainer.weights import publish

SMALL = PolicyShape(layers=1, hidden=32, heads=2, kv_heads=1, intermediate=32, context=64)


class GateWatcher(ScriptedEngine):
    """Tries to pass the gate while it loads, and hashes what it was given."""

    def watch(self, gate: Gate) -> None:
        self.gate, self.was_held, self.hashes = gate, [], []

    async def load_weights(self, source, policy_version):
        with anyio.move_on_after(0.01) as scope:
            async with self.gate.pass_():
                pass
        self.was_held.append(scope.cancelled_caught)
        self.hashes.append(weight_hash(Policy.load(source, lr=0.0, device="cpu")))
        await super().load_weights(source, policy_version)


@pytest.mark.anyio
async def test_publish_loads_behind_the_closed_gate_and_keeps_one_folder(tmp_path, tokenizer):
    policy = Policy.load(
        new_policy(tmp_path / "new", tokenizer, SMALL, seed=0), lr=1e-3, device="cpu"
    )
    engine, gate = GateWatcher(ScriptedConfig(turns=("done",))), Gate()
    engine.watch(gate)

    done = [await publish(policy, engine, gate, tmp_path / "weights", version=n) for n in (1, 2)]

    assert engine.policy_version == policy.version == 2
    assert engine.was_held == [True, True]
    assert engine.hashes == [weight_hash(policy)] * 2
    assert list((tmp_path / "weights").iterdir()) == [done[1].folder]
    assert done[1].num_bytes == (done[1].folder / "model.safetensors").stat().st_size
    assert done[1].seconds >= 0.01  # the gate watcher waits that long
    async with gate.pass_():  # open again
        pass
