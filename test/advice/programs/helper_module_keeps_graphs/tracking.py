from collections import defaultdict


class Tracker:
    def __init__(self, every):
        self.every = every
        self.values = defaultdict(list)

    def log(self, step, **values):
        if step % self.every == 0:
            for name, value in values.items():
                self.values[name].append(value)
