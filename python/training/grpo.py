"""Group relative policy optimization: advantages, and the loss of a batch of responses."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

import torch
from torch.nn.functional import log_softmax

from rollout import Response
from task import PAD, Task


def advantages(rewards: Sequence[float]) -> list[float]:
    """Of the responses to one prompt: how much better than their mean each is, in deviations."""
    mean = sum(rewards) / len(rewards)
    deviation = sqrt(sum((reward - mean) ** 2 for reward in rewards) / len(rewards))
    if deviation == 0:
        return [0.0] * len(rewards)
    return [(reward - mean) / deviation for reward in rewards]


@dataclass(frozen=True)
class Batch:
    """Responses in a row each, as long as the longest may be."""

    tokens: torch.Tensor  # with the prompts, without the last token: the model's input
    targets: torch.Tensor  # of the response's places alone
    rollout_logprobs: torch.Tensor
    advantages: torch.Tensor
    mask: torch.Tensor  # the places that a response has


def make_batch(task: Task, groups: Sequence[tuple[int, Sequence[Response]]]) -> Batch:
    """Of groups: the index of each prompt with the responses to it."""
    prompts, responses, advantage, mask, logprobs = [], [], [], [], []
    width = task.response_tokens
    for prompt, group in groups:
        rewards = [task.reward(prompt, response.tokens) for response in group]
        advantage += advantages(rewards)
        for response in group:
            missing = width - len(response.tokens)
            prompts.append(task.prompt(prompt))
            responses.append(response.tokens + (PAD,) * missing)
            logprobs.append(response.logprobs + (0.0,) * missing)
            mask.append((1.0,) * len(response.tokens) + (0.0,) * missing)
    targets = torch.tensor(responses)
    return Batch(
        tokens=torch.cat((torch.tensor(prompts), targets[:, :-1]), 1),
        targets=targets,
        rollout_logprobs=torch.tensor(logprobs),
        advantages=torch.tensor(advantage, dtype=torch.float32).unsqueeze(1),
        mask=torch.tensor(mask),
    )


def response_logprobs(logits: torch.Tensor, batch: Batch) -> torch.Tensor:
    """What the training policy gives to the tokens that the rollout policy drew."""
    width = batch.targets.shape[1]
    return (
        log_softmax(logits[:, -width:].float(), -1)
        .gather(2, batch.targets.unsqueeze(2))
        .squeeze(2)
    )


def loss_and_ratio(
    logprobs: torch.Tensor, batch: Batch, clip: tuple[float, float]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The clipped loss, summed over tokens, and which ratios were clipped: those of training to
    rollout policy."""
    ratio = torch.exp(logprobs - batch.rollout_logprobs)
    clipped = ratio.clamp(1 - clip[0], 1 + clip[1])
    gain = torch.minimum(ratio * batch.advantages, clipped * batch.advantages)
    outside = (ratio != clipped) & (batch.mask > 0)
    return -(gain * batch.mask).sum(), outside


@torch.no_grad()
def kl_sum(logprobs: torch.Tensor, batch: Batch) -> float:
    """The estimate of the divergence between rollout and training policy, summed over tokens:
    r − 1 − ln r, of the ratio r of their probabilities."""
    difference = (logprobs - batch.rollout_logprobs).double()
    estimate = torch.exp(difference) - 1 - difference
    return float((estimate * batch.mask).sum())
