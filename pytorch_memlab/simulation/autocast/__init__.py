"""``torch.autocast("cuda")``: lists, casts and the cache of casts."""
