//! How pages look: on a narrow screen, in both themes, and without scripts.

use std::path::Path;

use super::browser::Browser;
use super::scene::{Viewer, two_runs, two_runs_of};
use crate::common::Folder;

/// Every kind of page, with errors among them.
const PAGES: [&str; 14] = [
    "",
    "1/",
    "1/tasks",
    "1/tasks?where=nonsense",
    "1/tasks/3",
    "1/tasks/3/1",
    "search?q=What",
    "compare",
    "compare/task?base=1&candidate=2&base_task=3&candidate_task=3",
    "1/sql",
    "1/sql?q=select+*+from+rollouts",
    "1/sql?q=nonsense",
    "9/",
    "1/tasks/3/99",
];

/// The texts, the same for placeholders, whose contrast with what is behind them is less than 4.5, which WCAG 2 asks for
/// (level AA).
const PALE: &str = r#"(() => {
    const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
    const rgba = color => {
        canvas.clearRect(0, 0, 1, 1);
        canvas.fillStyle = color;
        canvas.fillRect(0, 0, 1, 1);
        return [...canvas.getImageData(0, 0, 1, 1).data];
    };
    const light = color => {
        const [r, g, b] = color.map(c => c / 255).map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = element => {
        for (let e = element; e; e = e.parentElement) {
            const color = rgba(getComputedStyle(e).backgroundColor);
            if (color[3] === 255) return color;
        }
        return rgba('Canvas');
    };
    const pale = [];
    const check = (element, color, text) => {
        const [a, b] = [light(rgba(color)), light(behind(element))];
        const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        if (ratio < 4.5) pale.push(`${text.trim().slice(0, 40)} (${element.tagName}.${element.className?.baseVal ?? element.className}): ${ratio}`);
    };
    let checked = 0;
    for (const element of document.body.querySelectorAll('*')) {
        const style = getComputedStyle(element);
        if (element.placeholder) check(element, getComputedStyle(element, '::placeholder').color, element.placeholder);
        const text = [...element.childNodes].filter(node => node.nodeType === 3).map(node => node.data).join('');
        if (!text.trim() || !element.getClientRects().length || element.closest('title')) continue;
        checked++;
        check(element, element.closest('svg') ? style.fill : style.color, text);
    }
    return {checked, pale};
})()"#;

#[test]
fn no_page_is_wider_than_a_telephone_or_paler_than_eyes_can_read() {
    let folder = two_runs();
    let viewer = Viewer::start(&folder, "base other");
    let mut browser = Browser::start();
    for theme in ["light", "dark"] {
        browser.look(360, 740, theme);
        for page in PAGES {
            browser.open(viewer.at(page));
            let width = browser
                .ask("document.documentElement.scrollWidth")
                .as_u64()
                .unwrap();
            assert!(width <= 360, "{page} is {width} wide");
            let texts = browser.ask(PALE);
            assert!(texts["checked"].as_u64().unwrap() > 3, "{page}: {texts}");
            assert!(
                texts["pale"].as_array().unwrap().is_empty(),
                "{page}, {theme}: {texts:#}"
            );
        }
        let back = browser.ask("getComputedStyle(document.body).backgroundColor");
        assert_eq!(back == "rgb(255, 255, 255)", theme == "light", "{back}");
    }
}

#[test]
fn pages_can_be_read_without_scripts() {
    let folder = two_runs();
    let viewer = Viewer::start(&folder, "base other");
    let mut browser = Browser::start();
    let mut texts = Vec::new();
    for allowed in [true, false] {
        browser.allow_scripts(allowed);
        let read = PAGES.map(|page| {
            browser.open(viewer.at(page));
            browser.text()
        });
        texts.push(read);
    }
    assert_eq!(texts[0], texts[1]);
    // Links and forms work as well.
    browser.open(viewer.at("1/tasks"));
    browser.click("input[name=where]");
    browser.write("mean < 0.5");
    browser.follow_key("Enter");
    browser.follow("tbody a");
    browser.follow(".card a");
    browser.follow("a[rel=next]");
    assert!(browser.texts("h1").concat().ends_with(", rollout 1"));
}

/// The pictures of README and guide: `cargo test --test viewer -- --ignored screenshots`.
#[test]
#[ignore = "writes into src/guide"]
fn screenshots() {
    let folder = Folder::new();
    folder.write("tasks.jsonl", include_str!("../data/example_tasks.jsonl"));
    two_runs_of(&folder, 8);
    let viewer = Viewer::start(&folder, "base other");
    let mut browser = Browser::start();
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/guide");
    browser.look(1000, 760, "light");
    browser.open(viewer.at("1/"));
    browser.screenshot(&place.join("overview.png"));
    browser.follow("#tasks rect.h0");
    browser.screenshot(&place.join("rollout.png"));
    browser.open(viewer.at("compare"));
    browser.screenshot(&place.join("compare.png"));
}
