"""Models in what people train them with (peft, accelerate, FSDP, optimizers in parts), each with what the framework says of its memory.

One line of JSON, as in models.py. The models are small and have random weights; nothing is downloaded.
"""

import json
import os
import sys

import accelerate
import peft
import torch
import transformers
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.testing._internal.distributed.fake_pg import FakeStore

from blocks import active
from named import DEVICE, Case, left_out, optional, row, rows, tell, tensors_in

NAMES = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 128,
}


def small_llama():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**NAMES))


def train(it, loss, backward=torch.Tensor.backward, steps=2):
    for _ in range(steps):
        it.optimizer.zero_grad()
        backward(loss(it.model))
        it.optimizer.step()


def loss_of_tokens(model):
    tokens = torch.zeros(2, 32, dtype=torch.long, device=DEVICE)
    return model(input_ids=tokens, labels=tokens).loss


def loss_of_numbers(model):
    return model(torch.randn(4, 16, device=DEVICE)).float().pow(2).mean()


def tell_with_state(case, model, optimizer, at):
    """The optimizer that has the state is an attribute of the one that the program calls."""
    tell(case, model)
    names = {parameter: name for name, parameter in model.named_parameters()}
    for parameter, state in optimizer.state.items():
        for key, tensor in tensors_in(state, ""):
            row(case, "optimizer_state", f"__main__.{case}.{at}", names[parameter], key, tensor)


def adapted(case, make_config, **settings):
    with optional(case):
        it = Case()
        globals()[case] = it
        config = make_config(task_type="CAUSAL_LM", **settings)
        it.model = peft.get_peft_model(small_llama(), config).to(DEVICE)
        learning = [one for one in it.model.parameters() if one.requires_grad]
        it.optimizer = torch.optim.AdamW(learning)
        train(it, loss_of_tokens)
        tell(case, it.model, it.optimizer)


LAYERS = ["q_proj", "v_proj"]
adapted("lora", peft.LoraConfig, target_modules=LAYERS)
adapted("dora", peft.LoraConfig, target_modules=LAYERS, use_dora=True)
adapted("lora_of_embedding", peft.LoraConfig, target_modules=[*LAYERS, "embed_tokens"])
adapted("lora_and_head", peft.LoraConfig, target_modules=LAYERS, modules_to_save=["lm_head"])
adapted("adalora", peft.AdaLoraConfig, target_modules=LAYERS, total_step=100)
adapted("loha", peft.LoHaConfig, target_modules=LAYERS)
adapted("vera", peft.VeraConfig, target_modules=["q_proj"], r=8)
adapted(
    "ia3",
    peft.IA3Config,
    target_modules=["k_proj", "down_proj"],
    feedforward_modules=["down_proj"],
)
adapted("prompt", peft.PromptTuningConfig, num_virtual_tokens=8)
adapted("prefix", peft.PrefixTuningConfig, num_virtual_tokens=8)

with optional("two_adapters"):
    two_adapters = Case()
    two_adapters.model = peft.get_peft_model(
        small_llama(), peft.LoraConfig(task_type="CAUSAL_LM", target_modules=LAYERS)
    )
    two_adapters.model.add_adapter(
        "second", peft.LoraConfig(task_type="CAUSAL_LM", target_modules=["o_proj"])
    )
    two_adapters.model.set_adapter("second")
    two_adapters.model.to(DEVICE)
    two_adapters.optimizer = torch.optim.AdamW(two_adapters.model.parameters())
    train(two_adapters, loss_of_tokens)
    tell("two_adapters", two_adapters.model, two_adapters.optimizer)


def prepared(case, **settings):
    with optional(case):
        it = Case()
        globals()[case] = it
        it.accelerator = accelerate.Accelerator(**settings)
        it.model = small_llama()
        optimizer = torch.optim.AdamW(it.model.parameters())
        it.model, it.optimizer = it.accelerator.prepare(it.model, optimizer)
        train(it, loss_of_tokens, it.accelerator.backward)
        tell_with_state(case, it.model, it.optimizer, "optimizer.optimizer")
    # What mixed precision is set to is kept for the whole process.
    accelerate.state.AcceleratorState._reset_state(True)


prepared("accelerated")
prepared("accelerated_bfloat16", mixed_precision="bf16")
with optional("dispatched"):
    dispatched = Case()
    dispatched.model = accelerate.dispatch_model(small_llama(), {"": 0})
    tell("dispatched", dispatched.model)

# One of two ranks: the other one is not there, and what would come from it is not, either. Nobody looks at values here.
torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(16, 32)
        self.norm = nn.BatchNorm1d(32)
        self.down = nn.Linear(32, 16)

    def forward(self, x):
        return x + self.down(torch.relu(self.norm(self.up(x))))


def blocks():
    return nn.Sequential(nn.Linear(16, 16), *[Block() for _ in range(3)]).to(DEVICE)


def sharded(case, **settings):
    """FSDP in its first form, whose parameters are parts of one that is flat."""
    with optional(case):
        it = Case()
        globals()[case] = it
        it.model = FullyShardedDataParallel(
            blocks(), auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=0, **settings
        )
        it.optimizer = torch.optim.AdamW(it.model.parameters())
        train(it, loss_of_numbers)
        tell(case, it.model, it.optimizer)


HALF = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
sharded("fsdp")
sharded("fsdp_original", use_orig_params=True)
sharded("fsdp_gradients", sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)
sharded("fsdp_not_sharded", sharding_strategy=ShardingStrategy.NO_SHARD)
sharded("fsdp_bfloat16", mixed_precision=HALF)
sharded("fsdp_bfloat16_original", mixed_precision=HALF, use_orig_params=True)


def in_parts(case, **settings):
    """An optimizer of which each rank has the state of some parameters."""
    with optional(case):
        it = Case()
        globals()[case] = it
        it.model = blocks()
        it.optimizer = ZeroRedundancyOptimizer(
            it.model.parameters(), optimizer_class=torch.optim.AdamW, **settings
        )
        train(it, loss_of_numbers)
        tell_with_state(case, it.model, it.optimizer.optim, "optimizer.optim")


in_parts("zero_redundancy")
in_parts("zero_redundancy_in_one_block", parameters_as_bucket_view=True)

torch.cuda.synchronize()
print(
    json.dumps(
        {
            "torch": torch.__version__,
            "peft": peft.__version__,
            "accelerate": accelerate.__version__,
            "rows": rows,
            "left_out": left_out,
            "sizes": active(),
        }
    ),
    flush=True,
)
sys.stdin.readline()
os._exit(0)
