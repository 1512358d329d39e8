(() => {
  "use strict";
  const MOST = 50;
  const [SIZE, BORN, DIED, STACK, FORWARD, LINE, CATEGORY, MODULE] = [0, 1, 2, 3, 4, 5, 6, 7];

  const element = (tag, text, name) => {
    const made = document.createElement(tag);
    if (text) made.textContent = text;
    if (name) made.className = name;
    return made;
  };

  const counted = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;

  const begin = (view) => {
    const data = JSON.parse(view.querySelector('script[type="application/json"]').textContent);
    const { number } = view.dataset;
    const list = view.querySelector(".list");
    const timeline = document.getElementById(`memlab-timeline-${number}`);
    const source = document.getElementById(`memlab-source-${number}`);
    const open = new Map();  // the rows below lines, and the blocks of each
    let moment = data.peak;

    const isInUse = (block) =>
      block[BORN] <= moment && (block[DIED] < 0 || moment < block[DIED]);

    const lineKey = ([file, line]) => `${file}:${line}`;
    const functionsOf = new Map();
    for (const one of source?.querySelectorAll(".function") ?? []) {
      const { file } = one.dataset;
      functionsOf.set(file, [...(functionsOf.get(file) ?? []), one]);
    }
    const rows = new Map();
    for (const [file, functions] of functionsOf) {
      for (const one of functions) {
        for (const row of one.querySelectorAll("tbody tr")) {
          const key = lineKey([file, parseInt(row.cells[0].textContent, 10)]);
          rows.set(key, [...(rows.get(key) ?? []), row]);
        }
      }
    }

    const anchorOf = (frame) => {
      const [row] = rows.get(lineKey(frame)) ?? [];
      return row ? `#${row.closest(".function").id}-${frame[1]}` : "";
    };

    const frameItem = (index) => {
      const frame = data.frames[index];
      const item = document.createElement("li");
      const address = anchorOf(frame);
      const place = element(address ? "a" : "span");
      if (address) place.href = address;
      place.append(element("code", frame[2]));
      item.append(place);
      if (frame[3]) item.append(" ", element("code", frame[3], "quiet"));
      return item;
    };

    const stack = (heading, index) => {
      const frames = data.stacks[index];
      if (!frames.length) return [];
      const items = document.createElement("ol");
      items.append(...frames.map(frameItem));
      return [element("div", heading, "quiet"), items];
    };

    const lifeOf = (block) => {
      const born = block[BORN] ? `allocated at event ${block[BORN].toLocaleString("en")}`
        : "allocated before the first event";
      const died = block[DIED] < 0 ? "not freed" : `freed at event ${block[DIED].toLocaleString("en")}`;
      return `${born}, ${died}`;
    };

    const item = (block) => {
      const details = document.createElement("details");
      const summary = document.createElement("summary");
      summary.append(
        element("span", sizeText(block[SIZE]), "size"), " ",
        element("span", data.categories[block[CATEGORY]], "what"), " ",
        element("code", data.frames[block[LINE]][2]),
      );
      details.append(summary);
      details.addEventListener("toggle", () => {
        if (details.childElementCount > 1) return;
        const facts = element("div", "", "facts");
        facts.append(element("div", lifeOf(block)));
        const module = data.modules[block[MODULE]];
        if (module) facts.append(element("div", `module ${module}`));
        facts.append(
          ...stack("allocated by, innermost first", block[STACK]),
          ...stack("for the forward pass of", block[FORWARD]),
        );
        details.append(facts);
      });
      const made = document.createElement("li");
      made.append(details);
      return made;
    };

    const show = (place, blocks) => {
      const found = blocks.filter(isInUse).sort((one, other) => other[SIZE] - one[SIZE]);
      const total = found.reduce((sum, block) => sum + block[SIZE], 0);
      const when = moment === data.peak ? "At the peak" : "At the chosen moment";
      const head = `${when}, event ${moment.toLocaleString("en")}: ${sizeText(total)} in `
        + counted(found.length, "block");
      const items = document.createElement("ul");
      items.append(...found.slice(0, MOST).map(item));
      const rest = found.slice(MOST);
      if (rest.length) {
        const size = rest.reduce((sum, block) => sum + block[SIZE], 0);
        items.append(element("li", `${counted(rest.length, "more block")}, ${sizeText(size)}`));
      }
      place.replaceChildren(element("div", head), items);
    };

    const showAll = () => {
      show(list, data.blocks);
      for (const [row, blocks] of open) show(row.cells[0], blocks);
    };

    const close = (row) => {
      open.delete(row);
      row.remove();
    };

    const blocksOf = new Map();
    for (const block of data.blocks) {
      const frames = new Set([...data.stacks[block[STACK]], ...data.stacks[block[FORWARD]]]);
      for (const key of new Set([...frames].map((one) => lineKey(data.frames[one])))) {
        blocksOf.set(key, [...(blocksOf.get(key) ?? []), block]);
      }
    }

    const addButton = (row, blocks) => {
      const table = row.closest("table");
      const code = row.lastElementChild;
      const button = element("button", "blocks", "holds");
      const line = parseInt(row.cells[0].textContent, 10);
      button.type = "button";
      button.setAttribute("aria-expanded", "false");
      button.setAttribute("aria-label", `blocks of line ${line}`);
      const toggle = () => {
        const below = row.nextElementSibling;
        if (below && open.has(below)) {
          close(below);
          button.setAttribute("aria-expanded", "false");
          return;
        }
        const made = element("tr", "", "held");
        const cell = made.insertCell();
        cell.colSpan = table.tHead.rows[0].cells.length;
        row.after(made);
        open.set(made, blocks);
        show(cell, blocks);
        button.setAttribute("aria-expanded", "true");
      };
      code.append(" ", button);
      code.addEventListener("click", () => {
        if (getSelection().isCollapsed) toggle();
      });
    };

    for (const [key, found] of rows) {
      const blocks = blocksOf.get(key);
      if (blocks) for (const row of found) addButton(row, blocks);
    }
    // Rows below lines do not stay where they are when a table is sorted.
    for (const head of source?.querySelectorAll("thead") ?? []) {
      head.addEventListener("click", () => {
        const table = head.closest("table");
        for (const row of [...open.keys()]) if (table.contains(row)) close(row);
        for (const button of table.querySelectorAll(".holds")) {
          button.setAttribute("aria-expanded", "false");
        }
      }, true);
    }
    if (timeline) timeline.dataset.choosesMoment = "";
    timeline?.addEventListener("memlab-moment", ({ detail }) => {
      moment = detail ?? data.peak;
      showAll();
    });
    showAll();
  };

  document.querySelectorAll(".memlab-blocks").forEach(begin);
})();
