"""The figures of memory that callbacks of training loops log, by the names that they log."""

PEAKS = ("allocated_bytes.all.peak", "reserved_bytes.all.peak", "active_bytes.all.peak")
CATEGORIES = (
    "parameters", "gradients", "optimizer_state", "buffers", "activations_saved_for_backward",
    "temporaries", "workspaces", "inputs_and_other_tensors", "unknown",
)  # fmt: skip
