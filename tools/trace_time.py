#!/usr/bin/env python3
"""How long tracing takes at a real model's size: all names of Qwen3-30B-A3B, one rank of vLLM's
model on the meta device. Prints the time of each check.

    build/venv/bin/python tools/trace_time.py [--ranks 4] [--rank 1] [--expert-parallel]
"""

import argparse
import resource
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "python" / "tests"))

LAYERS, EXPERTS, HIDDEN, INNER, VOCABULARY = 48, 128, 2048, 768, 151936


def names():
    """Canonical names and shapes."""
    of_layer = {
        "self_attn.q_proj": (4096, HIDDEN),
        "self_attn.k_proj": (512, HIDDEN),
        "self_attn.v_proj": (512, HIDDEN),
        "self_attn.o_proj": (HIDDEN, 4096),
        "self_attn.q_norm": (128,),
        "self_attn.k_norm": (128,),
        "input_layernorm": (HIDDEN,),
        "post_attention_layernorm": (HIDDEN,),
        "mlp.gate": (EXPERTS, HIDDEN),
    }
    for expert in range(EXPERTS):
        of_layer[f"mlp.experts.{expert}.gate_proj"] = (INNER, HIDDEN)
        of_layer[f"mlp.experts.{expert}.up_proj"] = (INNER, HIDDEN)
        of_layer[f"mlp.experts.{expert}.down_proj"] = (HIDDEN, INNER)
    yield "model.embed_tokens.weight", (VOCABULARY, HIDDEN)
    yield "model.norm.weight", (HIDDEN,)
    yield "lm_head.weight", (VOCABULARY, HIDDEN)
    for layer in range(LAYERS):
        for name, shape in of_layer.items():
            yield f"model.layers.{layer}.{name}.weight", shape


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rank", type=int, default=1)
    parser.add_argument("--expert-parallel", action="store_true")
    parser.add_argument("--batch", type=int, default=256)
    arguments = parser.parse_args()

    import torch
    from transformers import Qwen3MoeConfig
    from vllm_ranks import NEVER_LOADED, Ranks, register, write_config

    from dcr.torch import trace_geometry

    config = Qwen3MoeConfig(
        hidden_size=HIDDEN, num_hidden_layers=LAYERS, num_attention_heads=32,
        num_key_value_heads=4, head_dim=128, num_experts=EXPERTS, num_experts_per_tok=8,
        moe_intermediate_size=INNER, intermediate_size=6144, vocab_size=VOCABULARY,
        tie_word_embeddings=False,
    )
    register("Qwen3MoeForCausalLM", "qwen3_moe")
    tensors = {name: (torch.bfloat16, shape) for name, shape in names()}
    with tempfile.TemporaryDirectory() as directory:
        write_config(Path(directory), config, "Qwen3MoeForCausalLM")
        ranks = Ranks(
            Path(directory), arguments.ranks, expert_parallel=arguments.expert_parallel,
            device="meta",
        )
        model = ranks.build(arguments.rank)
        stages = [("targets", time.perf_counter(), time.process_time())]

        def begin(stage):
            stages.append((stage, time.perf_counter(), time.process_time()))

        with ranks.turn(arguments.rank):
            classes = trace_geometry(
                model, tensors, never_loaded=NEVER_LOADED, batch_entries_max=arguments.batch,
                stage=begin,
            )
        begin("end")
    for (stage, wall, processor), (_, wall_end, processor_end) in zip(stages, stages[1:]):
        passes = " (two passes)" if stage == "trace" else ""
        busy = f"{processor_end - processor:.2f} s of the processor"
        print(f"{stage:10} {wall_end - wall:7.2f} s, {busy}{passes}")
    paths = Counter(one.path for one in classes.values())
    print(f"{len(classes)} names: " + ", ".join(f"{n} {path}" for path, n in sorted(paths.items())))
    print(f"{sum(one.bytes for one in classes.values()) / 1e9:.2f} GB of parameters on this rank")
    print(f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB of memory at most")


if __name__ == "__main__":
    main()
