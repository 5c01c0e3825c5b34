"""A checkpoint as a model folder of vLLM's, loaded by vLLM alone."""

import json
import os
import subprocess

import pytest
import torch
from transformers import AutoModelForCausalLM

from mixharness_trainer.checkpoint import save_checkpoint
from mixharness_trainer.lora import Lora
from mixharness_trainer.policy import Policy

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

PROMPT = list(range(10, 40))
NUM_TOKENS = 16
SCRIPT = f"""
import json, sys
from vllm import LLM, SamplingParams

if __name__ == "__main__":
    llm = LLM(sys.argv[1], dtype="float32", enforce_eager=True, kv_cache_memory_bytes=2**26)
    how = SamplingParams(temperature=0, max_tokens={NUM_TOKENS}, ignore_eos=True)
    (found,) = llm.generate([{{"prompt_token_ids": {PROMPT}}}], how)
    with open("ids.json", "w") as file:
        json.dump(list(found.outputs[0].token_ids), file)
"""


def test_vllm_loads_a_checkpoint_as_it_is(tmp_path, old_folder, server_python):
    torch.manual_seed(0)
    policy = Policy.load(old_folder, lr=0.0, device="cpu", lora=Lora(rank=4, alpha=16.0))
    for parameter in policy.trained:
        torch.nn.init.normal_(parameter, std=0.2)
    save_checkpoint(policy, tmp_path / "checkpoint")
    (tmp_path / "load.py").write_text(SCRIPT)
    here = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "TORCHDYNAMO_DISABLE": "1"}

    done = subprocess.run(
        [server_python, "load.py", "checkpoint"],
        cwd=tmp_path,
        env=os.environ | here | {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr[-3000:]
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint", dtype=torch.float32)
    expected = model.generate(
        torch.tensor([PROMPT]), max_new_tokens=NUM_TOKENS, do_sample=False, eos_token_id=None
    )
    ids = json.loads((tmp_path / "ids.json").read_text())
    assert ids == expected[0, len(PROMPT) :].tolist()
