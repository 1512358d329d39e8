"""The dispatch mode and the function mode, output devices, transfers, gradient accumulation."""
