(() => {
  "use strict";
  const panelsOf = (group) => [...group.children].filter((one) => one.classList.contains("panel"));

  const choose = (tab, hasFocus) => {
    for (const other of tab.parentElement.children) {
      const chosen = other === tab;
      other.setAttribute("aria-selected", String(chosen));
      other.tabIndex = chosen ? 0 : -1;
      document.getElementById(other.getAttribute("aria-controls")).hidden = !chosen;
    }
    if (hasFocus) tab.focus();
    // What was drawn while it was hidden finds its width.
    window.dispatchEvent(new Event("resize"));
  };

  const begin = (group) => {
    const panels = panelsOf(group);
    if (panels.length < 2) return;
    const list = document.createElement("div");
    list.className = "tablist";
    list.setAttribute("role", "tablist");
    list.setAttribute("aria-label", group.dataset.label);
    for (const panel of panels) {
      const tab = document.createElement("button");
      tab.type = "button";
      tab.id = `${panel.id}-tab`;
      tab.textContent = panel.dataset.tab;
      tab.setAttribute("role", "tab");
      tab.setAttribute("aria-controls", panel.id);
      panel.setAttribute("role", "tabpanel");
      panel.setAttribute("aria-labelledby", tab.id);
      panel.tabIndex = 0;
      list.append(tab);
    }
    list.addEventListener("click", (event) => {
      const tab = event.target.closest("[role=tab]");
      if (tab) choose(tab, true);
    });
    list.addEventListener("keydown", (event) => {
      const tabs = [...list.children];
      const place = tabs.indexOf(event.target.closest("[role=tab]"));
      const places = {
        ArrowLeft: (place - 1 + tabs.length) % tabs.length,
        ArrowRight: (place + 1) % tabs.length,
        Home: 0,
        End: tabs.length - 1,
      };
      if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in places)) return;
      event.preventDefault();
      choose(tabs[places[event.key]], true);
    });
    group.prepend(list);
    choose(list.firstElementChild, false);
  };

  const rowOf = (place, number) => [...document.querySelectorAll(`#${place} tbody tr`)]
    .find((row) => parseInt(row.firstElementChild.textContent, 10) === number);

  // A line that no link of the page leads to gets its address when the reader asks for it.
  const withAddress = (name) => {
    const found = document.getElementById(name);
    const [, place, number] = name.match(/^(d\d+-\d+)-(\d+)$/) || [];
    if (found || !place) return found;
    const row = rowOf(place, Number(number));
    if (!row) return null;
    row.id = name;
    location.replace(location.hash);
    return row;
  };

  const address = (event) => {
    const head = event.target.closest(".memlab-source tbody th");
    if (!head || event.target.closest("[title]")) return;
    const place = head.closest(".function").id;
    location.hash = head.parentElement.id || `${place}-${parseInt(head.textContent, 10)}`;
  };

  // A link may lead into a panel that is not open.
  const reveal = () => {
    let target = null;
    try {
      target = withAddress(decodeURIComponent(location.hash.slice(1)));
    } catch {
      return;  // not an address of this page
    }
    if (!target || !target.closest(".memlab-report")) return;
    for (let one = target; one; one = one.parentElement) {
      const tab = one.hidden && document.getElementById(`${one.id}-tab`);
      if (tab) choose(tab, false);
      if (one.tagName === "DETAILS") one.open = true;
      if (one.hidden) one.dispatchEvent(new Event("memlab-reveal", { bubbles: true }));
    }
    const inner = target.querySelector("details.idle");
    if (inner) inner.open = true;
    target.scrollIntoView();
  };

  document.querySelectorAll(".memlab-report .tabbed").forEach(begin);
  document.addEventListener("click", address);
  window.addEventListener("hashchange", reveal);
  reveal();
})();
