"""Settings that the script makes itself: before CUDA is there, and again while it runs."""

import os

os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "roundup_power2_divisions:[256:1,512:2,1024:4,>:8],max_split_size_mb:100"

import torch  # noqa: E402

kept = [torch.empty(1_000_000 * n, dtype=torch.uint8, device="cuda") for n in range(1, 8)]
change = getattr(torch._C, "_accelerator_setAllocatorSettings", None) or torch.cuda.memory._set_allocator_settings
change("expandable_segments:True,garbage_collection_threshold:0.75")
kept += [torch.empty(30_000_000 * n, dtype=torch.uint8, device="cuda") for n in range(1, 4)]
del kept[1::3]
