// The index can be sorted and filtered, code can be copied, one size of the results is shown at a time.
(function () {
  "use strict";
  const root = document.documentElement;
  const prefersDark = window.matchMedia("(prefers-color-scheme: dark)");
  const all = (selector, within) => Array.from((within || document).querySelectorAll(selector));

  // Colours -----------------------------------------------------------------------------------------------
  function isDark() {
    return root.dataset.scheme ? root.dataset.scheme === "dark" : prefersDark.matches;
  }

  function announceScheme() {
    for (const button of all(".scheme-toggle")) {
      const next = isDark() ? "light" : "dark";
      button.querySelector(".scheme-name").textContent = next === "dark" ? "Dark" : "Light";
      button.setAttribute("aria-label", `Switch to ${next} colours`);
    }
  }

  function schemeChanged() {
    announceScheme();
    document.dispatchEvent(new CustomEvent("scheme"));
  }

  for (const button of all(".scheme-toggle")) {
    button.addEventListener("click", () => {
      root.dataset.scheme = isDark() ? "light" : "dark";
      try {
        window.localStorage.setItem("assay-scheme", root.dataset.scheme);
      } catch (error) {
        // The choice then lasts as long as the page.
      }
      schemeChanged();
    });
  }
  prefersDark.addEventListener("change", schemeChanged);
  window.addEventListener("storage", (event) => {
    if (event.key !== "assay-scheme") return;
    if (event.newValue) root.dataset.scheme = event.newValue;
    else delete root.dataset.scheme;
    schemeChanged();
  });
  announceScheme();

  // Copying -----------------------------------------------------------------------------------------------
  async function copy(text) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch (error) {
      const area = document.createElement("textarea");
      area.value = text;
      area.className = "unseen";
      document.body.append(area);
      area.select();
      const done = document.execCommand("copy");
      area.remove();
      return done;
    }
  }

  for (const button of all("button.copy")) {
    const label = button.getAttribute("aria-label");
    button.addEventListener("click", async () => {
      const done = await copy(button.parentElement.querySelector("code").textContent);
      button.textContent = done ? "Copied" : "Not copied";
      button.setAttribute("aria-label", button.textContent);
      button.focus();
      window.setTimeout(() => {
        button.textContent = "Copy";
        button.setAttribute("aria-label", label);
      }, 1800);
    });
  }

  // Sorting -----------------------------------------------------------------------------------------------
  for (const table of all("table.sortable")) {
    const body = table.tBodies[0];
    const headers = all("thead th", table);
    const original = Array.from(body.rows);
    const collator = new Intl.Collator("en", { numeric: true, sensitivity: "base" });

    const sort = (column, direction) => {
      const kind = headers[column].dataset.sort;
      const keyed = original.map((row) => {
        const cell = row.cells[column];
        const value = "value" in cell.dataset ? cell.dataset.value : cell.textContent.trim();
        return { row, value: kind === "number" ? Number(value) : value };
      });
      const sign = direction === "ascending" ? 1 : -1;
      const compare = kind === "number" ? (a, b) => a - b : collator.compare;
      keyed.sort((a, b) => sign * compare(a.value, b.value));
      body.append(...keyed.map((item) => item.row));
      headers.forEach((header, index) => {
        if (index === column) header.setAttribute("aria-sort", direction);
        else header.removeAttribute("aria-sort");
      });
    };

    headers.forEach((header, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "sort";
      if (header.title) button.title = header.title;
      header.removeAttribute("title");
      button.append(...header.childNodes);
      header.append(button);
      button.addEventListener("click", () => {
        const now = header.getAttribute("aria-sort");
        const first = header.dataset.sort === "number" ? "descending" : "ascending";
        const other = first === "ascending" ? "descending" : "ascending";
        sort(column, now === first ? other : first);
      });
    });
  }

  // Filtering ---------------------------------------------------------------------------------------------
  const filters = document.querySelector("form.filters");
  if (filters) {
    const controls = {
      q: document.getElementById("filter-text"),
      family: document.getElementById("filter-family"),
      outcome: document.getElementById("filter-outcome"),
    };
    const rows = all("table.methods tbody tr").map((element) => ({
      element,
      text: element.dataset.text.toLowerCase(),
      family: element.dataset.family,
      outcomes: element.dataset.outcome.split(" "),
    }));
    const nothing = document.querySelector(".nothing");
    const box = document.querySelector("table.methods").parentElement;

    const filter = () => {
      const words = controls.q.value.toLowerCase().split(/\s+/).filter(Boolean);
      const family = controls.family.value;
      const outcome = controls.outcome.value;
      let shown = 0;
      for (const row of rows) {
        const fits =
          (!family || row.family === family) &&
          (!outcome || row.outcomes.includes(outcome)) &&
          words.every((word) => row.text.includes(word));
        row.element.hidden = !fits;
        shown += fits ? 1 : 0;
      }
      filters.querySelector(".count").textContent =
        shown === rows.length ? `${shown} methods` : `${shown} of ${rows.length} methods`;
      nothing.hidden = shown > 0;
      box.hidden = shown === 0;
    };

    // What is chosen stays in the address, so that it survives a visit to a study and can be linked to.
    const remember = () => {
      const chosen = new URLSearchParams();
      for (const [name, control] of Object.entries(controls)) if (control.value) chosen.set(name, control.value);
      const hash = chosen.toString();
      try {
        window.history.replaceState(null, "", hash ? `#${hash}` : window.location.href.split("#")[0]);
      } catch (error) {
        // Some browsers do not let a page from disk do this.
      }
    };
    const recall = () => {
      const chosen = new URLSearchParams(window.location.hash.slice(1));
      for (const [name, control] of Object.entries(controls)) {
        control.value = chosen.get(name) || "";
        if (control.selectedIndex === -1) control.value = "";
      }
      filter();
    };
    const changed = () => {
      filter();
      remember();
    };
    filters.addEventListener("submit", (event) => event.preventDefault());
    filters.addEventListener("input", changed);
    filters.addEventListener("change", changed);
    document.querySelector("button.reset").addEventListener("click", () => {
      filters.reset();
      changed();
      controls.q.focus();
    });
    window.addEventListener("hashchange", recall);
    recall();
  }

  // Sizes -------------------------------------------------------------------------------------------------
  const sizes = all("nav.sizes a");
  if (sizes.length) {
    const show = (size) => {
      for (const panel of all(".results")) panel.classList.toggle("other-size", panel.dataset.size !== size);
      for (const entry of all("nav.contents li[data-size]"))
        entry.classList.toggle("other-size", entry.dataset.size !== size);
      for (const link of sizes) {
        if (link.dataset.size === size) link.setAttribute("aria-current", "true");
        else link.removeAttribute("aria-current");
      }
    };
    const follow = () => {
      const target = window.location.hash.length > 1 && document.getElementById(window.location.hash.slice(1));
      const panel = target && target.closest(".results");
      if (!panel) return;
      show(panel.dataset.size);
      target.scrollIntoView();
    };
    for (const link of sizes) {
      link.addEventListener("click", (event) => {
        event.preventDefault();
        show(link.dataset.size);
      });
    }
    window.addEventListener("hashchange", follow);
    show("1");
    follow();
  }

  // What is shown in the list of contents -------------------------------------------------------------------
  const entries = new Map();
  for (const link of all("nav.contents a")) {
    const heading = document.getElementById(link.getAttribute("href").slice(1));
    if (heading) entries.set(heading, link);
  }
  if (entries.size) {
    const mark = () => {
      let current = null;
      for (const [heading, link] of entries) {
        const box = heading.getBoundingClientRect();
        if (box.height && box.top < 140) current = link;
        link.removeAttribute("aria-current");
      }
      if (current) current.setAttribute("aria-current", "true");
    };
    let waiting = false;
    const soon = () => {
      if (waiting) return;
      waiting = true;
      window.requestAnimationFrame(() => {
        waiting = false;
        mark();
      });
    };
    window.addEventListener("scroll", soon, { passive: true });
    window.addEventListener("resize", soon);
    mark();
  }
})();
