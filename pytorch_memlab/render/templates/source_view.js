(() => {
  "use strict";
  const begin = (view) => {
    const tools = view.querySelector(".tools");
    const sort = tools.querySelector("select");
    const filter = tools.querySelector("input");
    const matches = tools.querySelector(".matches");
    const links = view.querySelector("ol");
    const list = view.querySelector(".functions");
    const items = [...links.children];
    const functions = [...list.children].map((element, place) => ({
      element,
      item: items[place],
      place: Number(element.id.split("-").pop()),
      name: element.dataset.name,
      text: `${element.dataset.name} ${element.dataset.file}`.toLowerCase(),
      lines: [...element.querySelectorAll("tbody tr")],
      adds: Number(element.dataset.adds),
      peak: Number(element.dataset.peak),
      idle: items[place].classList.contains("idle"),
    }));
    const orders = {
      adds: (one, other) => one.idle - other.idle || other.adds - one.adds || other.peak - one.peak,
      peak: (one, other) => other.peak - one.peak,
      name: (one, other) => one.name.localeCompare(other.name),
      place: () => 0,
    };

    const arrange = () => {
      functions.sort((one, other) => orders[sort.value](one, other) || one.place - other.place);
      links.append(...functions.map((one) => one.item));
      list.append(...functions.map((one) => one.element));
    };

    const codeOf = (row) => row.lastElementChild.textContent.toLowerCase();

    const select = () => {
      const wanted = filter.value.trim().toLowerCase();
      let count = 0;
      for (const one of functions) {
        let inCode = false;
        for (const row of one.lines) {
          const found = wanted !== "" && codeOf(row).includes(wanted);
          row.classList.toggle("found", found);
          inCode ||= found;
        }
        const shown = inCode || one.text.includes(wanted);
        one.element.hidden = !shown;
        one.item.hidden = !shown;
        count += shown;
      }
      const noun = functions.length === 1 ? "function" : "functions";
      matches.textContent = wanted === "" ? "" : `${count} of ${functions.length} ${noun}`;
    };

    sort.addEventListener("change", arrange);
    filter.addEventListener("input", select);
    // A link to a function that the filter hides shows it.
    view.addEventListener("memlab-reveal", () => {
      filter.value = "";
      select();
    });
    tools.hidden = false;
  };

  document.querySelectorAll(".memlab-source").forEach(begin);
})();
