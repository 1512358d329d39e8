"""What a GPU is: its description, the presets with their sources, and TOML files of users."""
