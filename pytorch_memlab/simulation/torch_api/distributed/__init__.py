"""``torch.distributed``: one rank of many, without the others."""
