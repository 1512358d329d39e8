"""What the pytest plugin does with tests that ask for it."""
