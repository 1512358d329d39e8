(() => {
  "use strict";
  const WIDTH = 1000;
  const HEIGHT = 400;
  const MOST_MARKS = 100;
  const STEP_LABEL = 70;

  const secondsText = (seconds) => `${Number(seconds.toPrecision(3))} s`;

  const eventMarks = (from, to) => {
    const rough = Math.max((to - from) / 6, 1);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((one) => one >= rough);
    const marks = [];
    for (let mark = Math.ceil(from / step) * step; mark <= to; mark += step) marks.push(mark);
    return marks;
  };

  const byteMarks = (highest) => {
    const step = 2 ** Math.max(0, Math.ceil(Math.log2(Math.max(highest, 1) / 6)));
    const marks = [];
    for (let mark = 0; mark <= highest; mark += step) marks.push(mark);
    return marks;
  };

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

  const begin = (figure) => {
    const data = JSON.parse(figure.querySelector('script[type="application/json"]').textContent);
    const plot = figure.querySelector(".plot");
    const [cursor, selection, reading, peak, choice] = [
      "cursor", "selection", "reading", "peak", "chosen",
    ].map((name) => figure.querySelector(`.${name}`));
    const view = { from: 0, to: data.events, top: 1 };
    const hidden = new Set(data.capacityShown ? [] : ["capacity"]);
    let current = null;
    let chosen = null;  // the moment that other parts of the page show
    let dragged = null;

    const shownSizes = (upTo) => {
      const sizes = new Array(data.points.length).fill(0);
      data.bands.slice(0, upTo + 1).forEach((band, number) => {
        if (!hidden.has(number)) band.sizes.forEach((size, index) => { sizes[index] += size; });
      });
      return sizes;
    };

    const x = (moment) => ((moment - view.from) / (view.to - view.from)) * WIDTH;
    const y = (bytes) => HEIGHT - (HEIGHT * bytes) / view.top;
    const number = (value) => Math.round(value * 10) / 10;

    // Each size holds until the next point.
    const line = (sizes) => {
      const first = pointAt(data.points, view.from);
      let path = `M0 ${number(y(sizes[first]))}`;
      for (let index = first + 1; index < data.points.length; index += 1) {
        if (data.points[index] > view.to) break;
        path += `H${number(x(data.points[index]))}V${number(y(sizes[index]))}`;
      }
      return `${path}H${WIDTH}`;
    };

    const verticals = (moments) => {
      const inside = moments.filter((moment) => moment >= view.from && moment <= view.to);
      const every = Math.max(1, Math.ceil(inside.length / MOST_MARKS));
      return inside.filter((_, index) => index % every === 0)
        .map((moment) => `M${number(x(moment))} 0V${HEIGHT}`).join("");
    };

    const labels = (selector, side, marks) => {
      figure.querySelector(selector).replaceChildren(...marks.map(([text, percent]) => {
        const label = document.createElement("span");
        label.textContent = text;
        label.style[side] = `${percent}%`;
        return label;
      }));
    };

    const draw = () => {
      const edges = data.bands.map((_, band) => shownSizes(band));
      const total = edges.length ? edges[edges.length - 1] : data.active;
      let most = total.reduce((one, other) => Math.max(one, other), 1);
      if (!hidden.has("reserved")) {
        most = data.reserved.reduce((one, other) => Math.max(one, other), most);
      }
      if (data.capacity !== null && !hidden.has("capacity")) most = Math.max(most, data.capacity);
      view.top = most + Math.floor(most / 20);
      const set = (selector, path) => figure.querySelector(selector).setAttribute("d", path);
      data.bands.forEach((_, band) => {
        set(`.area[data-band="${band}"]`,
          hidden.has(band) ? "" : `${line(edges[band])}V${HEIGHT}H0Z`);
      });
      const capacity = Math.max(0, number(y(data.capacity ?? 0)));
      const paths = {
        reserved: () => line(data.reserved),
        capacity: () => (data.capacity === null ? "" : `M0 ${capacity}H${WIDTH}`),
        steps: () => verticals(data.steps),
        failures: () => verticals(data.failures),
      };
      for (const [name, path] of Object.entries(paths)) {
        set(`.line.line-${name}`, hidden.has(name) ? "" : path());
      }
      const bytes = byteMarks(view.top);
      set(".grid", bytes.map((mark) => `M0 ${number(y(mark))}H${WIDTH}`).join(""));
      labels(".y-axis", "top", bytes.map((mark) => [sizeText(mark), y(mark) / 4]));
      labels(".x-axis", "left", eventMarks(view.from, view.to)
        .map((mark) => [mark.toLocaleString("en"), x(mark) / 10]));
      const within = (mark) => x(mark) >= 0 && x(mark) <= WIDTH;
      if (figure.querySelector(".second-axis")) {
        labels(".second-axis", "left", eventMarks(view.from, view.to).map((mark) =>
          [secondsText(data.seconds[pointAt(data.points, mark)]), x(mark) / 10]));
      }
      if (figure.querySelector(".step-axis")) {
        let last = -Infinity;
        const room = data.steps.map((step, index) => [step, index + 1]).filter(([step]) => {
          const isShown = within(step) && x(step) - last >= STEP_LABEL;
          if (isShown) last = x(step);
          return isShown;
        });
        labels(".step-axis", "left", room.map(([step, count]) =>
          [`step ${count.toLocaleString("en")}`, x(step) / 10]));
      }
      figure.querySelectorAll(".phases span").forEach((span, index) => {
        const [, first, end] = data.phases[index];
        const [start, stop] = [first, end].map((one) => Math.min(Math.max(x(one), 0), WIDTH));
        span.hidden = start >= stop;
        span.style.left = `${start / 10}%`;
        span.style.width = `${(stop - start) / 10}%`;
      });
      const left = x(data.points[data.peak]);
      peak.hidden = left < 0 || left > WIDTH;
      peak.style.left = `${left / 10}%`;
      peak.style.top = `${y(total[data.peak]) / 4}%`;
      peak.classList.toggle("left", left > 600);
      const at = chosen === null ? -1 : x(chosen);
      choice.hidden = at < 0 || at > WIDTH;
      choice.style.left = `${at / 10}%`;
      mark();
    };

    const choose = (moment) => {
      if (!("choosesMoment" in figure.dataset)) return;  // nothing else on the page shows it
      chosen = moment;
      figure.dispatchEvent(new CustomEvent("memlab-moment", { detail: moment }));
      draw();
    };

    const facts = (index) => {
      const [place, source] = data.places[data.place[index]];
      const seconds = data.seconds[index];
      return {
        title: `event ${data.points[index].toLocaleString("en")}`
          + (seconds ? `, ${seconds.toFixed(3)} s` : ""),
        rows: [
          ["in use", data.active[index]],
          ...data.bands.map((band) => [band.name, band.sizes[index]]).reverse(),
          ["reserved", data.reserved[index]],
        ].filter(([name, bytes]) => bytes || name === "in use"),
        place,
        source,
      };
    };

    const element = (tag, text) => {
      const made = document.createElement(tag);
      made.textContent = text;
      return made;
    };

    const mark = () => {
      const left = current === null ? -1 : x(data.points[current]);
      const outside = left < 0 || left > WIDTH;
      cursor.hidden = outside;
      reading.hidden = outside;
      if (outside) return;
      const { title, rows, place, source } = facts(current);
      cursor.style.left = `${left / 10}%`;
      reading.style.left = left < WIDTH / 2 ? `calc(${left / 10}% + 10px)` : "auto";
      reading.style.right = left < WIDTH / 2 ? "auto" : `calc(${100 - left / 10}% + 10px)`;
      const table = document.createElement("table");
      for (const [name, bytes] of rows) {
        const row = table.insertRow();
        row.append(element("td", name), element("td", sizeText(bytes)));
        row.lastChild.className = "number";
      }
      const parts = [element("div", title), table];
      if (place) parts.push(element("code", place));
      if (source) parts.push(document.createElement("br"), element("code", source));
      reading.replaceChildren(...parts);
      plot.setAttribute("aria-valuenow", data.points[current]);
      plot.setAttribute("aria-valuetext", [
        title, ...rows.map(([name, bytes]) => `${name} ${sizeText(bytes)}`), place, source,
      ].filter(Boolean).join(", "));
    };

    const moveTo = (index) => {
      current = Math.min(Math.max(index, 0), data.points.length - 1);
      const moment = data.points[current];
      const width = view.to - view.from;
      if (moment < view.from || moment > view.to) {
        view.from = Math.min(Math.max(moment - width / 2, 0), data.events - width);
        view.to = view.from + width;
        draw();
      } else {
        mark();
      }
    };

    const show = (from, to) => {
      view.from = Math.max(0, from);
      view.to = Math.min(data.events, Math.max(to, view.from + 1));
      draw();
    };

    const zoom = (factor) => {
      const middle = current === null ? (view.from + view.to) / 2 : data.points[current];
      const width = Math.min(Math.max((view.to - view.from) * factor, 1), data.events);
      const from = Math.min(Math.max(middle - width / 2, 0), data.events - width);
      show(from, from + width);
    };

    const momentOf = (event) => {
      const box = plot.getBoundingClientRect();
      const share = Math.min(Math.max((event.clientX - box.left) / box.width, 0), 1);
      return view.from + share * (view.to - view.from);
    };

    plot.addEventListener("pointermove", (event) => {
      const moment = momentOf(event);
      current = pointAt(data.points, moment);
      mark();
      if (dragged === null) return;
      const [left, right] = [dragged, moment].sort((one, other) => one - other).map(x);
      selection.hidden = right - left < 5;
      selection.style.left = `${left / 10}%`;
      selection.style.width = `${(right - left) / 10}%`;
    });
    plot.addEventListener("pointerdown", (event) => {
      if (event.button || event.pointerType === "touch") return;
      dragged = momentOf(event);
      plot.setPointerCapture(event.pointerId);
    });
    plot.addEventListener("pointerup", (event) => {
      if (dragged === null) return;
      const [from, to] = [dragged, momentOf(event)].sort((one, other) => one - other);
      dragged = null;
      if (!selection.hidden) show(from, to);
      else if (current !== null) choose(data.points[current]);
      selection.hidden = true;
    });
    plot.addEventListener("pointercancel", () => {
      dragged = null;
      selection.hidden = true;
    });
    plot.addEventListener("pointerleave", () => {
      if (document.activeElement === plot) return;
      current = null;
      mark();
    });
    plot.addEventListener("dblclick", () => show(0, data.events));

    const far = Math.max(1, Math.round(data.points.length / 20));
    const keys = {
      ArrowRight: () => moveTo((current ?? -1) + 1),
      ArrowLeft: () => moveTo((current ?? data.points.length) - 1),
      ArrowUp: () => moveTo((current ?? -1) + 1),
      ArrowDown: () => moveTo((current ?? data.points.length) - 1),
      PageUp: () => moveTo((current ?? 0) + far),
      PageDown: () => moveTo((current ?? 0) - far),
      Home: () => moveTo(0),
      End: () => moveTo(data.points.length - 1),
      p: () => moveTo(data.peak),
      P: () => moveTo(data.peak),
      "+": () => zoom(0.5),
      "=": () => zoom(0.5),
      "-": () => zoom(2),
      Enter: () => { if (current !== null) choose(data.points[current]); },
      Escape: () => {
        show(0, data.events);
        choose(null);
      },
    };
    plot.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in keys)) return;
      event.preventDefault();
      keys[event.key]();
    });

    for (const button of figure.querySelectorAll(".legend button")) {
      button.addEventListener("click", () => {
        const name = button.dataset.line ?? Number(button.dataset.band);
        const shows = hidden.has(name);
        if (shows) hidden.delete(name);
        else hidden.add(name);
        button.setAttribute("aria-pressed", String(shows));
        draw();
      });
    }
    draw();
  };

  document.querySelectorAll(".memlab-timeline").forEach(begin);
})();
