(() => {
  "use strict";
  const begin = (graph) => {
    const calls = [...graph.querySelectorAll(".call")].map((element) => ({
      element,
      depth: Number(element.getAttribute("aria-level")),
      start: Number(element.dataset.start),
      size: Number(element.dataset.size),
      text: element.title.toLowerCase(),
    }));
    const byElement = new Map(calls.map((call) => [call.element, call]));
    const said = graph.querySelector(".said");
    const search = graph.querySelector("input");
    const matches = graph.querySelector(".matches");
    let zoomed = calls[0];

    const isIn = (call, outer) => call.start >= outer.start
      && call.start + call.size <= outer.start + outer.size;

    const zoom = (outer) => {
      zoomed = outer;
      const whole = Math.max(outer.size, 1);
      const room = graph.querySelector(".calls").clientWidth;
      for (const call of calls) {
        const around = call.depth < outer.depth && isIn(outer, call);
        const inside = call.depth >= outer.depth && isIn(call, outer);
        call.element.hidden = !around && !inside;
        call.element.classList.toggle("around", around);
        const share = around ? 1 : call.size / whole;
        call.element.style.left = around ? "0" : `${(100 * (call.start - outer.start)) / whole}%`;
        call.element.style.width = `${100 * share}%`;
        call.element.classList.toggle("narrow", share * room < 12);
      }
    };

    const tell = (call) => {
      said.textContent = call ? call.element.title : "\u00a0";
    };

    const focus = (call) => {
      if (!call) return;
      for (const one of calls) one.element.tabIndex = -1;
      call.element.tabIndex = 0;
      call.element.focus();
    };

    const shown = () => calls.filter((call) => !call.element.hidden);
    const caller = (call) => shown().find((one) => one.depth === call.depth - 1 && isIn(call, one));
    const callee = (call) => shown().find((one) => one.depth === call.depth + 1 && isIn(one, call));
    const beside = (call, step) => {
      const row = shown().filter((one) => one.depth === call.depth);
      return row[row.indexOf(call) + step];
    };

    const showAll = () => {
      const call = zoomed;
      zoom(calls[0]);
      if (graph.querySelector(".calls").contains(document.activeElement)) focus(call);
    };

    const find = () => {
      const wanted = search.value.trim().toLowerCase();
      let [count, bytes, end] = [0, 0, -1];
      for (const call of calls) {
        const found = wanted !== "" && call.depth > 1 && call.text.includes(wanted);
        call.element.classList.toggle("found", found);
        if (!found) continue;
        count += 1;
        // Calls in a call that was found are counted with it.
        if (call.start >= end) {
          bytes += call.size;
          end = call.start + call.size;
        }
      }
      const share = ((100 * bytes) / Math.max(calls[0].size, 1)).toFixed(1);
      matches.textContent = wanted === "" ? ""
        : `${count} ${count === 1 ? "call" : "calls"}, ${sizeText(bytes)} (${share}%)`;
    };

    const area = graph.querySelector(".calls");
    const callOf = (event) => byElement.get(event.target.closest(".call"));
    area.addEventListener("click", (event) => {
      const call = callOf(event);
      if (call) { zoom(call); focus(call); }
    });
    area.addEventListener("mouseover", (event) => tell(callOf(event)));
    area.addEventListener("focusin", (event) => tell(callOf(event)));
    area.addEventListener("keydown", (event) => {
      const call = callOf(event);
      if (!call || event.ctrlKey || event.metaKey || event.altKey) return;
      const keys = {
        Enter: () => zoom(call),
        " ": () => zoom(call),
        Escape: showAll,
        ArrowUp: () => focus(caller(call)),
        ArrowDown: () => focus(callee(call)),
        ArrowLeft: () => focus(beside(call, -1)),
        ArrowRight: () => focus(beside(call, 1)),
        Home: () => focus(calls[0]),
      };
      if (!(event.key in keys)) return;
      event.preventDefault();
      keys[event.key]();
    });
    graph.querySelector(".all").addEventListener("click", showAll);
    search.addEventListener("input", find);
    window.addEventListener("resize", () => zoom(zoomed));
    zoom(calls[0]);
  };

  document.querySelectorAll(".memlab-flame").forEach(begin);
})();
