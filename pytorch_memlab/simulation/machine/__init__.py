"""State of the simulation: GPUs, which storage lives on which, and what each thread chose."""
