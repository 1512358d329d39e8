"""The stream of allocations of a program, with the lines that made them."""
