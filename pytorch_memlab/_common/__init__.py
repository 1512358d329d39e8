"""Private parts that every package uses, and that use none of them."""
