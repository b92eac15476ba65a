//! The visual rules that hold for each state of a page: no overflow, no clipped control, no text on
//! another one, no finding of axe-core, and few text sizes and colours on the site.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::support::chromium::Chromium;

/// The widths and heights of the window.
pub(crate) const WINDOWS: [(u32, u32); 3] = [(360, 740), (768, 1024), (1280, 900)];
pub(crate) const THEMES: [&str; 2] = ["light", "dark"];
/// The accent and three states.
pub(crate) const MAX_COLOURS: usize = 4;
const MAX_TEXT_SIZES: usize = 5;

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

/// Elements that are wider than the window, unless they scroll by themselves.
const OVERFLOW: &str = "
    const width = document.documentElement.clientWidth;
    if (document.documentElement.scrollWidth <= width) return [];
    return [...document.querySelectorAll('body *')]
      .filter(element => element.getBoundingClientRect().right > width + 1)
      .map(element => element.outerHTML.slice(0, 120));";

/// Pairs of texts that cover each other. Hidden texts, boxes that scroll, and open menus, which lie
/// above the page, are left out.
const OVERLAP: &str = "
    const texts = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    const range = document.createRange();
    while (walker.nextNode()) {
      const node = walker.currentNode, parent = node.parentElement;
      if (node.data.trim() === '' || !parent.checkVisibility()) continue;
      if (parent.closest('.hidden, .skip, pre, .scroll, select, .menu ul')) continue;
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

/// Controls that a box around them does not contain. Boxes that scroll contain everything.
const CLIPPED: &str = "
    const found = [];
    const scrolls = style => style.overflowX === 'auto' || style.overflowX === 'scroll';
    const controls = 'input:not([type=hidden]), select, textarea, button, summary, a.button, .tabs a, .menu a';
    for (const control of document.querySelectorAll(controls)) {
      if (!control.checkVisibility() || control.closest('.hidden, .skip')) continue;
      const box = control.getBoundingClientRect();
      let isPlaced = false;
      for (let around = control.parentElement; around !== null && !isPlaced; around = around.parentElement) {
        const style = getComputedStyle(around);
        if (scrolls(style)) break;
        if (style.display === 'inline' || style.display === 'contents') continue;
        const outer = around.getBoundingClientRect();
        if (box.left < outer.left - 1 || box.right > outer.right + 1) {
          found.push(`${control.outerHTML.slice(0, 120)} outside of ${around.outerHTML.slice(0, 60)}`);
          break;
        }
        isPlaced = style.position === 'absolute';
      }
    }
    return found;";

/// Lists of choices that cut off the chosen one.
const CUT_OFF: &str = "
    const context = document.createElement('canvas').getContext('2d');
    const arrow = 20;
    const isCutOff = list => {
      const style = getComputedStyle(list);
      context.font = style.font;
      const text = context.measureText(list.selectedOptions[0]?.text ?? '').width;
      const room = list.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight) - arrow;
      return list.checkVisibility() && text > room;
    };
    return [...document.querySelectorAll('select')].filter(isCutOff).map(list => list.outerHTML.slice(0, 120));";

/// Numbers of tables on more than one line.
const BROKEN: &str = "
    const range = document.createRange();
    const isBroken = cell => {
      range.selectNodeContents(cell);
      const lines = [...range.getClientRects()].map(box => Math.round(box.top));
      return cell.checkVisibility() && /^[\\d,.]+$/.test(cell.innerText.trim()) && new Set(lines).size > 1;
    };
    return [...document.querySelectorAll('td.number')].filter(isBroken).map(cell => cell.innerText);";

/// The findings of all measured pages.
#[derive(Debug, Default)]
pub(crate) struct Measures {
    pub(crate) problems: Vec<String>,
    /// By theme.
    pub(crate) colours: BTreeMap<&'static str, BTreeSet<String>>,
    text_sizes: BTreeSet<String>,
}

/// The texts of a list.
fn texts(list: &Value) -> impl Iterator<Item = String> {
    let texts = list.as_array().expect("a list").iter();
    texts.map(|of| of.as_str().expect("a text").to_owned())
}

impl Measures {
    /// Measures the page as it is now.
    pub(crate) fn measure(&mut self, browser: &Chromium, (shown, theme): (&str, &'static str)) {
        for (script, problem) in [
            (OVERFLOW, "too wide"),
            (CLIPPED, "a clipped control"),
            (CUT_OFF, "a cut off choice"),
            (BROKEN, "a number on two lines"),
            (OVERLAP, "texts cover each other"),
        ] {
            let found = browser.script(script);
            self.problems
                .extend(texts(&found).map(|of| format!("{shown}: {problem}: {of}")));
        }
        let findings = browser.axe();
        self.problems
            .extend(findings.iter().map(|of| format!("{shown}: {of}")));
        self.text_sizes.extend(texts(&browser.script(TEXT_SIZES)));
        let colours = self.colours.entry(theme).or_default();
        colours.extend(texts(&browser.script(COLOURS)));
    }

    /// Fails on a problem, and on too many text sizes or colours of all measured pages together.
    pub(crate) fn require_no_problem(mut self) {
        if self.text_sizes.len() > MAX_TEXT_SIZES {
            self.problems.push(format!("text sizes: {:?}", self.text_sizes));
        }
        for (theme, colours) in &self.colours {
            if colours.len() > MAX_COLOURS {
                self.problems.push(format!("colours in {theme}: {colours:?}"));
            }
        }
        assert!(self.problems.is_empty(), "{:#?}", self.problems);
    }
}
