"""The registry of ops, the record of each, and a call of one: all families rest on it."""
