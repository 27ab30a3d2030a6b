"""The trained weights of a reward model, as its checkpoints hold them: those that are frozen are loaded again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from rlvr.model.sharding import fill, full, leads

FILE = "model.safetensors"


class TrainedWeights:
    """Trained weights by name: the model's own, or a copy. mesh: of the processes that hold them in shards."""

    def __init__(self, named: Mapping[str, Tensor], mesh: DeviceMesh | None = None) -> None:
        self.named = named
        self.mesh = mesh

    def snapshot(self) -> TrainedWeights | None:
        """Return a copy, in the CPU's memory, with whole weights. Where they are in shards only the first gets it."""
        copied = {}
        for name, weight in self.named.items():
            whole = full(weight.detach())
            if self.mesh is None or leads():
                copied[name] = whole.to("cpu", copy=True)
        return TrainedWeights(copied) if self.mesh is None or leads() else None

    def save(self, folder: Path) -> None:
        """Write whole weights into a folder."""
        save_file({name: weight.detach().contiguous().cpu() for name, weight in self.named.items()}, folder / FILE)

    def load_weights(self, folder: Path) -> None:
        """Restore, bit for bit, what `save` wrote. Raises ValueError for a file of another model's weights."""
        held = load_file(folder / FILE)
        if held.keys() != self.named.keys():
            raise ValueError(f"{FILE} has other weights: {', '.join(sorted(held.keys() ^ self.named.keys())[:3])}")
        for name, weight in self.named.items():
            fill(weight, held[name])
