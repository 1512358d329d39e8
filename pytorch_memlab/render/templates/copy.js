(() => {
  "use strict";
  const select = (element) => {
    const range = document.createRange();
    range.selectNodeContents(element);
    const selection = window.getSelection();
    selection.removeAllRanges();
    selection.addRange(range);
  };

  const begin = (button) => {
    const code = button.parentElement.querySelector("pre");
    const say = (text) => {
      button.textContent = text;
    };
    button.setAttribute("aria-live", "polite");
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(code.textContent);
        say("Copied");
      } catch {
        // Some browsers do not let a file write to the clipboard.
        select(code);
        say("Selected: press Ctrl+C");
      }
    });
    button.hidden = false;
  };

  document.querySelectorAll(".memlab-report button.copy").forEach(begin);
})();
