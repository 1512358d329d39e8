"""Indexing, embeddings, `nonzero` and scatters."""
