"""Ops of sharded models."""
