"""Parts of the memory reporter: names of tensors, rows, and the text of a report."""
