"""What trainer ranks and engines import, once, in the process that they are forked from."""

import torch.distributed.fsdp
import torch.distributed.tensor
import transformers.models.qwen3.modeling_qwen3
import vllm.entrypoints.llm
import vllm.v1.engine.llm_engine
import vllm.v1.worker.cpu_worker  # noqa: F401
from vllm.model_executor.models.qwen3 import Qwen3ForCausalLM
from vllm.model_executor.models.registry import ModelRegistry

# With the class itself vLLM need not find out, in a process of its own, what it can do.
ModelRegistry.register_model("Qwen3ForCausalLM", Qwen3ForCausalLM)
