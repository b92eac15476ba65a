//! The visual rules, where they can be measured.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::pages::{PAGES, pictures, sign_in};
use super::support::chromium::Chromium;
use super::support::demo::Demo;

/// The distinct sizes of visible text in the page, in pixels.
const TEXT_SIZES: &str = "
    const sizes = new Set();
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const node = walker.currentNode, parent = node.parentElement;
      if (node.data.trim() === '' || !parent.checkVisibility()) continue;
      sizes.add(getComputedStyle(parent).fontSize);
    }
    return [...sizes].sort();";

/// The distinct colours of texts, backgrounds and borders, without greys.
const COLOURS: &str = "
    const found = new Set();
    for (const element of document.querySelectorAll('body, body *')) {
      if (!element.checkVisibility()) continue;
      const style = getComputedStyle(element);
      const used = [style.color, style.backgroundColor];
      if (parseFloat(style.borderTopWidth) > 0) used.push(style.borderTopColor);
      if (parseFloat(style.borderLeftWidth) > 0) used.push(style.borderLeftColor);
      for (const colour of used) {
        const [red, green, blue, alpha = 1] = colour.match(/[\\d.]+/g).map(Number);
        const isGrey = Math.max(red, green, blue) - Math.min(red, green, blue) < 40;
        if (alpha > 0 && !isGrey) found.add(colour);
      }
    }
    return [...found].sort();";

/// The longest animation or transition of the page, in seconds.
const ANIMATION: &str = "
    let longest = 0;
    for (const element of document.querySelectorAll('*')) {
      const style = getComputedStyle(element);
      for (const text of [style.animationDuration, style.transitionDuration]) {
        for (const part of text.split(',')) longest = Math.max(longest, parseFloat(part) || 0);
      }
    }
    return longest;";

/// The sum of the layout shifts since the page was opened.
const LAYOUT_SHIFT: &str = "
    const done = arguments[arguments.length - 1];
    let sum = 0;
    new PerformanceObserver(list => {
      for (const entry of list.getEntries()) if (!entry.hadRecentInput) sum += entry.value;
    }).observe({ type: 'layout-shift', buffered: true });
    setTimeout(() => done(sum), 300);";

/// Elements that are wider than the window, unless they scroll by themselves.
const OVERFLOW: &str = "
    const width = document.documentElement.clientWidth;
    if (document.documentElement.scrollWidth <= width) return [];
    return [...document.querySelectorAll('body *')]
      .filter(element => element.getBoundingClientRect().right > width + 1)
      .map(element => element.outerHTML.slice(0, 120));";

/// Pairs of texts that cover each other. Hidden texts and boxes that scroll are left out.
const OVERLAP: &str = "
    const texts = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    const range = document.createRange();
    while (walker.nextNode()) {
      const node = walker.currentNode, parent = node.parentElement;
      if (node.data.trim() === '' || !parent.checkVisibility()) continue;
      if (parent.closest('.hidden, .skip, pre, .scroll, select')) continue;
      range.selectNodeContents(node);
      for (const box of range.getClientRects()) texts.push({ box, text: node.data.trim().slice(0, 40) });
    }
    const cover = (one, other) =>
      Math.min(one.right, other.right) - Math.max(one.left, other.left) > 2
      && Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top) > 4;
    const found = [];
    texts.forEach((one, at) => {
      for (const other of texts.slice(at + 1)) {
        if (cover(one.box, other.box)) found.push(`${one.text} / ${other.text}`);
      }
    });
    return found;";

/// Waits until the plot of the page is drawn, if there is one.
pub(crate) fn wait_for_plot(browser: &Chromium) {
    browser.wait_until("the plot is not drawn", |browser| {
        let script =
            "const plot = document.querySelector('figure[data-plot]'); return !plot || !!plot.dataset.drawn";
        browser.script(script) == Value::Bool(true)
    });
}

#[test]
fn pages_are_accessible_and_fit_in_all_widths_and_themes() {
    let demo = Demo::start();
    let mut browser = Chromium::start();
    sign_in(&mut browser, &demo, "demo");
    let mut problems = Vec::new();
    let mut colours: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for (name, path) in PAGES {
        for (width, height) in [(360, 740), (768, 1024), (1280, 900)] {
            browser.resize(width, height);
            for theme in ["light", "dark"] {
                browser.use_theme(theme);
                browser.open(&demo.url(path));
                wait_for_plot(&browser);
                let shown = format!("{name} at {width} in {theme}");
                browser.full_screenshot(&pictures().join(format!("{name}-{width}-{theme}.png")));
                let overflow = browser.script(OVERFLOW);
                if overflow != Value::Array(Vec::new()) {
                    problems.push(format!("{shown}: too wide: {overflow}"));
                }
                let overlap = browser.script(OVERLAP);
                if overlap != Value::Array(Vec::new()) {
                    problems.push(format!("{shown}: texts cover each other: {overlap}"));
                }
                let shift = browser.async_script(LAYOUT_SHIFT).as_f64().unwrap();
                if shift >= 0.02 {
                    problems.push(format!("{shown}: layout shift {shift}"));
                }
                problems.extend(browser.axe().iter().map(|of| format!("{shown}: {of}")));
                let sizes = browser.script(TEXT_SIZES);
                if sizes.as_array().unwrap().len() > 5 {
                    problems.push(format!("{shown}: text sizes {sizes}"));
                }
                let found = browser.script(COLOURS);
                let found = found.as_array().unwrap().iter();
                let colours = colours.entry(theme).or_default();
                colours.extend(found.map(|of| of.as_str().unwrap().to_owned()));
            }
        }
        let animation = browser.script(ANIMATION).as_f64().unwrap();
        if animation > 0.15 {
            problems.push(format!("{name}: an animation of {animation} s"));
        }
        browser.prefer("prefers-reduced-motion", "reduce");
        if browser.script(ANIMATION).as_f64().unwrap() > 0.0 {
            problems.push(format!("{name}: an animation in spite of reduced motion"));
        }
        let console = browser.console().into_iter();
        // The browser reports the status of the page that does not exist.
        let unexpected =
            console.filter(|of| name != "failure" || !of.contains(&format!("{path} - Failed to load")));
        problems.extend(unexpected.map(|of| format!("{name}: console: {of}")));
    }
    for (theme, colours) in colours {
        // The accent and three states.
        if colours.len() != 4 {
            problems.push(format!("colours in {theme}: {colours:?}"));
        }
    }
    assert!(problems.is_empty(), "{problems:#?}");
}
