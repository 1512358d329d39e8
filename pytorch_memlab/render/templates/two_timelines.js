(() => {
  "use strict";
  const NAMES = ["before", "after"];

  // The last point at or before a moment.
  const pointAt = (points, moment) => {
    let low = 0;
    let high = points.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (points[middle] <= moment) low = middle;
      else high = middle - 1;
    }
    return low;
  };

  const element = (tag, text) => {
    const made = document.createElement(tag);
    made.textContent = text;
    return made;
  };

  const begin = (figure) => {
    const data = JSON.parse(figure.querySelector('script[type="application/json"]').textContent);
    const plot = figure.querySelector(".plot");
    const [cursor, reading] = ["cursor", "reading"].map((name) => figure.querySelector(`.${name}`));
    // The moments of both runs, each once.
    const moments = [...new Set(data.runs.flatMap((run) => run.points))].sort((a, b) => a - b);
    const peaks = data.runs.map((run) => run.points[run.peak]);
    let current = null;
    let peak = 1;

    const sizeAt = (run, moment) =>
      (moment > run.events ? null : run.active[pointAt(run.points, moment)]);

    const facts = (moment) => {
      const sizes = data.runs.map((run) => sizeAt(run, moment));
      const rows = data.runs.map((run, number) => {
        if (sizes[number] === null) return [NAMES[number], "over", ""];
        const index = pointAt(run.points, moment);
        return [NAMES[number], sizeText(sizes[number]), run.places[run.place[index]][0]];
      });
      if (!sizes.includes(null)) {
        const growth = sizes[1] - sizes[0];
        const sign = growth < 0 ? "-" : growth ? "+" : "";
        rows.push(["change", sign + sizeText(Math.abs(growth)), ""]);
      }
      return rows;
    };

    const mark = () => {
      cursor.hidden = current === null;
      reading.hidden = current === null;
      if (current === null) return;
      const share = (100 * current) / data.events;
      cursor.style.left = `${share}%`;
      reading.style.left = share < 50 ? `calc(${share}% + 10px)` : "auto";
      reading.style.right = share < 50 ? "auto" : `calc(${100 - share}% + 10px)`;
      const title = `event ${current.toLocaleString("en")}`;
      const rows = facts(current);
      const table = document.createElement("table");
      for (const cells of rows) {
        const row = table.insertRow();
        row.append(...cells.map((text) => element("td", text)));
        row.cells[1].className = "number";
      }
      reading.replaceChildren(element("div", title), table);
      plot.setAttribute("aria-valuenow", current);
      plot.setAttribute("aria-valuetext",
        [title, ...rows.map((cells) => cells.join(" ").trim())].join(", "));
    };

    const moveTo = (index) => {
      current = moments[Math.min(Math.max(index, 0), moments.length - 1)];
      mark();
    };
    const place = () => (current === null ? null : pointAt(moments, current));

    plot.addEventListener("pointermove", (event) => {
      const box = plot.getBoundingClientRect();
      const share = Math.min(Math.max((event.clientX - box.left) / box.width, 0), 1);
      moveTo(pointAt(moments, share * data.events));
    });
    plot.addEventListener("pointerleave", () => {
      if (document.activeElement === plot) return;
      current = null;
      mark();
    });

    const far = Math.max(1, Math.round(moments.length / 20));
    const nextPeak = () => {
      peak = 1 - peak;
      current = peaks[peak];
      mark();
    };
    const keys = {
      ArrowRight: () => moveTo((place() ?? -1) + 1),
      ArrowUp: () => moveTo((place() ?? -1) + 1),
      ArrowLeft: () => moveTo((place() ?? moments.length) - 1),
      ArrowDown: () => moveTo((place() ?? moments.length) - 1),
      PageUp: () => moveTo((place() ?? 0) + far),
      PageDown: () => moveTo((place() ?? 0) - far),
      Home: () => moveTo(0),
      End: () => moveTo(moments.length - 1),
      p: nextPeak,
      P: nextPeak,
    };
    plot.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in keys)) return;
      event.preventDefault();
      keys[event.key]();
    });
  };

  document.querySelectorAll(".memlab-timeline").forEach(begin);
})();
