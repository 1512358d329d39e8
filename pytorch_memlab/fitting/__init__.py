"""Whether a program fits on GPUs: runs it without values, and replays what it allocated.

Nothing here prints or imports a renderer.
"""
