"""PyTorch's caching allocator, without torch."""
