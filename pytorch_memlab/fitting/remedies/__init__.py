"""What lets a program need less memory: one file for each remedy, tried on the program as it is."""
