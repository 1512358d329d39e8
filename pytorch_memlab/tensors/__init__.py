"""Which tensors live in this process, and which memory they hold."""
