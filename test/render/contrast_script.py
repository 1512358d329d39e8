"""The contrast of a page's text, as Chromium computes it."""

CONTRAST = r"""<script>
const channel = (value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
const parse = (colour) => {
  const [red, green, blue, alpha = 1] = colour.match(/[0-9.]+/g).map(Number);
  return { rgb: [red, green, blue].map((one) => one / 255), alpha };
};
const luminance = (rgb) => {
  const [red, green, blue] = rgb.map(channel);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
};
const ground = (element) => {
  const over = [];
  for (let one = element; one; one = one.parentElement) {
    const colour = parse(getComputedStyle(one).backgroundColor);
    over.push(colour);
    if (colour.alpha === 1) break;
  }
  return over.reverse().reduce((below, { rgb, alpha }) =>
    below.map((one, place) => alpha * rgb[place] + (1 - alpha) * one), [1, 1, 1]);
};
const over = ({ rgb, alpha }, below, share = 1) =>
  below.map((one, place) => share * alpha * rgb[place] + (1 - share * alpha) * one);
// Text may stand on a translucent bar or beside it.
const grounds = (element) => {
  const base = ground(element);
  const { boxShadow, backgroundImage } = getComputedStyle(element);
  const bars = `${boxShadow} ${backgroundImage}`.match(/rgba\([^)]*\)/g) || [];
  return [base, ...bars.map((one) => over(parse(one), base))];
};
const opacity = (element) => {
  let all = 1;
  for (let one = element; one; one = one.parentElement) all *= getComputedStyle(one).opacity;
  return all;
};
const low = new Set();
let count = 0;
const open = (one) => { one.open = true; };
document.querySelectorAll("details").forEach(open);
const check = () => {
  for (const element of document.querySelectorAll("body *")) {
    const hasText = [...element.childNodes].some((one) => one.nodeType === 3 && one.data.trim());
    if (!hasText || !element.checkVisibility() || element.tagName === "SCRIPT") continue;
    if (element.closest("svg, .hidden")) continue;
    count += 1;
    const ink = parse(getComputedStyle(element).color);
    for (const below of grounds(element)) {
      const [dark, light] = [below, over(ink, below, opacity(element))]
        .map(luminance).sort((one, other) => one - other);
      if ((light + 0.05) / (dark + 0.05) < 4.5) low.add(`${element.className} ${element.tagName}`);
    }
  }
};
check();
for (const tab of document.querySelectorAll("[role=tab]")) {
  tab.click();
  check();
}
document.title = JSON.stringify({
  low: [...low], count, dark: matchMedia("(prefers-color-scheme: dark)").matches,
});
</script>"""
