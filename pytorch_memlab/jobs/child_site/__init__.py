"""A folder for ``PYTHONPATH``: what Python processes of a job run when they start."""
