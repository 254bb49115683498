// Devices by type, each a small tile that says what runs on it.

import { fill, h, keyed, write } from "/static/dom.js";
import { colour } from "/static/format.js";
import { empty, jobLink } from "/static/views/parts.js";

const MANY = 96; // from so many devices on, tiles are small squares
const WORDS = {
  free: "free",
  held: "in use",
  leaving: "called back: its job is leaving",
  draining: "draining: its job is leaving",
  drained: "drained",
  lost: "lost",
  away: "away, with serving",
};
const SIGNS = { free: "", held: "", leaving: "⇤", draining: "⇣", drained: "▨", lost: "✕", away: "⇄" };

/** Show what a ClusterView tells; `nameOf(job)` gives a job's name. */
export function showTypes(node, view, nameOf) {
  if (!view.devices.length) {
    fill(
      node,
      empty(
        "No devices.",
        "Declare some for a trial, or start the service on a machine with GPUs.",
        "easyscale up --devices v100:2,p100:1",
      ),
    );
    return;
  }
  if (node.firstElementChild && node.firstElementChild.classList.contains("empty")) fill(node);
  const small = view.devices.length > MANY;
  keyed(
    node,
    view.types,
    (t) => t.kind,
    () => {
      const part = {
        head: h("h3", {}),
        facts: h("span", { class: "facts" }),
        fill: h("span", { class: "bar" }),
        tiles: h("ul", { class: "tiles" }),
      };
      const box = h(
        "section",
        { class: "card type" },
        h("div", { class: "head" }, part.head, part.facts),
        h("div", { class: "track", "aria-hidden": "true" }, part.fill),
        part.tiles,
      );
      box.pieces = part;
      return box;
    },
    (box, type) => {
      const { head, facts, fill: bar, tiles } = box.pieces;
      write(head, type.kind);
      const more = [
        ["lent", type.lent],
        ["drained", type.drained],
        ["lost", type.lost],
        ["away", type.away],
      ].filter(([, n]) => n);
      write(facts, [`${type.held} of ${type.total} in use`, ...more.map(([word, n]) => `${n} ${word}`)].join(" · "));
      bar.style.width = `${type.total ? (100 * type.held) / type.total : 0}%`;
      tiles.classList.toggle("small", small);
      keyed(
        tiles,
        view.devices.filter((d) => d.kind === type.kind),
        (d) => d.id,
        makeTile,
        (tile, d) => setTile(tile, d, nameOf),
      );
    },
  );
}

function makeTile() {
  const tile = h("li", {});
  tile.pieces = {
    id: h("span", { class: "id" }),
    job: h("span", { class: "job" }),
    sign: h("span", { class: "sign", "aria-hidden": "true" }),
    seen: "",
  };
  tile.append(h("a", {}, tile.pieces.id, tile.pieces.job, tile.pieces.sign));
  return tile;
}

function setTile(tile, device, nameOf) {
  const name = device.job ? nameOf(device.job) : "";
  const key = JSON.stringify([device, name]);
  if (tile.pieces.seen === key) return;
  tile.pieces.seen = key;
  const link = tile.firstElementChild;
  if (device.job) link.setAttribute("href", jobLink(device.job));
  else link.removeAttribute("href");
  tile.className = `tile ${device.job ? colour(device.job) : ""}`;
  tile.dataset.state = device.state;
  const facts = [
    device.id,
    WORDS[device.state],
    name && `job ${name}`,
    device.lent && "lent by serving",
    device.node && `node ${device.node}`,
    device.memory_gb && `${device.memory_gb} GB`,
  ].filter(Boolean);
  link.setAttribute("title", facts.join(" · "));
  write(tile.pieces.id, device.id);
  write(tile.pieces.job, name || WORDS[device.state].split(":")[0]);
  write(tile.pieces.sign, SIGNS[device.state] + (device.lent ? " ◇" : ""));
}
