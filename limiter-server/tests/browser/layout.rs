//! The visual rules of pages as they open, where they can be measured.

use serde_json::Value;

use super::measure::{MAX_COLOURS, Measures, THEMES, WINDOWS};
use super::pages::{PAGES, pictures, sign_in};
use super::support::chromium::Chromium;
use super::support::demo::Demo;

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
    let mut measures = Measures::default();
    for (name, path) in PAGES {
        for (width, height) in WINDOWS {
            browser.resize(width, height);
            for theme in THEMES {
                browser.use_theme(theme);
                browser.open(&demo.url(path));
                wait_for_plot(&browser);
                let shown = format!("{name} at {width} in {theme}");
                browser.full_screenshot(&pictures().join(format!("{name}-{width}-{theme}.png")));
                measures.measure(&browser, (&shown, theme));
                let shift = browser.async_script(LAYOUT_SHIFT).as_f64().unwrap();
                if shift >= 0.02 {
                    measures.problems.push(format!("{shown}: layout shift {shift}"));
                }
            }
        }
        let animation = browser.script(ANIMATION).as_f64().unwrap();
        if animation > 0.15 {
            measures
                .problems
                .push(format!("{name}: an animation of {animation} s"));
        }
        browser.prefer("prefers-reduced-motion", "reduce");
        if browser.script(ANIMATION).as_f64().unwrap() > 0.0 {
            measures
                .problems
                .push(format!("{name}: an animation in spite of reduced motion"));
        }
        let console = browser.console().into_iter();
        // The browser reports the status of the page that does not exist.
        let unexpected =
            console.filter(|of| name != "failure" || !of.contains(&format!("{path} - Failed to load")));
        measures
            .problems
            .extend(unexpected.map(|of| format!("{name}: console: {of}")));
    }
    for theme in THEMES {
        assert_eq!(measures.colours[theme].len(), MAX_COLOURS, "{measures:#?}");
    }
    measures.require_no_problem();
}
