// Run in the page. Gives a list of faults, each as [what, where]; an empty list is what we want.
() => {
  const faults = [];
  const visible = (node) => node.checkVisibility({ checkOpacity: true, checkVisibilityCSS: true });
  const where = (node) => node.outerHTML.slice(0, 120);

  const text = (ids) =>
    ids
      .split(/\s+/)
      .map((id) => document.getElementById(id)?.textContent ?? "")
      .join(" ")
      .trim();
  const name = (node) =>
    node.getAttribute("aria-label")?.trim() ||
    (node.hasAttribute("aria-labelledby") && text(node.getAttribute("aria-labelledby"))) ||
    [...(node.labels || [])].map((l) => l.textContent.trim()).join(" ") ||
    (node.matches("button, a, summary") && node.textContent.trim());
  for (const node of document.querySelectorAll(
    "input, select, textarea, button, a[href], summary, dialog, nav, [role=img], [role=region]",
  )) {
    if (visible(node) && !name(node)) faults.push(["no name", where(node)]);
  }

  const ids = [...document.querySelectorAll("[id]")].map((n) => n.id);
  for (const id of new Set(ids)) if (ids.filter((i) => i === id).length > 1) faults.push(["the same id twice", id]);
  for (const node of document.querySelectorAll("[aria-labelledby], [aria-describedby]")) {
    for (const id of `${node.getAttribute("aria-labelledby") ?? ""} ${node.getAttribute("aria-describedby") ?? ""}`
      .trim()
      .split(/\s+/)) {
      if (!document.getElementById(id)) faults.push(["points to nothing", where(node)]);
    }
  }

  const headings = [...document.querySelectorAll("h1, h2, h3, h4, h5, h6")].filter(visible);
  if (headings.filter((n) => n.tagName === "H1").length !== 1)
    faults.push(["not exactly one h1", headings.map((n) => n.tagName).join(" ")]);
  let level = 0;
  for (const node of headings) {
    if (Number(node.tagName[1]) > level + 1) faults.push(["a level of headings is left out", where(node)]);
    level = Number(node.tagName[1]);
  }
  if (document.querySelectorAll("main").length !== 1) faults.push(["not exactly one main", ""]);
  if (!document.querySelector("#token") && (!document.querySelector("header") || !document.querySelector("nav")))
    faults.push(["no header or nav", ""]);
  if (!document.documentElement.lang) faults.push(["no language", ""]);
  for (const node of document.querySelectorAll("img"))
    if (!node.hasAttribute("alt")) faults.push(["no alt", where(node)]);
  for (const node of document.querySelectorAll("th")) if (!node.scope) faults.push(["th without scope", where(node)]);

  // Contrast: each element with text of its own, against the nearest opaque background behind it.
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = ([r, g, b]) => {
    const part = (v) => (v / 255 <= 0.03928 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
    return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  };
  const behind = (node) => {
    const layers = [];
    for (let at = node; at; at = at.parentElement) {
      const own = rgba(getComputedStyle(at).backgroundColor);
      layers.push(own);
      if (own[3] === 255) break;
    }
    return layers
      .reverse()
      .reduce(
        (under, over) => under.map((v, i) => (i < 3 ? (over[i] * over[3] + v * (255 - over[3])) / 255 : 255)),
        [255, 255, 255, 255],
      );
  };
  const ratio = (a, b) => (Math.max(light(a), light(b)) + 0.05) / (Math.min(light(a), light(b)) + 0.05);
  const low = new Map();
  for (const node of document.querySelectorAll("body *")) {
    if (!visible(node) || node.closest("svg, .unseen, .skip, option, :disabled")) continue;
    if (![...node.childNodes].some((c) => c.nodeType === 3 && c.textContent.trim())) continue;
    const style = getComputedStyle(node);
    const large =
      parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && Number(style.fontWeight) >= 700);
    const got = ratio(rgba(style.color), behind(node));
    if (got < (large ? 3 : 4.5))
      low.set(`${node.tagName}.${node.className}`, [`contrast ${got.toFixed(2)}`, where(node)]);
  }
  for (const node of document.querySelectorAll("svg .span")) {
    const label = node.querySelector("text");
    if (!label) continue;
    const got = ratio(rgba(getComputedStyle(label).fill), rgba(getComputedStyle(node.querySelector("rect")).fill));
    if (got < 4.5) low.set(`span ${node.getAttribute("class")}`, [`contrast ${got.toFixed(2)}`, where(node)]);
  }
  return [...faults, ...low.values()];
};
