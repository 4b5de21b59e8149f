// Draws the figures. What a figure shows follows from its content and three choices: the options of its menus,
// the lines that are hidden, and the colours of the page. Every change draws it again from these.
(function () {
  "use strict";
  const twins = JSON.parse(document.getElementById("dark-twins").textContent);
  const toHex = (r, g, b) => "#" + [r, g, b].map((v) => Number(v).toString(16).padStart(2, "0")).join("");
  const darkOf = new Map(Object.entries(twins).map(([light, dark]) => [light.toLowerCase(), dark]));
  let printing = false;

  // Colours -----------------------------------------------------------------------------------------------
  const probe = document.createElement("span");
  probe.hidden = true;
  document.body.append(probe);
  function colour(variable) {
    probe.style.color = `var(${variable})`;
    return window.getComputedStyle(probe).color;
  }

  function isDark() {
    if (printing) return false;
    const chosen = document.documentElement.dataset.scheme;
    return chosen ? chosen === "dark" : window.matchMedia("(prefers-color-scheme: dark)").matches;
  }

  function adapted(value, ink) {
    if (typeof value !== "string") return value;
    const plain = value.toLowerCase();
    if (darkOf.has(plain)) return darkOf.get(plain);
    if (["black", "#000", "#000000", "#2a3f5f", "#444"].includes(plain)) return ink;
    const parts = plain.match(/^rgba?\((\d+),\s*(\d+),\s*(\d+)(?:,\s*([\d.]+))?\)$/);
    if (!parts) return value;
    const twin = darkOf.get(toHex(parts[1], parts[2], parts[3]));
    if (!twin) return value;
    const channels = [1, 3, 5].map((at) => parseInt(twin.slice(at, at + 2), 16));
    return `rgba(${channels.join(",")},${parts[4] === undefined ? 1 : parts[4]})`;
  }

  // Exchanges every colour for its twin, in place.
  function darken(thing, ink) {
    for (const key of Object.keys(thing)) {
      const value = thing[key];
      if (/color$/i.test(key)) {
        thing[key] = Array.isArray(value) ? value.map((item) => adapted(item, ink)) : adapted(value, ink);
      }
      if (value && typeof value === "object") darken(value, ink);
    }
  }

  // Menus -------------------------------------------------------------------------------------------------
  function setPath(thing, path, value) {
    const keys = path.replace(/\[(\d+)\]/g, ".$1").split(".");
    const last = keys.pop();
    let at = thing;
    for (const key of keys) {
      if (at[key] === null || typeof at[key] !== "object") at[key] = {};
      at = at[key];
    }
    at[last] = value;
  }

  function restyle(data, changes, indices) {
    const chosen = indices === undefined ? data.map((_, i) => i) : [].concat(indices);
    for (const [path, value] of Object.entries(changes || {})) {
      chosen.forEach((index, turn) => {
        if (data[index]) setPath(data[index], path, Array.isArray(value) ? value[turn % value.length] : value);
      });
    }
  }

  function relayout(layout, changes) {
    for (const [path, value] of Object.entries(changes || {})) setPath(layout, path, value);
  }

  function choose(data, layout, option) {
    const [first, second, third] = option.args;
    if (option.method === "relayout") relayout(layout, first);
    else if (option.method === "restyle") restyle(data, first, second);
    else {
      restyle(data, first, third);
      relayout(layout, second);
    }
  }

  // Layout ------------------------------------------------------------------------------------------------
  // Plotly does not break the lines of a title; one that is longer than its axis would be cut off.
  function broken(text, pixels, size) {
    if (text.includes("<")) return text;
    const room = Math.max(8, Math.floor(pixels / (0.55 * size)));
    const lines = [""];
    for (const word of text.split(" ")) {
      const line = lines[lines.length - 1];
      if (line && plainText(line).length + 1 + plainText(word).length > room) lines.push(word);
      else lines[lines.length - 1] = line ? `${line} ${word}` : word;
    }
    return lines.join("<br>");
  }

  function plainText(markup) {
    return new DOMParser().parseFromString(markup.replace(/<br\s*\/?>/gi, " "), "text/html").body.textContent;
  }

  // Names below an axis are broken too, before Plotly turns them.
  function breakCategories(axis, categories, pixels, size) {
    if (axis.type !== "category" || axis.tickvals || !categories.length) return;
    axis.tickvals = categories;
    axis.ticktext = categories.map((name) => broken(String(name), (0.9 * pixels) / categories.length, size));
    axis.tickmode = "array";
  }

  function dressed(data, layout, width, height) {
    const narrow = width < 520;
    const size = narrow ? 12 : 13;
    const ink = colour("--ink");
    const muted = colour("--muted");
    const line = colour("--line");
    const margin = { l: narrow ? 44 : 60, r: 14, t: 14, b: 44 };
    layout.font = Object.assign({}, layout.font, {
      family: window.getComputedStyle(document.body).fontFamily,
      size,
      color: ink,
    });
    Object.assign(layout, {
      width,
      height,
      autosize: false,
      showlegend: false,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      colorway: Object.entries(twins).map(([light, dark]) => (isDark() ? dark : light)),
      margin: Object.assign(margin, layout.margin),
      hovermode: layout.hovermode === undefined ? "closest" : layout.hovermode,
      hoverlabel: {
        bgcolor: colour("--surface"),
        bordercolor: line,
        font: { color: ink, size },
        namelength: -1,
        align: "left",
      },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: muted, activecolor: ink },
    });
    delete layout.title;
    const axes = Object.keys(layout).filter((key) => /^[xy]axis\d*$/.test(key));
    for (const name of new Set(["xaxis", "yaxis", ...axes])) {
      const axis = (layout[name] = Object.assign({ automargin: true, ticks: "outside", ticklen: 4 }, layout[name]));
      Object.assign(axis, {
        gridcolor: line,
        zerolinecolor: line,
        linecolor: muted,
        tickcolor: line,
        zerolinewidth: 1,
      });
      // Plotly sets powers of ten larger than other numbers.
      axis.tickfont = Object.assign({ size: axis.type === "log" ? 0.82 * size : size }, axis.tickfont, { color: muted });
      if (axis.type === "log" && axis.dtick === undefined) {
        axis.minor = Object.assign({ showgrid: false }, axis.minor);
        if (axis.nticks === undefined) axis.nticks = narrow ? 5 : 8;
      }
      const domain = axis.domain || [0, 1];
      const length = (domain[1] - domain[0]) * (name[0] === "x" ? width - 80 : height - 90);
      if (name[0] === "x") {
        const drawn = data.filter((trace) => (trace.xaxis || "x") === name.replace("axis", "") && trace.visible !== false);
        const categories = drawn.flatMap((trace) => (Array.isArray(trace.x) ? trace.x : []));
        breakCategories(axis, [...new Set(categories)], length, size);
      }
      if (axis.title) {
        const title = typeof axis.title === "string" ? { text: axis.title } : axis.title;
        title.text = broken(title.text || "", length, size);
        title.font = Object.assign({}, title.font, { color: ink, size });
        if (title.standoff === undefined) title.standoff = 12;
        axis.title = title;
      }
    }
    for (const annotation of layout.annotations || []) {
      annotation.font = Object.assign({ size }, annotation.font, { color: ink });
    }
    return layout;
  }

  // Over one or two decades Plotly labels a logarithmic axis with tiny digits between the powers of ten. Whole
  // numbers at 1, 2 and 5 can be read; says whether there was such an axis.
  function spellOut(layout, full) {
    const short = Object.keys(layout).filter((name) => {
      const axis = /^[xy]axis\d*$/.test(name) && full[name];
      return axis && axis.type === "log" && /^D[12]$/.test(axis.dtick) && !layout[name].tickformat;
    });
    for (const name of short) {
      const size = full.font.size;
      Object.assign(layout[name], { dtick: "D2", tickformat: "~g", minor: { showgrid: false } });
      layout[name].tickfont = Object.assign({}, layout[name].tickfont, { size });
    }
    return short.length > 0;
  }

  // Legend ------------------------------------------------------------------------------------------------
  const SVG = "http://www.w3.org/2000/svg";
  const DASHES = { dash: "6 3", dot: "2 2.5", dashdot: "6 2.5 1.5 2.5", longdash: "9 3", longdashdot: "9 2.5 1.5 2.5" };

  function shape(name, attributes) {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    return element;
  }

  function swatch(trace) {
    const picture = shape("svg", { viewBox: "0 0 26 10", width: 26, height: 10, "aria-hidden": "true" });
    const single = (value) => (typeof value === "string" ? value : undefined);
    const mode = trace.mode || "";
    const marker = trace.marker || {};
    if (trace.type && trace.type.startsWith("scatter")) {
      const stroke = single((trace.line || {}).color) || single(marker.color) || "currentColor";
      if (mode.includes("lines")) {
        const dash = DASHES[(trace.line || {}).dash];
        const lineShape = shape("path", { d: "M1 5h24", stroke, "stroke-width": (trace.line || {}).width || 2 });
        if (dash) lineShape.setAttribute("stroke-dasharray", dash);
        picture.append(lineShape);
      }
      if (mode.includes("markers")) {
        picture.append(shape("circle", { cx: 13, cy: 5, r: 3.2, fill: single(marker.color) || stroke }));
      }
      if (!mode.includes("lines") && !mode.includes("markers") && trace.fillcolor) {
        picture.append(shape("rect", { x: 4, y: 0, width: 18, height: 10, fill: trace.fillcolor }));
      }
    } else {
      const fill = single(marker.color) || single(trace.fillcolor) || single((trace.line || {}).color);
      picture.append(shape("rect", { x: 8, y: 0, width: 10, height: 10, rx: 1.5, fill: fill || "currentColor" }));
    }
    return picture;
  }

  // A figure ----------------------------------------------------------------------------------------------
  class Drawing {
    constructor(element) {
      this.element = element;
      this.canvas = element.querySelector(".canvas");
      this.legend = element.querySelector(".legend");
      this.content = JSON.parse(element.querySelector(".figure-data").textContent);
      this.chosen = new Map(); // by key of a line: whether the reader wants to see it
      this.selects = Array.from(element.querySelectorAll("select[data-menu]"));
      for (const select of this.selects) select.addEventListener("change", () => this.draw());
      this.width = 0;
      new ResizeObserver(() => {
        const width = Math.floor(this.canvas.clientWidth);
        if (width > 0 && width !== this.width && !printing) drawSoon(this);
      }).observe(this.canvas);
    }

    keyOf(trace, index) {
      return trace.legendgroup ? `group ${trace.legendgroup}` : trace.name ? `name ${trace.name}` : `trace ${index}`;
    }

    draw(printWidth) {
      const width = printWidth || Math.floor(this.canvas.clientWidth);
      if (!width) return;
      this.width = width;
      const { data, layout } = structuredClone({ data: this.content.data, layout: this.content.layout });
      for (const select of this.selects) {
        choose(data, layout, structuredClone(this.content.menus[select.dataset.menu][select.selectedIndex]));
      }
      if (isDark()) {
        const ink = colour("--ink");
        darken(data, ink);
        darken(layout, ink);
      }
      for (const bars of data.flatMap((trace) => [trace.error_x, trace.error_y])) {
        if (bars && !bars.color) bars.color = colour("--muted");
      }
      const offered = data.map((trace) => trace.visible !== false);
      data.forEach((trace, index) => {
        const key = this.keyOf(trace, index);
        const wanted = this.chosen.has(key) ? this.chosen.get(key) : trace.visible !== "legendonly";
        trace.visible = offered[index] && wanted;
      });
      const height = this.content.layout.height || (width < 520 ? 320 : 400);
      const config = {
        displaylogo: false,
        displayModeBar: width < 520 ? false : "hover",
        modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "sendChartToCloud"],
        plotlyServerURL: "",
        responsive: false,
        showSendToCloud: false,
      };
      // A zoom is kept while the same data is shown.
      layout.uirevision = this.selects.map((select) => select.selectedIndex).join();
      Plotly.react(this.canvas, data, dressed(data, layout, width, height), config);
      if (spellOut(layout, this.canvas._fullLayout)) Plotly.react(this.canvas, data, layout, config);
      this.drawLegend(data, offered);
      this.element.dataset.drawn = "true";
    }

    drawLegend(data, offered) {
      const full = this.canvas._fullData || data;
      const focused = this.legend.contains(document.activeElement) ? document.activeElement.dataset.key : null;
      const items = new Map();
      data.forEach((trace, index) => {
        const key = this.keyOf(trace, index);
        const named = Boolean(trace.name) && trace.showlegend !== false;
        if (offered[index] && named && !items.has(`${key}\n${trace.name}`)) {
          items.set(`${key}\n${trace.name}`, { key, trace, full: full[index] });
        }
      });
      this.legend.replaceChildren();
      for (const item of items.values()) {
        const button = document.createElement("button");
        button.type = "button";
        button.dataset.key = item.key;
        button.setAttribute("aria-pressed", String(item.trace.visible));
        // A hidden trace has no defaults; its own colours are all that there is.
        const source = item.full && item.full.visible === true ? item.full : item.trace;
        button.append(swatch(Object.assign({ type: "scatter", mode: "lines" }, source)), plainText(item.trace.name));
        button.addEventListener("click", () => {
          this.chosen.set(item.key, !item.trace.visible);
          this.draw();
        });
        this.legend.append(button);
        if (item.key === focused) button.focus();
      }
    }
  }

  // One at a time, so that a page with many figures can be scrolled while they appear.
  const waiting = new Set();
  function drawSoon(drawing) {
    if (!waiting.size) window.setTimeout(drawNext);
    waiting.add(drawing);
  }
  function drawNext() {
    const [drawing] = waiting;
    drawing.draw();
    waiting.delete(drawing);
    if (waiting.size) window.setTimeout(drawNext);
  }

  const drawings = Array.from(document.querySelectorAll("figure.plot")).map((element) => new Drawing(element));
  const redraw = () => drawings.forEach((drawing) => drawing.draw());
  document.addEventListener("scheme", redraw);
  window.addEventListener("beforeprint", () => {
    printing = true;
    document.documentElement.classList.add("printing");
    drawings.forEach((drawing) => drawing.draw(640));
  });
  window.addEventListener("afterprint", () => {
    printing = false;
    document.documentElement.classList.remove("printing");
    redraw();
  });
})();
