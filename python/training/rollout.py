"""A rollout engine: vLLM in a process of its own, which answers groups of prompts with the weights
of one version."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from settings import Settings
from task import END, VOCABULARY, Tokens, sample_seed
from weights import Weights


@dataclass(frozen=True)
class Group:
    """A prompt of a step, which is answered `samples` times."""

    step: int
    prompt: int


@dataclass(frozen=True)
class Response:
    """Tokens as they were drawn, and the logarithms of their probabilities."""

    tokens: Tokens
    logprobs: tuple[float, ...]


class Engine:
    """What the process of an engine does. """

    def __init__(
        self, settings: Settings, seed: int, serving: Path, weights: Weights, place: int
    ) -> None:
        from vllm import LLM

        self._settings = settings
        self._seed = seed
        self._weights = weights.engine(place)
        task = settings.start.task
        self._llm: Any = LLM(
            model=str(serving),
            skip_tokenizer_init=True,
            enforce_eager=True,
            enable_prefix_caching=False,
            dtype="bfloat16",
            max_model_len=task.prompt_tokens + task.response_tokens,
            max_num_seqs=settings.prompts * settings.samples,
            max_num_batched_tokens=settings.prompts * settings.samples * task.prompt_tokens,
            **self._weights.prepare(),
        )

    def adopt(self, label: str) -> str:
        """Brings the engine to the version of that label; a digest of all that it now holds."""
        self._weights.adopt(self._llm, label)
        if self._llm.get_weight_version() != label:
            raise RuntimeError(f"version {self._llm.get_weight_version()} is not {label}")
        digests: list[str] = self._llm.apply_model(storage_digest)
        return digests[0]

    def doom(self) -> None:
        """The next version is the end of it."""
        self._weights.doom()

    def generate(self, label: str, groups: Sequence[Group]) -> list[list[Response]]:
        """Answers each group with the weights of that version and no other."""
        from vllm import SamplingParams

        settings, task = self._settings, self._settings.start.task
        prompts, parameters = [], []
        for group in groups:
            for sample in range(settings.samples):
                prompts.append({"prompt_token_ids": list(task.prompt(group.prompt))})
                parameters.append(
                    SamplingParams(
                        temperature=1.0,
                        seed=sample_seed(self._seed, group.step, group.prompt, sample),
                        max_tokens=task.response_tokens,
                        stop_token_ids=[END],
                        logprobs=0,
                        detokenize=False,
                    )
                )
        outputs = self._llm.generate(prompts, parameters, use_tqdm=False)
        responses = [_response(output.outputs[0], label) for output in outputs]
        return [
            responses[at : at + settings.samples]
            for at in range(0, len(responses), settings.samples)
        ]

    def close(self) -> None:
        self._weights.close()


def _response(output: Any, label: str) -> Response:
    versions = {span.version for span in output.weight_versions}
    if versions != {label}:
        raise RuntimeError(f"a response of version {label} was made by {sorted(versions)}")
    tokens = tuple(output.token_ids)
    if not all(0 <= token < VOCABULARY for token in tokens):
        raise RuntimeError(f"tokens outside the vocabulary: {tokens}")
    logprobs = tuple(
        place[token].logprob for token, place in zip(tokens, output.logprobs, strict=True)
    )
    return Response(tokens, logprobs)


def _tensors(model: Any) -> Iterator[tuple[str, Any]]:
    return chain(
        model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)
    )


def storage_digest(model: Any) -> str:
    """Of all bytes of all storages that parameters and buffers lie in, each once."""
    import torch

    digest = hashlib.sha256()
    seen = set()
    for name, tensor in _tensors(model):
        storage = tensor.untyped_storage()
        if storage.data_ptr() in seen:
            continue
        seen.add(storage.data_ptr())
        digest.update(f"{name} {storage.nbytes()}\n".encode())
        digest.update(torch.empty(0, dtype=torch.uint8).set_(storage).numpy().data)
    return digest.hexdigest()
