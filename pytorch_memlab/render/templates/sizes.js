// A size in a sentence, digit for digit as prose_size in Python.
const sizeText = (bytes) => {
  // Python rounds what lies in the middle of two numbers to the even one, toFixed to the larger.
  const rounded = (size, digits) => {
    const scaled = size * 10 ** digits;
    const below = Math.floor(scaled);
    const whole = scaled - below === 0.5 ? below + (below % 2) : Math.round(scaled);
    return (whole / 10 ** digits).toFixed(digits);
  };
  if (bytes < 2 ** 10) return `${bytes} B`;
  // Just below the next unit, a size is rounded up to it.
  if (bytes < 2 ** 20 - 2 ** 10 / 20) return `${rounded(bytes / 2 ** 10, 1)} KiB`;
  if (bytes < 2 ** 30 - 2 ** 20 / 20) return `${rounded(bytes / 2 ** 20, 1)} MiB`;
  return `${rounded(bytes / 2 ** 30, 2)} GiB`;
};
