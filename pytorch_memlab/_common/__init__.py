"""Private parts that several packages use, and that use none of them, in rooms."""
