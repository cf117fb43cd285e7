//! Answers that are large, or that are made to be too large, take no more memory than their share. That share is one of
//! the calls in flight: their number is always the same here.

use std::fs::read_to_string;
use std::io::{self, Write};
use std::net::TcpStream;
use std::sync::{Condvar, Mutex};
use std::thread::sleep;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use rollstream::sim::SimConfig;

use super::ledger::{batches, keys, parts};
use super::raw_agent::{RawAgent, chunk, chunked, folder, ok};
use super::scene::{FAULTY, REPEATS, Scene, quick};
use crate::common::{Ended, Folder, Program, sums};

pub const MB: u64 = 1_000_000;

/// Runs to the end; also gives the most memory that was resident, in bytes.
pub fn with_peak_memory(program: Program) -> (Ended, u64) {
    let mut running = program.start();
    let status = format!("/proc/{}/status", running.pid());
    let mut peak = 0;
    while running.is_running() {
        // The kernel keeps the mark: how often it is read does not matter, but for the very last moments.
        let text = read_to_string(&status).unwrap_or_default();
        let mark = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kilobytes = mark.and_then(|mark| mark.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        peak = peak.max(kilobytes.unwrap_or_default() * 1024);
        // Only spares the processor.
        sleep(Duration::from_millis(2));
    }
    assert!(peak > 0);
    (running.end(), peak)
}

/// What a sweep takes whose answers are small.
fn usual() -> u64 {
    let scene = Scene::with_faults_at(&[]).with_its_own_load();
    let (ended, peak) = with_peak_memory(scene.collect("--concurrency 16"));
    ended.succeeded();
    peak
}

#[test]
fn hostile_answers_take_no_more_than_the_largest_that_is_allowed() {
    let usual = usual();
    for fault in ["gzip_bomb", "endless_body", "deep_json", "not_a_number"] {
        let scene = Scene::with_first_attempts(fault).with_its_own_load();
        let options = "--concurrency 16 --max-body 1MB --data-budget 3";
        let (ended, peak) = with_peak_memory(scene.collect(options));
        ended.succeeded();
        let ledger = scene.is_done_but_for(&[]);
        assert_eq!(
            ledger.ends(|row| row.outcome == "data")[0].3,
            200,
            "{fault}"
        );
        // 16 bodies in flight, and what becomes of them: one bomb alone would be a thousand.
        assert!(peak < usual + 100 * MB, "{fault}: {peak}, usual {usual}");
    }
}

#[test]
fn an_answer_of_40_mb_is_a_rollout() {
    let usual = usual();
    let scene = Scene::with_faults_at(&["7:2=huge_answer"]).with_its_own_load();
    let (ended, peak) = with_peak_memory(scene.collect("--concurrency 16"));
    ended.succeeded();
    let ledger = scene.is_done_but_for(&[]);
    let sizes = (0..REPEATS as i64).map(|rollout| ledger.rollouts[&(FAULTY, rollout)].result.len());
    let huge: Vec<usize> = sizes.filter(|size| *size >= 40_000_000).collect();
    assert_eq!(huge, [40_000_000]);
    // As it came, in a batch, in the journal's buffer, and in a part that is encoded and compressed.
    assert!(peak < usual + 400 * MB, "{peak}, usual {usual}");
}

#[test]
fn answers_of_thousands_of_calls_stay_within_the_memory_that_was_given() {
    let config = SimConfig {
        body_size: 200_000,
        ..quick()
    };
    let mut scene = Scene::new(config).with_its_own_load();
    scene.folder = Folder::with_tasks(sums(512));
    let options = "--concurrency 2048 --memory 384MB";
    let (ended, peak) = with_peak_memory(scene.collect(options));
    ended.succeeded();
    let counts = scene.status();
    assert_eq!(counts["total"]["done"], 2048, "{counts}");
    // Without a limit all of them, which come at once, would be in memory: 410 MB beside the rest.
    assert!(peak < 384 * MB, "{peak}");
}

/// Calls of a sweep whose answers come at the same time, and the size of each.
const AT_ONCE: u64 = 64;
const LARGE: usize = 10_000_000;

/// A sweep whose answers are written at the same time: all together are 640 MB. Gives the most memory that it took.
#[track_caller]
fn peak_of_large_answers(
    write: impl Fn(&mut TcpStream, &[u8]) -> io::Result<()> + Send + Sync + 'static,
) -> u64 {
    let text = "x".repeat(LARGE);
    let answer = format!(r#"{{"response":{{"output":[],"text":"{text}"}},"reward":1.0}}"#);
    let (asked, all) = (Mutex::new(0), Condvar::new());
    let agent = RawAgent::start(move |_, stream| {
        let mut asked = asked.lock().unwrap();
        *asked += 1;
        all.notify_all();
        drop(all.wait_while(asked, |asked| *asked < AT_ONCE));
        write(stream, answer.as_bytes())
    });
    let folder = folder(AT_ONCE / REPEATS);
    let options = format!("--concurrency {AT_ONCE} --memory 384MB");
    let (ended, peak) = with_peak_memory(agent.collect(&folder, &options));
    ended.succeeded();
    let parts = parts(&folder.path("run"), "rollouts");
    let columns = ["task_index", "rollout_index"];
    let batches = parts.iter().flat_map(|part| batches(part, &columns));
    let rollouts: usize = batches.map(|batch| keys(&batch).len()).sum();
    assert_eq!(rollouts as u64, AT_ONCE);
    peak
}

#[test]
fn large_answers_in_chunks_stay_within_the_memory_that_was_given() {
    let peak = peak_of_large_answers(|stream, answer| {
        chunked(stream)?;
        for part in answer.chunks(64 * 1024) {
            chunk(stream, part)?;
        }
        chunk(stream, b"")
    });
    assert!(peak < 384 * MB, "{peak}");
}

#[test]
fn large_answers_that_come_packed_stay_within_the_memory_that_was_given() {
    let peak = peak_of_large_answers(|stream, answer| {
        let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
        packed.write_all(answer)?;
        ok(stream, "content-encoding: gzip\r\n", &packed.finish()?)
    });
    assert!(peak < 384 * MB, "{peak}");
}
