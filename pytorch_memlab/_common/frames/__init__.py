"""Stacks, frames and code of the program, of torch and of this package."""
