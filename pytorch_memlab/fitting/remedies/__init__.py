"""Remedies for a program that does not fit: one file for each, tried on the unchanged program."""
