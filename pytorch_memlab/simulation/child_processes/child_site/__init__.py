"""The folder that a simulated program puts on ``PYTHONPATH`` for the processes that it starts."""
