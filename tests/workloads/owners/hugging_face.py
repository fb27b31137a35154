"""Models of the library transformers as people train and serve them, each with what PyTorch itself says of its memory.

One line of JSON, as in models.py. The models are small and have random weights; nothing is downloaded.
"""

import json
import os
import sys

import torch
import transformers
from torch import nn

from blocks import active
from named import DEVICE, Case, left_out, optional, row, rows, tell

VOCABULARY = 512
NAMES = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 128,
}


def tokens(batch=2, length=32):
    return torch.zeros(batch, length, dtype=torch.long, device=DEVICE)


def step(it):
    loss = it.model(input_ids=tokens(), labels=tokens()).loss
    loss.backward()
    it.optimizer.step()


def train(case, model, make_optimizer=torch.optim.AdamW, steps=2):
    it = Case()
    globals()[case] = it
    it.model = model.to(DEVICE)
    it.optimizer = make_optimizer(it.model.parameters())
    for _ in range(steps):
        it.optimizer.zero_grad()
        step(it)
    tell(case, it.model, it.optimizer)
    return it


def small_llama():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**NAMES))


with optional("llama"):
    train("llama", small_llama())
with optional("llama_bfloat16"):
    train("llama_bfloat16", small_llama().to(torch.bfloat16))
with optional("llama_checkpointing"):
    checkpointing = small_llama()
    checkpointing.gradient_checkpointing_enable()
    train("llama_checkpointing", checkpointing)
    del checkpointing
with optional("gpt2"):
    # Its embedding and its head share their weight.
    config = transformers.GPT2Config(
        n_embd=64, n_layer=2, n_head=4, vocab_size=VOCABULARY, n_positions=128
    )
    train("gpt2", transformers.GPT2LMHeadModel(config))
with optional("mixtral"):
    config = transformers.MixtralConfig(**NAMES, num_local_experts=4)
    train("mixtral", transformers.MixtralForCausalLM(config))
with optional("bert"):
    names = {k: v for k, v in NAMES.items() if k != "num_key_value_heads"}
    train("bert", transformers.BertForMaskedLM(transformers.BertConfig(**names)))
with optional("fused"):
    train("fused", small_llama(), lambda p: torch.optim.AdamW(p, fused=True))

with optional("serving"):
    serving = Case()
    serving.model = small_llama().to(DEVICE).eval().requires_grad_(False)
    serving.cache = transformers.DynamicCache(config=serving.model.config)
    with torch.no_grad():
        serving.model(input_ids=tokens(), past_key_values=serving.cache, use_cache=True)
        for _ in range(3):
            serving.model(
                input_ids=tokens(length=1), past_key_values=serving.cache, use_cache=True
            )
    tell("serving", serving.model)
kv_cache = sorted(
    {
        tensor.untyped_storage().data_ptr()
        for layer in serving.cache.layers
        for tensor in (layer.keys, layer.values)
    }
    if hasattr(serving, "cache")
    else []
)


def on_this_gpu():
    """What the simulated device cannot do: compiled kernels, and collectives."""
    if "simulated" in torch.cuda.get_device_name():
        return
    with optional("inductor"):
        it = Case()
        globals()["inductor"] = it
        it.model = torch.compile(small_llama().to(DEVICE))
        it.optimizer = torch.optim.AdamW(it.model.parameters())
        step(it)
        tell("inductor", it.model, it.optimizer)
    with optional("nccl"):
        from torch.distributed.fsdp import fully_shard

        torch.distributed.init_process_group(
            "nccl", init_method="tcp://127.0.0.1:29511", rank=0, world_size=1
        )
        it = Case()
        globals()["ddp_nccl"] = it
        it.model = nn.parallel.DistributedDataParallel(small_llama().to(DEVICE))
        it.optimizer = torch.optim.AdamW(it.model.parameters())
        step(it)
        tell("ddp_nccl", it.model, it.optimizer)
        it = Case()
        globals()["fsdp2_nccl"] = it
        it.model = small_llama().to(DEVICE)
        mesh = torch.distributed.device_mesh.init_device_mesh(DEVICE, (1,))
        for layer in it.model.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(it.model, mesh=mesh)
        it.optimizer = torch.optim.AdamW(it.model.parameters())
        step(it)
        tell("fsdp2_nccl", it.model, it.optimizer)


on_this_gpu()
torch.cuda.synchronize()
print(
    json.dumps(
        {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "rows": rows,
            "left_out": left_out,
            "kv_cache": kv_cache,
            "sizes": active(),
        }
    ),
    flush=True,
)
sys.stdin.readline()
os._exit(0)
