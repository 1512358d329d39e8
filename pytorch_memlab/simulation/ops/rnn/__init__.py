"""Recurrent networks and their cells."""
