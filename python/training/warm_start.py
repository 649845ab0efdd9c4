"""A small model that has begun to learn the task: where reinforcement learning starts."""

import hashlib
import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from task import BEGIN, END, PAD, VOCABULARY, Task

BATCH = 256
RATE, RATE_STEPS = 1e-3, 20  # the rate, and in how many steps it is reached
CHECK_EVERY = 5  # steps


@dataclass(frozen=True)
class Model:
    """The size of a model like Qwen3."""

    hidden: int
    layers: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int


@dataclass(frozen=True)
class WarmStart:
    """What a start is made of. Supervised training ends as soon as a response that is drawn is
    right with probability `accuracy`, or after `steps_max`, which is an error."""

    task: Task
    model: Model
    seed: int
    accuracy: float
    steps_max: int


def make(start: WarmStart, cache: Path) -> Path:
    """The directory with the model, from `cache` or made anew: in `masters` in FP32, for the
    trainer, and in `serving` in BF16, for engines."""
    key = hashlib.sha256(json.dumps(asdict(start), sort_keys=True).encode()).hexdigest()[:16]
    directory = cache / key
    if (directory / "start.json").exists():
        return directory
    shutil.rmtree(directory, ignore_errors=True)
    model, steps, accuracy = _train(start)
    model.save_pretrained(directory / "masters")
    model.to(torch.bfloat16).save_pretrained(directory / "serving")
    made = {"start": asdict(start), "steps": steps, "accuracy": accuracy}
    (directory / "start.json").write_text(json.dumps(made, indent=1) + "\n")
    return directory


def _new_model(model: Model, positions: int) -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    make: Any = Qwen3ForCausalLM
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=model.hidden,
        intermediate_size=model.intermediate,
        num_hidden_layers=model.layers,
        num_attention_heads=model.heads,
        num_key_value_heads=model.kv_heads,
        head_dim=model.head_dim,
        max_position_embeddings=positions,
        tie_word_embeddings=False,
        initializer_range=model.hidden**-0.5,  # learns far sooner than with what large ones have
        pad_token_id=PAD,
        bos_token_id=BEGIN,
        eos_token_id=END,
    )
    return make(config)


def _train(start: WarmStart) -> tuple[Any, int, float]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the same bits whatever the machine's number of processors
    torch.manual_seed(start.seed)
    task = start.task
    tokens, labels = _examples(task)
    held_out = torch.randperm(task.prompts)[: min(512, task.prompts)]
    model = _new_model(start.model, positions=64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.99), weight_decay=0.0)
    rates = torch.optim.lr_scheduler.LinearLR(optimizer, 1 / RATE_STEPS, 1.0, RATE_STEPS)
    for step in range(start.steps_max):
        chosen = torch.randint(task.prompts, (BATCH,))
        loss = cross_entropy(_logits(model, tokens[chosen]), labels[chosen], ignore_index=PAD)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rates.step()
        if step % CHECK_EVERY == 0:
            accuracy = _accuracy(model, tokens[held_out], labels[held_out])
            if accuracy >= start.accuracy:
                torch.set_num_threads(threads)
                return model, step + 1, accuracy
    raise RuntimeError(f"the warm start reached {accuracy:.2f} of {start.accuracy} only")


def _examples(task: Task) -> tuple[torch.Tensor, torch.Tensor]:
    """Every prompt with its answer, and what is to be predicted at each place."""
    length = task.prompt_tokens + task.response_tokens
    tokens = torch.full((task.prompts, length), PAD)
    for index in range(task.prompts):
        whole = torch.tensor(task.prompt(index) + task.answer(index))
        tokens[index, : len(whole)] = whole
    labels = tokens[:, 1:].clone()
    labels[:, : task.prompt_tokens - 1] = PAD
    return tokens[:, :-1], labels


def _logits(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    """With the classes where cross_entropy wants them."""
    logits: torch.Tensor = model(input_ids=tokens).logits
    return logits.transpose(1, 2)


@torch.no_grad()
def _accuracy(model: Any, tokens: torch.Tensor, labels: torch.Tensor) -> float:
    """How probable it is, on average, that a response drawn at temperature 1 is right."""
    losses = cross_entropy(_logits(model, tokens), labels, ignore_index=PAD, reduction="none")
    return float(torch.exp(-losses.sum(1)).mean())
