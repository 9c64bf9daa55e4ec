"""What a page has to be for everybody to use it: contrast, and names."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from playwright.sync_api import Page


def colours_of(page: Page) -> Callable[[str], Sequence[float]]:
    """Tells what a custom property of the page stands for now, in sRGB from 0 to 255."""

    def tell(name: str) -> Sequence[float]:
        numbers: list[float] = page.evaluate(_RESOLVED, name)
        return numbers

    return tell


def contrast(one: Sequence[float], other: Sequence[float]) -> float:
    """The contrast ratio of WCAG 2.2 of two colours in sRGB from 0 to 255: 1 to 21."""
    lighter, darker = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: Sequence[float]) -> float:
    shares = [channel / 255 for channel in colour[:3]]
    red, green, blue = (x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in shares)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


_RESOLVED = """(name) => {
    const probe = document.body.appendChild(document.createElement("i"));
    probe.style.color = `var(--${name})`;
    const numbers = getComputedStyle(probe).color.match(/[\\d.]+/g).map(Number);
    probe.remove();
    return numbers;
}"""

TEXTS = """() => {
    const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
    const ground = (node) => {
        for (let it = node; it; it = it.parentElement) {
            const colour = numbers(getComputedStyle(it).backgroundColor);
            if (colour.length === 3 || colour[3] === 1) return colour;
        }
        return [255, 255, 255];
    };
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    const texts = [];
    while (walker.nextNode()) {
        const text = walker.currentNode.textContent.trim();
        const node = walker.currentNode.parentElement;
        if (!text || !node.checkVisibility()) continue;
        const style = getComputedStyle(node);
        const ink = numbers(node instanceof SVGElement ? style.fill : style.color);
        texts.push({ text, ink, ground: ground(node), pixels: parseFloat(style.fontSize) });
    }
    return texts;
}"""
"""Every text that is to be seen: its colour, that of the ground it stands on, and its size."""

NAMELESS = """() => {
    const used = "button, input, textarea, section, nav, dialog, img, [role]";
    const text = (id) => document.getElementById(id)?.textContent.trim();
    const named = (it) => it.ariaLabel || it.labels?.length || it.hasAttribute("alt")
        || it.matches("button, [role=status], [role=alert], [role=tooltip]")
        && (it.textContent.trim() || !it.checkVisibility() || it.matches("[role=alert]"))
        || it.getAttribute("aria-labelledby")?.split(" ").every(text);
    return [...document.querySelectorAll(used)].filter((it) => !named(it)).map((it) => it.outerHTML);
}"""
"""Everything that can be used, or is a place of its own, and has no name."""
