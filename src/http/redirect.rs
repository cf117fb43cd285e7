//! What a status 3xx leads to: the same server at another path, or an error that says where.

use hyper::header::LOCATION;
use hyper::{HeaderMap, StatusCode};
use url::Url;

/// Redirects that one request follows at most.
const MOST: usize = 5;

/// Where a request to `from` is to be sent again, after `followed` redirects. Only 307 and 308 say that it is the
/// same request, and only the same server gets it: its headers hold secrets.
///
/// # Errors
/// Why it is not sent again, and what can be done.
pub(super) fn next(
    status: StatusCode,
    headers: &HeaderMap,
    from: &Url,
    followed: usize,
) -> Result<Url, String> {
    let said = format!(
        "HTTP {} {}",
        status.as_u16(),
        status.canonical_reason().unwrap_or_default()
    );
    let said = said.trim_end();
    let target = headers.get(LOCATION).and_then(|value| value.to_str().ok());
    let Some(to) = target.and_then(|target| from.join(target).ok()) else {
        return Err(format!(
            "{said}, which names no other address: check that this one takes POST requests"
        ));
    };
    let shown = without_secrets(&to);
    let remedy = "is the address right? If requests are to go there, set it in its place";
    if !matches!(status.as_u16(), 307 | 308) {
        return Err(format!(
            "{said} to {shown}: only 307 and 308 ask for the same request again; {remedy}"
        ));
    }
    if to.origin() != from.origin() {
        return Err(format!(
            "{said} to {shown}, which is another server and gets no request unasked; {remedy}"
        ));
    }
    if followed >= MOST {
        return Err(format!(
            "{said} to {shown}, after {MOST} redirects; {remedy}"
        ));
    }
    Ok(to)
}

/// Scheme, host, port and path: all else may hold secrets.
fn without_secrets(url: &Url) -> String {
    match url.origin().is_tuple() {
        true => format!("{}{}", url.origin().ascii_serialization(), url.path()),
        false => format!("a {}: address", url.scheme()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn follow(status: u16, target: Option<&str>) -> Result<String, String> {
        let from = Url::parse("http://a:1/run").unwrap();
        let mut headers = HeaderMap::new();
        if let Some(target) = target {
            headers.insert(LOCATION, target.parse().unwrap());
        }
        let status = StatusCode::from_u16(status).unwrap();
        next(status, &headers, &from, 0).map(String::from)
    }

    #[test]
    fn only_the_same_request_to_the_same_server_is_sent_again() {
        for target in ["/run/", "http://a:1/run/", "//a:1/run/"] {
            for status in [307, 308] {
                assert_eq!(follow(status, Some(target)).unwrap(), "http://a:1/run/");
            }
        }
        for (status, target, why) in [
            (302, "/login?token=secret", "to http://a:1/login: only"),
            (301, "/run/", "only 307 and 308"),
            (307, "https://a:1/run", "another server"),
            (
                308,
                "http://me:secret@b:1/x#secret",
                "to http://b:1/x, which",
            ),
            (307, "data:secret", "to a data: address"),
            (307, "http://[", "names no other address"),
        ] {
            let said = follow(status, Some(target)).unwrap_err();
            assert!(said.contains(why) && !said.contains("secret"), "{said}");
        }
        let said = follow(304, None).unwrap_err();
        assert!(said.starts_with("HTTP 304 Not Modified, which"), "{said}");
    }
}
