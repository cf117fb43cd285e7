//! A page moves with the run that it shows.

use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use super::browser::Browser;
use super::raw_agent::{ANSWER, RawAgent, folder, ok};
use super::scene::Viewer;

#[test]
fn an_overview_moves_while_rollouts_land() {
    let folder = folder(2);
    let (allow, allowed) = channel::<()>();
    let allowed = Mutex::new(allowed);
    let agent = RawAgent::start(move |_, stream| {
        // Each answer waits until the test allows it.
        let _ = allowed.lock().unwrap().recv();
        ok(stream, "", ANSWER.as_bytes())
    });
    let mut sweep = agent.collect(&folder, "").start();
    let deadline = Instant::now() + Duration::from_secs(120);
    while agent.asked().len() < 8 {
        assert!(sweep.is_running() && Instant::now() < deadline);
    }
    let viewer = Viewer::start(&folder, "run");
    let mut browser = Browser::start();
    browser.open(viewer.at(""));
    browser.until("document.querySelector('#state .state').innerText.startsWith('running')");
    browser.ask("window.isTheSame = true");
    let done = |done: usize| {
        format!("document.querySelector('#state tbody').rows[0].cells[2].innerText === '{done}'")
    };
    let cells = |class: &str| format!("document.querySelectorAll('#tasks rect.{class}').length");
    browser.until(&done(0));
    assert_eq!(browser.ask(&cells("pending")), 8);
    let mut landed = 0;
    for more in [1, 3] {
        (0..more).for_each(|_| allow.send(()).unwrap());
        landed += more;
        browser.until(&done(landed));
        browser.until(&format!("{} === {landed}", cells("h9")));
    }
    (landed..8).for_each(|_| allow.send(()).unwrap());
    sweep.end().succeeded();
    browser.until("document.querySelector('#state .state').innerText.startsWith('finished')");
    browser.until(&done(8));
    browser.until(&format!("{} === 8", cells("h9")));
    browser.until("document.querySelector('#metrics tbody').rows[0].cells[2].innerText === '1'");
    assert_eq!(
        browser.ask("window.isTheSame"),
        true,
        "the page was loaded again"
    );
    browser.is_clean(viewer.origin());
    let ended = viewer.interrupt().succeeded();
    assert_eq!(ended.stdout.lines().count(), 1, "{ended:#?}");
}

#[test]
fn a_page_says_that_the_collector_died() {
    let folder = folder(1);
    let (_hold, held) = channel::<()>();
    let held = Mutex::new(held);
    let agent = RawAgent::start(move |_, stream| {
        let _ = held.lock().unwrap().recv();
        ok(stream, "", ANSWER.as_bytes())
    });
    let mut sweep = agent.collect(&folder, "").start();
    let deadline = Instant::now() + Duration::from_secs(120);
    while agent.asked().is_empty() {
        assert!(sweep.is_running() && Instant::now() < deadline);
    }
    let viewer = Viewer::start(&folder, "run");
    let mut browser = Browser::start();
    browser.open(viewer.at(""));
    let state = |state: &str| {
        format!("document.querySelector('#state .state').innerText.startsWith('{state}')")
    };
    browser.until(&state("running"));
    sweep.signal("KILL");
    browser.until(&state("died"));
}
