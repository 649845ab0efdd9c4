#!/usr/bin/env python3
"""How long one rank takes to apply a refit, against the paper's scratch path in torch operations
(python/tests/scratch_reference.py): vLLM's Qwen3 with real dimensions and few layers, from the
bytes of payloads to the parameters. All results are compared with a dense load, bit for bit.

    build/venv/bin/python tools/application_time.py [--ranks 4] [--rate 0.01] [--threads 1]
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "python" / "tests"))

HIDDEN, INNER, HEADS, KV_HEADS, HEAD = 2048, 6144, 16, 8, 128


def names(layers, vocabulary):
    """Canonical names and shapes."""
    of_layer = {
        "self_attn.q_proj": (HEADS * HEAD, HIDDEN),
        "self_attn.k_proj": (KV_HEADS * HEAD, HIDDEN),
        "self_attn.v_proj": (KV_HEADS * HEAD, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HEADS * HEAD),
        "self_attn.q_norm": (HEAD,),
        "self_attn.k_norm": (HEAD,),
        "input_layernorm": (HIDDEN,),
        "post_attention_layernorm": (HIDDEN,),
        "mlp.gate_proj": (INNER, HIDDEN),
        "mlp.up_proj": (INNER, HIDDEN),
        "mlp.down_proj": (HIDDEN, INNER),
    }
    yield "model.embed_tokens.weight", (vocabulary, HIDDEN)
    yield "model.norm.weight", (HIDDEN,)
    for layer in range(layers):
        for name, shape in of_layer.items():
            yield f"model.layers.{layer}.{name}.weight", shape


def moved(tensors, rate, generator):
    """The same with so many elements changed by one part in a hundred, up or down (paper §8.1)."""
    import torch

    result = {}
    for name, old in tensors.items():
        new = old.clone()
        flat = new.view(-1)
        count = round(rate * flat.numel())
        which = torch.randint(0, flat.numel(), (count,), generator=generator).unique()
        signs = torch.randint(0, 2, which.shape, generator=generator) * 2 - 1
        flat[which] = (flat[which].float() * (1 + 0.01 * signs)).to(flat.dtype)
        result[name] = new
    return result


class Peak:
    """How far resident memory rises above what it was, and how long that took."""

    def __enter__(self):
        Path("/proc/self/clear_refs").write_text("5")
        self._before = self._read("VmRSS")
        self._wall, self._processor = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_):
        self.wall = time.perf_counter() - self._wall
        self.processor = time.process_time() - self._processor
        self.bytes = max(0, self._read("VmHWM") - self._before)

    @staticmethod
    def _read(key):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(key + ":"):
                return int(line.split()[1]) * 1024
        raise KeyError(key)


class Ours:
    """A model kept by a ModelReceiver."""

    def __init__(self, ranks, rank, tensors, state, never_loaded, threads):
        from dcr.torch import ModelReceiver

        self._owner = state.owner
        self.model = ranks.build(rank)
        self.model.load_weights(iter(tensors.items()))
        self._receiver = ModelReceiver(
            self.model, tensors, owners=state.owner.boxes, never_loaded=never_loaded,
            threads=threads,
        )
        self._receiver.prewarm()

    def begin(self, attempt, prepared):
        self._receiver.begin(
            run=self._owner.run, attempt=attempt, base_version=prepared.base_version,
            target_version=prepared.target_version,
        )

    def decode(self, prepared):
        for payload in prepared.payloads:
            assert self._receiver.ingest(payload) == "queued"
        self._receiver.end_of_owner(0, len(prepared.payloads))

    def apply(self, _):
        self._receiver.apply()
        self._receiver.finish()


class Scratch:
    """The same by the paper's path."""

    def __init__(self, ranks, rank, tensors, fold):
        from scratch_reference import ScratchReceiver

        self.model = ranks.build(rank)
        self.model.load_weights(iter(tensors.items()))
        self._receiver = ScratchReceiver(self.model, tensors, self.model.load_weights, fold=fold)

    def begin(self, attempt, payloads):
        pass

    def decode(self, payloads):
        return [item for payload in payloads for item in self._receiver.decode(payload)]

    def apply(self, items):
        self._receiver.apply(items)


def make_payloads(tensors, rate):
    """There and back: of ours with the attempt's number, and of the reference."""
    import torch
    from refits import StateOwner
    from scratch_reference import payloads

    state = StateOwner(tensors)
    new = moved(tensors, rate, torch.Generator().manual_seed(2))
    ours = []
    for target in (new, tensors):
        state.set(target)
        prepared = state.owner.prepare()
        ours.append((state.owner.attempt, prepared))
        state.owner.commit()
    return state, new, ours, [(0, payloads(tensors, new)), (0, payloads(new, tensors))]


