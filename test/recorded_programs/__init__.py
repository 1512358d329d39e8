"""Programs that were recorded on real GPUs, written again from what the recordings tell."""
