"""Imported by the process that is forked for each engine: all that takes long."""

import transformers  # noqa: F401
import vllm  # noqa: F401
import vllm.v1.engine.async_llm
import vllm.v1.engine.core_client
import vllm.v1.worker.cpu_worker
import vllm.v1.worker.gpu_model_runner  # noqa: F401
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3MoeConfig  # noqa: F401
from vllm import LLM, SamplingParams  # noqa: F401
from vllm.model_executor.models import qwen3, qwen3_moe  # noqa: F401
