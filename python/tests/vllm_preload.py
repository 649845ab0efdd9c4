"""Imported by the process that is forked for each engine: all that takes long."""

import transformers  # noqa: F401
import vllm  # noqa: F401
import vllm.v1.engine.async_llm
import vllm.v1.engine.core_client
import vllm.v1.worker.cpu_worker
import vllm.v1.worker.gpu_model_runner  # noqa: F401
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3MoeConfig  # noqa: F401
from vllm import LLM, SamplingParams  # noqa: F401
from vllm.model_executor.models.qwen3 import Qwen3ForCausalLM
from vllm.model_executor.models.qwen3_moe import Qwen3MoeForCausalLM
from vllm.model_executor.models.registry import ModelRegistry

# With the classes themselves vLLM need not find out, in a process of its own, what they can do.
ModelRegistry.register_model("Qwen3ForCausalLM", Qwen3ForCausalLM)
ModelRegistry.register_model("Qwen3MoeForCausalLM", Qwen3MoeForCausalLM)
