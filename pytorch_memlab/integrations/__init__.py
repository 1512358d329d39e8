"""Callbacks for training loops of other libraries: one module each, named as the library."""
