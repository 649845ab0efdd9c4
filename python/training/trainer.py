"""A rank of the trainer: FSDP2 over gloo, FP32 weights and arithmetic, one update each step."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from grpo import kl_sum, loss_and_ratio, make_batch, response_logprobs
from rollout import Response
from settings import RANKS, Settings
from weights import Weights


@dataclass(frozen=True)
class Update:
    """What a step of the trainer did; the same on all ranks."""

    loss: float
    kl: float  # between rollout and training policy, for each token
    clipped: float  # of all tokens, those whose ratio was clipped
    changed: Mapping[str, tuple[int, int]]  # by layer: BF16 values that changed, and all


class Rank:
    """What the process of a rank does."""

    def __init__(
        self, settings: Settings, rank: int, masters: Path, store: Path, weights: Weights
    ) -> None:
        from transformers import Qwen3ForCausalLM

        self._settings = settings
        torch.set_num_threads(1)
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # whatever the machine's name resolves to
        dist.init_process_group(
            "gloo",
            init_method=f"file://{store}",
            rank=rank,
            world_size=RANKS,
            timeout=timedelta(minutes=5),
        )
        model = Qwen3ForCausalLM.from_pretrained(masters, dtype=torch.float32)
        mesh = init_device_mesh("cpu", (RANKS,))
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        self._model: Any = model
        self._optimizer = torch.optim.AdamW(
            model.parameters(), lr=settings.rate, weight_decay=0.0
        )
        self._changes = Changes(model)
        self._weights = weights.trainer(model, rank)

    def train(self, groups: Sequence[tuple[int, Sequence[Response]]]) -> Update:
        """One update with the responses to the prompts of a step, of which each rank takes its
        share."""
        rank = dist.get_rank()
        batch = make_batch(self._settings.start.task, groups[rank::RANKS])
        tokens = sum(len(response.tokens) for _, group in groups for response in group)
        logits = self._model(input_ids=batch.tokens, use_cache=False).logits
        logprobs = response_logprobs(logits, batch)
        loss, outside = loss_and_ratio(logprobs, batch, self._settings.clip)
        self._optimizer.zero_grad()
        # Gradients are averaged over ranks, the loss is one over all tokens.
        torch.autograd.backward(loss * RANKS / tokens)
        self._optimizer.step()
        sums = _add_up(float(loss.detach()), kl_sum(logprobs, batch), float(outside.sum()))
        return Update(
            loss=sums[0] / tokens,
            kl=sums[1] / tokens,
            clipped=sums[2] / tokens,
            changed=self._changes.since_last_time(),
        )

    def publish(self, label: str) -> Mapping[str, Any]:
        """Makes the weights as they are the version of that label."""
        return self._weights.publish(label)

    def close(self) -> None:
        self._weights.close()
        dist.destroy_process_group()


def _add_up(*values: float) -> list[float]:
    """Of all ranks, in one order."""
    mine = torch.tensor(values, dtype=torch.float64)
    all_ranks = [torch.empty_like(mine) for _ in range(RANKS)]
    dist.all_gather(all_ranks, mine)
    return [sum(column) for column in zip(*(each.tolist() for each in all_ranks), strict=True)]


class Changes:
    """How many values of a model changed in BF16, in which engines have them."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._before = self._words()

    def _words(self) -> dict[str, torch.Tensor]:
        words = {}
        for name, tensor in self._model.state_dict().items():
            local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
            words[name] = local.detach().to(torch.bfloat16).view(torch.int16)
        return words

    def since_last_time(self) -> dict[str, tuple[int, int]]:
        """By layer, over all ranks: values that changed, and all values."""
        now = self._words()
        layers = list(dict.fromkeys(_layer(name) for name in now))
        counts = torch.zeros(len(layers), 2, dtype=torch.int64)
        for name, words in now.items():
            row = counts[layers.index(_layer(name))]
            row[0] += torch.count_nonzero(words != self._before[name])
            row[1] += words.numel()
        dist.all_reduce(counts)
        self._before = now
        return {
            layer: (changed, total)
            for layer, (changed, total) in zip(layers, counts.tolist(), strict=True)
        }


def _layer(name: str) -> str:
    """The layer that a parameter belongs to."""
    parts = name.split(".")
    return f"layer {parts[2]}" if parts[:2] == ["model", "layers"] else parts[-2]

