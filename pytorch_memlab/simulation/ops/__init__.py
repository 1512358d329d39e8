"""Everything known about each op: its memory, outputs, values and how CUDA dispatches it."""
