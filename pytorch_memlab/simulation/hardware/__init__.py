"""The hardware: descriptions of GPUs, presets with their sources, and TOML files of users."""
