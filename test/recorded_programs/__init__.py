"""Programs that were recorded on real GPUs, written anew from what the recordings tell."""
