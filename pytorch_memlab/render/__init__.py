"""Finished reports as text, HTML, or colour in a terminal, profiles as JSON: one file each."""
