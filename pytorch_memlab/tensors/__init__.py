"""The tensors that are alive in this process, and their memory."""
