"""The page's script: hovering, opening what a link points into, and printing. All of it optional.

It writes foreign text with `textContent` only.
"""

SCRIPT = r"""
"use strict";
(() => {
  const root = document.documentElement;
  addEventListener("error", e => { root.dataset.error = String(e.message); });
  const tip = document.getElementById("tip");

  const make = (name, text, cls) => {
    const node = document.createElement(name);
    if (text !== undefined) node.textContent = text;
    if (cls) node.className = cls;
    return node;
  };
  const show = (x, y, nodes) => {
    tip.replaceChildren(...nodes);
    tip.classList.add("on");
    const box = tip.getBoundingClientRect();
    const left = x + 16 + box.width > innerWidth ? x - box.width - 12 : x + 16;
    const top = y + 14 + box.height > innerHeight ? y - box.height - 10 : y + 14;
    tip.style.left = Math.max(4, left) + "px";
    tip.style.top = Math.max(4, top) + "px";
  };
  const hide = () => tip.classList.remove("on");

  const text = value => {
    if (value === null || value === undefined) return "\u2013";
    if (value === 0) return "0";
    const size = Math.abs(value);
    let out;
    if (size >= 1e6 || size < 1e-4) out = value.toExponential(2);
    else if (Number.isInteger(value)) out = value.toLocaleString("en-US");
    else out = String(Number(value.toPrecision(4)));
    return out.replace("-", "\u2212");
  };

  // Anything with data-tip: the first line is the title.
  const describe = node => node.dataset.tip.split("\n").map(
    (line, i) => make("div", line, i ? "" : "tip-title"));
  document.querySelectorAll("[data-tip]").forEach(node => {
    node.addEventListener("mousemove", e => show(e.clientX, e.clientY, describe(node)));
    node.addEventListener("mouseleave", hide);
    node.addEventListener("focus", () => {
      if (!node.matches(":focus-visible")) return;
      const box = node.getBoundingClientRect();
      show(box.right, box.bottom, describe(node));
    });
    node.addEventListener("blur", hide);
  });

  // The DAG: dim what is neither the task nor its direct neighbour.
  document.querySelectorAll("svg.dag").forEach(svg => {
    const nodes = [...svg.querySelectorAll(".node")];
    nodes.forEach(node => {
      const near = JSON.parse(node.dataset.near);
      const set = on => {
        svg.classList.toggle("focus", on);
        node.classList.toggle("on", on);
        near.forEach(i => nodes[i].classList.toggle("on", on));
      };
      node.addEventListener("mouseenter", () => set(true));
      node.addEventListener("mouseleave", () => set(false));
    });
  });

  // Charts: a cursor at the nearest step with the value of every series.
  const place = (value, low, high, start, end, log) => {
    if (log) [value, low, high] = [Math.log(Math.max(value, low)), Math.log(low), Math.log(high)];
    return start + (high === low ? 0.5 : (value - low) / (high - low)) * (end - start);
  };
  const at = (flat, x, step) => {
    let best = -1;
    for (let i = 0; i < flat.length; i += 2) {
      if (step ? flat[i] <= x : best < 0 || Math.abs(flat[i] - x) < Math.abs(flat[best] - x)) {
        best = i;
      }
    }
    return best < 0 ? null : [flat[best], flat[best + 1]];
  };
  document.querySelectorAll("svg.chart").forEach(svg => {
    const data = JSON.parse(svg.dataset.chart);
    const cursor = svg.querySelector(".cursor");
    const [x0, x1, p0, p1] = data.x, [y0, y1, q0, q1, log] = data.y;
    svg.addEventListener("mouseleave", () => { cursor.replaceChildren(); hide(); });
    svg.addEventListener("mousemove", e => {
      const box = svg.getBoundingClientRect();
      const px = (e.clientX - box.left) * svg.viewBox.baseVal.width / box.width;
      const wanted = x0 + (px - p0) / (p1 - p0) * (x1 - x0);
      const steps = data.s.map(s => at(s[3], wanted, false)).filter(Boolean).map(p => p[0]);
      if (!steps.length) return;
      const x = steps.reduce((a, b) => Math.abs(b - wanted) < Math.abs(a - wanted) ? b : a);
      const segment = data.g.filter(g => g[1] <= x).pop();
      const where = segment ? segment[0] + " \u00b7 step " + text(Math.ceil(x - segment[1]))
        : data.l + " " + text(x);
      const lines = [make("div", where, "tip-title")];
      const line = document.createElementNS(svg.namespaceURI, "line");
      const cx = place(x, x0, x1, p0, p1, 0);
      for (const [k, v] of [["x1", cx], ["x2", cx], ["y1", q0], ["y2", q1]]) {
        line.setAttribute(k, v);
      }
      const marks = [line];
      data.s.forEach(([name, color, step, flat]) => {
        const point = at(flat, x, step);
        if (!point) return;
        const row = make("div", undefined, "tip-row");
        const shown = data.p ? text(100 * point[1]) + " %" : text(point[1]);
        row.append(make("i", undefined, "key k" + color), make("span", name), make("b", shown));
        lines.push(row);
        const dot = document.createElementNS(svg.namespaceURI, "circle");
        dot.setAttribute("cx", place(step ? x : point[0], x0, x1, p0, p1, 0));
        dot.setAttribute("cy", place(point[1], y0, y1, q0, q1, log));
        dot.setAttribute("r", 3);
        dot.setAttribute("class", "dot c" + color);
        marks.push(dot);
      });
      cursor.replaceChildren(...marks);
      show(e.clientX, e.clientY, lines);
    });
  });

  // Tokens: probabilities under the sampler and the trainer, and the weight.
  document.querySelectorAll(".tokens").forEach(block => {
    let data;
    block.addEventListener("mousemove", e => {
      const token = e.target.closest("b");
      if (!token) return hide();
      data = data || JSON.parse(block.dataset.tokens);
      const i = [...block.children].indexOf(token);
      const fact = (name, value) => {
        const row = make("div", undefined, "tip-row");
        row.append(make("span", name), make("b", value));
        return row;
      };
      const prob = v => v === null || v === undefined ? text(v)
        : text(v) + "  (p " + text(Math.exp(v)) + ")";
      const w = data.w[i];
      const capped = data.c !== null && w > data.c ? " \u2192 capped at " + text(data.c) : "";
      show(e.clientX, e.clientY, [
        make("div", JSON.stringify(token.textContent), "tip-title mono"),
        fact("position, id", text(i + 1) + ", " + data.i[i]),
        fact("log p, sampler", prob(data.s[i])),
        fact("log p, trainer", prob(data.t[i])),
        fact("importance weight", text(w) + capped),
      ]);
    });
    block.addEventListener("mouseleave", hide);
  });

  // A link into folded content opens it.
  const reveal = () => {
    const target = location.hash && document.getElementById(location.hash.slice(1));
    if (!target) return;
    for (let node = target; node; node = node.parentElement) {
      if (node.tagName === "DETAILS") node.open = true;
    }
    target.scrollIntoView();
  };
  addEventListener("hashchange", reveal);
  document.addEventListener("click", e => {
    const link = e.target.closest && e.target.closest("a[href]");
    if (link && link.getAttribute("href") === location.hash) reveal();
  });
  reveal();

  const links = new Map([...document.querySelectorAll("nav a")].map(
    a => [a.getAttribute("href").slice(1), a]));
  const seen = new IntersectionObserver(entries => entries.forEach(entry => {
    if (!entry.isIntersecting) return;
    links.forEach(a => a.removeAttribute("aria-current"));
    const link = links.get(entry.target.id);
    if (link) link.setAttribute("aria-current", "true");
  }), { rootMargin: "-15% 0px -75% 0px" });
  document.querySelectorAll("main > *[id]").forEach(node => seen.observe(node));

  let closed = [];
  addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details:not([open])")];
    closed.forEach(d => { d.open = true; });
  });
  addEventListener("afterprint", () => closed.forEach(d => { d.open = false; }));
  root.dataset.ready = "yes";
})();
"""
