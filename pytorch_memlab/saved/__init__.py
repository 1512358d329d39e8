"""The format of each file that the project writes or reads, and its checks."""
