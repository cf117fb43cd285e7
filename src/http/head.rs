//! How large the head of an answer may be. Servers and proxies send at most 16 to 60 KiB by default.

/// Headers of an answer.
pub(super) const MOST_HEADERS: usize = 256;

/// Bytes of a head: status line and headers.
pub(super) const MOST_BYTES: usize = 64 * 1024;

/// What is said of a head that is larger, over a connection of our own.
pub(super) fn too_large() -> String {
    said(MOST_HEADERS, MOST_BYTES)
}

/// What is said of a head that is larger than the client takes that speaks TLS and to proxies; these
/// are the bounds of hyper.
pub(super) fn too_large_for_client() -> String {
    said(100, 400 * 1024)
}

fn said(headers: usize, bytes: usize) -> String {
    let kib = bytes / 1024;
    format!(
        "the head of the answer has more than {headers} headers or {kib} KiB, the most that is taken"
    )
}
