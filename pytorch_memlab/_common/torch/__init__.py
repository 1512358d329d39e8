"""Lives of storages, forward ops, optimizer steps: PyTorch has no public function for them."""
