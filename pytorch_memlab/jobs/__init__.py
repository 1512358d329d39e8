"""Jobs of many processes: what each of them leaves behind, and what they tell together."""
