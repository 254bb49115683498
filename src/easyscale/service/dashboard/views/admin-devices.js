// Devices: take one out of use, give it back, say that it is lost; lend to training, call back for serving.

import { get, part, post } from "/static/api.js";
import { plainTable } from "/static/charts/frame.js";
import { ask } from "/static/dialog.js";
import { announce, fill, h } from "/static/dom.js";
import { when } from "/static/format.js";
import { onRecord } from "/static/live.js";
import { paced } from "/static/pace.js";
import { problemBox } from "/static/problem.js";
import { empty, jobLink, labelled } from "/static/views/parts.js";

const OUT = ["draining", "drained"];

/** "v100:2, v100-3" as {types, devices}: a number after a colon counts a type, a bare name is a device. */
export function lendWish(text, within) {
  const wish = { types: {}, devices: [], within };
  for (const word of text.split(/[\s,]+/).filter(Boolean)) {
    const [kind, many] = word.split(":");
    if (many === undefined) wish.devices.push(word);
    else wish.types[kind] = Number(many);
  }
  return wish;
}

export function deviceAdmin(root) {
  const trouble = h("div", { role: "alert" });
  const table = h("div", { class: "card scroll", tabindex: "0", role: "region", "aria-label": "Devices" });
  let seen = "";

  async function change(options) {
    const view = await ask(options);
    if (!view) return;
    show(view);
    announce(options.told);
  }

  const drain = (d) =>
    change({
      title: `Drain ${d.id}?`,
      yes: "Drain",
      told: `${d.id} drains.`,
      act: () => post(`/devices/${part(d.id)}/drain`),
      body: [
        h(
          "p",
          {},
          d.job
            ? "Its job moves off at the next step, without loss. Then nobody uses the device until it is put back."
            : "Nobody uses the device until it is put back.",
        ),
      ],
    });
  const undrain = (d) =>
    change({
      title: `Put ${d.id} back into use?`,
      yes: "Put back",
      told: `${d.id} is in use again.`,
      act: () => post(`/devices/${part(d.id)}/undrain`),
    });
  const lost = (d) =>
    change({
      title: `Is ${d.id} lost?`,
      yes: "It is lost",
      danger: true,
      told: `${d.id} is lost.`,
      act: () => post(`/devices/${part(d.id)}/lost`),
      body: [h("p", {}, "Its worker counts as dead. The job goes on with the others, with the same bits.")],
    });

  function show(view) {
    const key = JSON.stringify(view.devices);
    if (key === seen) return;
    seen = key;
    if (!view.devices.length)
      return fill(table, empty("No devices.", "Start the service with some:", "easyscale up --devices v100:2,p100:1"));
    const button = (name, act, label, look = "small") =>
      h("button", { type: "button", class: look, "aria-label": label, on: { click: act } }, name);
    return fill(
      table,
      plainTable(
        ["Device", "Type", "Node", "Memory", "State", "Job", "Actions"],
        view.devices.map((d) => [
          [h("span", { class: "mono" }, d.id), d.lent && h("span", { class: "tag" }, "lent")],
          d.kind,
          d.node || "–",
          d.memory_gb ? `${d.memory_gb} GB` : "–",
          [h("span", { class: "pill", "data-state": d.state }, d.state), d.by && [" free by ", when(d.by)]],
          d.job ? h("a", { href: jobLink(d.job) }, d.job) : "–",
          h(
            "span",
            { class: "row-actions" },
            OUT.includes(d.state) || d.state === "lost"
              ? button("Put back", () => undrain(d), `Put back ${d.id}`)
              : button("Drain", () => drain(d), `Drain ${d.id}`),
            d.state !== "lost" && button("Lost", () => lost(d), `${d.id} is lost`, "small danger"),
          ),
        ]),
        "Devices",
      ),
    );
  }

  const what = h("input", {
    type: "text",
    required: true,
    placeholder: "v100:2, or names of devices",
    spellcheck: "false",
    maxlength: "1000",
  });
  const within = h("input", { type: "number", min: "0.1", max: "3600", step: "any", value: "5", required: true });
  const lending = h("div", { role: "alert" });
  const lend = h("button", { type: "submit", value: "lend" }, "Lend to training");
  const call = h("button", { type: "submit", class: "primary", value: "call-back" }, "Call back for serving");
  const form = h(
    "form",
    { class: "card" },
    h("h2", {}, "Serving"),
    h(
      "p",
      { class: "hint" },
      "A serving system lends devices that it does not need and calls them back. Training leaves within the limit.",
    ),
    h("div", { class: "row" }, labelled("Devices", what), labelled("Within, seconds", within)),
    lending,
    h("div", { class: "actions" }, lend, call),
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const word = event.submitter?.value || "lend";
    fill(lending);
    try {
      show(await post(`/serving/${word}`, lendWish(what.value, Number(within.value))));
      announce(word === "lend" ? "Lent." : "Called back.");
      what.value = "";
    } catch (error) {
      fill(lending, problemBox(error));
    }
  });

  fill(root, trouble, table, form);
  const look = paced(
    async () => {
      try {
        show(await get("/cluster"));
        fill(trouble);
      } catch (error) {
        fill(trouble, problemBox(error));
      }
    },
    { gap: 2000, every: 15_000 },
  );
  const end = onRecord((r) => (r.kind.startsWith("device-") || r.kind === "allocated") && look.ask());
  look.ask();
  return {
    stop() {
      end();
      look.stop();
    },
  };
}
