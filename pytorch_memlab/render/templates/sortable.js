(() => {
  "use strict";
  const FACTORS = { "%": 1, B: 1, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40, s: 1 };

  // The number in a cell, such as 8.0 MiB or 1,024; null for a text.
  const numberIn = (text) => {
    const found = text.match(/^([+\u2212-]?)([\d,]*\.?\d+)\s*(%|[KMGT]iB|B|s)?(?!\w)/);
    if (!found) return null;
    const size = Number(found[2].replaceAll(",", "")) * FACTORS[found[3] ?? "B"];
    return ["", "+"].includes(found[1]) ? size : -size;
  };

  const begin = (table) => {
    const heads = [...table.tHead.rows[0].cells];
    const body = table.tBodies[0];
    const before = [...body.rows];

    // One cell stands for all numbers of a line that was not measured.
    const cellOf = ({ cells }, place) => {
      if (cells.length === heads.length || place === 0) return cells[place];
      return place === heads.length - 1 ? cells[cells.length - 1] : null;
    };
    const textOf = (row, place) => cellOf(row, place)?.textContent.trim() ?? "";

    // Rows without a value come last, in either order.
    const compare = (place, sign) => (one, other) => {
      const [text, second] = [textOf(one, place), textOf(other, place)];
      if (text === "" || second === "") return (text === "") - (second === "");
      const [number, next] = [numberIn(text), numberIn(second)];
      if (number === null || next === null) return sign * text.localeCompare(second);
      return sign * (number - next);
    };

    const sort = (place) => {
      const head = heads[place];
      const next = { descending: "ascending", ascending: "" }[head.ariaSort] ?? "descending";
      for (const other of heads) other.removeAttribute("aria-sort");
      const rows = [...before];
      if (next) {
        head.setAttribute("aria-sort", next);
        rows.sort(compare(place, next === "descending" ? -1 : 1));
      }
      body.append(...rows);
    };

    heads.forEach((head, place) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      button.addEventListener("click", () => sort(place));
      head.append(button);
    });
  };

  document.querySelectorAll(".memlab table.sortable").forEach(begin);
})();