def measure(side, attempt, sent):
    """One refit: decoding, application."""
    side.begin(attempt, sent)
    with Peak() as decode:
        decoded = side.decode(sent)
    with Peak() as apply:
        side.apply(decoded)
    return decode, apply


def both_wall(decode, apply):
    return decode.wall + apply.wall


def both_processor(decode, apply):
    return decode.processor + apply.processor


def apply_wall(_, apply):
    return apply.wall


def report(label, rounds, ours):
    """Medians, and medians of the ratio to ours round by round."""
    decode = statistics.median(one.wall for one, _ in rounds)
    apply = statistics.median(one.wall for _, one in rounds)
    memory = max(a.bytes + b.bytes for a, b in rounds)
    line = f"  {label:9} decode {1e3 * decode:7.1f} ms, apply {1e3 * apply:7.1f} ms, "
    line += f"memory {memory / 1e6:6.0f} MB"
    if rounds is not ours:
        ratios = [
            statistics.median(
                seconds(*one) / seconds(*other) for one, other in zip(rounds, ours, strict=True)
            )
            for seconds in (both_wall, both_processor, apply_wall)
        ]
        line += "; ours is {:.1f}x as fast ({:.1f}x by processor time), {:.1f}x in applying".format(
            *ratios
        )
    print(line, flush=True)


def compare(sides, sent, expected, rounds):
    """Rounds of all sides in turns, there and back; the first two are compared with dense loads."""
    from torch_loaders import all_bytes

    measured = {label: [] for label in sides}
    for step in range(2 * rounds):
        for label, side in sides.items():
            measured[label].append(measure(side, *sent[label][step % 2]))
            if step < 2:
                assert all_bytes(side.model) == expected[step], label
    for label, found in measured.items():
        report(label, found, measured["ours"])


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rank", type=int, default=1)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--vocabulary", type=int, default=151936)
    parser.add_argument("--rate", type=float, default=0.01)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, os.cpu_count()])
    return parser.parse_args()


def main():
    arguments = parse_arguments()

    import torch
    from scratch_reference import FOLDS
    from torch_loaders import all_bytes
    from transformers import Qwen3Config
    from vllm_ranks import NEVER_LOADED, Ranks, register, write_config

    config = Qwen3Config(
        hidden_size=HIDDEN, num_hidden_layers=arguments.layers, num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS, head_dim=HEAD, intermediate_size=INNER,
        vocab_size=arguments.vocabulary, tie_word_embeddings=True,
    )
    register("Qwen3ForCausalLM", "qwen3")
    generator = torch.Generator().manual_seed(1)
    tensors = {
        name: torch.empty(shape, dtype=torch.bfloat16).normal_(0, 0.02, generator=generator)
        for name, shape in names(arguments.layers, arguments.vocabulary)
    }
    state, new, ours, reference = make_payloads(tensors, arguments.rate)
    print(
        f"{sum(one.nbytes for one in tensors.values()) / 1e6:.0f} MB, the largest tensor "
        f"{max(one.nbytes for one in tensors.values()) / 1e6:.0f} MB; rank {arguments.rank} of "
        f"{arguments.ranks}; payloads {sum(map(len, ours[0][1].payloads)) / 1e6:.1f} MB, the "
        f"reference's {sum(one.frame.numel() for one in reference[0][1]) / 1e6:.1f} MB"
    )
    with tempfile.TemporaryDirectory() as directory:
        write_config(Path(directory), config, "Qwen3ForCausalLM")
        ranks = Ranks(Path(directory), arguments.ranks)
        with ranks.turn(arguments.rank):
            dense = ranks.build(arguments.rank)
            expected = []
            for target in (new, tensors):
                dense.load_weights(iter(target.items()))
                expected.append(all_bytes(dense))
            del dense, new
            for threads in arguments.threads:
                torch.set_num_threads(threads)
                print(f"{threads} threads:")
                sides = {"ours": Ours(ranks, arguments.rank, tensors, state, NEVER_LOADED, threads)}
                for fold in FOLDS:
                    sides[fold] = Scratch(ranks, arguments.rank, tensors, fold)
                sent = {label: ours if label == "ours" else reference for label in sides}
                compare(sides, sent, expected, arguments.rounds)


if __name__ == "__main__":
    main()
