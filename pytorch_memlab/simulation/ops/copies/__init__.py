"""Copies between CPU and GPU."""
