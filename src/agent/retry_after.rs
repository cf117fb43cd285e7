use std::time::{Duration, SystemTime};

use reqwest::header::HeaderMap;

pub(super) fn retry_after(_: &HeaderMap, _: SystemTime) -> Option<Duration> {
    None
}

pub(super) fn headers_that_matter(_: &HeaderMap) -> Option<String> {
    None
}
