"""The parts of the pytest plugin that only tests with its marks or fixtures need."""
