// Makes a tablist work: a click or the arrow keys choose a tab.

export function tabs(list, chosen = () => {}) {
  const all = [...list.querySelectorAll("[role=tab]")];
  function choose(tab) {
    for (const each of all) {
      const is = each === tab;
      each.setAttribute("aria-selected", String(is));
      each.tabIndex = is ? 0 : -1;
      document.getElementById(each.getAttribute("aria-controls")).hidden = !is;
    }
    chosen(tab);
  }
  list.addEventListener("click", (event) => all.includes(event.target) && choose(event.target));
  list.addEventListener("keydown", (event) => {
    const to = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const at = all.indexOf(document.activeElement);
    if (!to || at < 0) return;
    const next = all[(at + to + all.length) % all.length];
    next.focus();
    choose(next);
  });
  choose(all.find((tab) => tab.getAttribute("aria-selected") === "true") ?? all[0]);
  return choose;
}
