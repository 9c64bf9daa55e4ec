// Numbers and elements as the page writes them.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export const number = (value) => whole.format(value);

export const count = (value, noun) => `${number(value)} ${noun}${value === 1 ? "" : "s"}`;

export const percent = (part, all) => (all > 0 ? `${((100 * part) / all).toFixed(1)} %` : "–");

export function bytes(value) {
  const power = value < 1024 ? 0 : Math.min(4, Math.floor(Math.log2(value) / 10));
  const digits = power === 0 ? 0 : 1;
  return `${(value / 1024 ** power).toFixed(digits)} ${["B", "KiB", "MiB", "GiB", "TiB"][power]}`;
}

export function seconds(value) {
  if (value < 0.0995) return `${(1000 * value).toFixed(value < 0.00995 ? 1 : 0)} ms`;
  if (value < 1) return `${Math.round(1000 * value)} ms`;
  return value < 100 ? `${value.toFixed(1)} s` : `${number(value)} s`;
}

export const oneLine = (text) => text.replace(/\s+/g, " ").trim();

/** An element with these attributes and children; a text is a child too. */
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

/** The same in a drawing. */
export function drawn(name, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

/** A patch of colour: the name of one of the page's colours. */
export function swatch(colour) {
  const patch = element("span", { class: "swatch" });
  patch.style.background = `var(--${colour})`;
  return patch;
}

export const setText = (id, text) => {
  const target = document.getElementById(id);
  if (target.textContent !== text) target.textContent = text;
};
