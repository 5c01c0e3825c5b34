"""How far harnesses agree on where the policy should go: the cosine of their gradients.

Taking the gradient harness by harness is update.py's.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations

import torch
from torch import Tensor

CHUNK = 2**22
"""Elements of a parameter that are multiplied at a time (16 MiB a harness in float32)."""


class GradientShares:
    """One step's gradient in shares, one a harness; lives from its first backward pass to its last.

    Shares wait in the host's memory: the accelerator holds one gradient at a time, as in any step.
    """

    def __init__(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        self.parameters = list(parameters)
        self.shares: dict[str, list[Tensor]] = {}

    def take(self, harness: str) -> None:
        """Move what the parameters have accumulated into the share of a harness."""
        self.shares[harness] = [
            torch.zeros(p.shape, dtype=p.dtype) if p.grad is None else p.grad.cpu()
            for p in self.parameters
        ]
        for parameter in self.parameters:
            parameter.grad = None

    def put_back(self) -> dict[str, float]:
        """Give the parameters the sum of the shares, and return the cosine of each pair of them.

        Keys are `<harness>/<harness>`, both in alphabetical order. A share without any gradient has
        no direction, so that its pairs are left out.
        """
        labels = sorted(self.shares)
        products = torch.zeros(len(labels), len(labels), dtype=torch.float64)
        columns = zip(*(self.shares[label] for label in labels), strict=True)
        for parameter, shares in zip(self.parameters, columns, strict=True):
            placed = [share.to(parameter.device) for share in shares]
            for pieces in zip(*(share.flatten().split(CHUNK) for share in placed), strict=True):
                stacked = torch.stack(pieces).float()
                products += (stacked @ stacked.T).double().cpu()
            parameter.grad = sum(placed[1:], start=placed[0])
        norms = products.diagonal().sqrt()
        return {
            f"{labels[a]}/{labels[b]}": float(products[a, b] / (norms[a] * norms[b]))
            for a, b in combinations(range(len(labels)), 2)
            if norms[a] > 0 and norms[b] > 0
        }
