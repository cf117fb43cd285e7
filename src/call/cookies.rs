use std::time::{SystemTime, UNIX_EPOCH};

use cookie::Cookie;
use reqwest::header::{COOKIE, HeaderMap, HeaderValue, SET_COOKIE};
use url::Origin;

/// The cookies of one episode, each for the server that set it. They are never shared between episodes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CookieJar(Vec<Kept>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Kept {
    server: Origin,
    name: String,
    value: String,
}

impl CookieJar {
    /// Takes what an answer of a server sets. A cookie of a name that is there replaces it; one that has expired
    /// removes it.
    pub fn take(&mut self, server: &Origin, headers: &HeaderMap) {
        for value in headers.get_all(SET_COOKIE) {
            let parsed = value.to_str().ok().map(Cookie::parse);
            let Some(Ok(cookie)) = parsed else { continue };
            self.0
                .retain(|kept| kept.name != cookie.name() || kept.server != *server);
            if !is_expired(&cookie) {
                self.0.push(Kept {
                    server: server.clone(),
                    name: cookie.name().to_owned(),
                    value: cookie.value().to_owned(),
                });
            }
        }
    }

    /// Adds the cookies of a server to a request's headers.
    pub fn add_to(&self, server: &Origin, headers: &mut HeaderMap) {
        let own = self.0.iter().filter(|kept| kept.server == *server);
        let pairs: Vec<String> = own
            .map(|Kept { name, value, .. }| format!("{name}={value}"))
            .collect();
        if pairs.is_empty() {
            return;
        }
        if let Ok(mut value) = HeaderValue::try_from(pairs.join("; ")) {
            value.set_sensitive(true);
            headers.insert(COOKIE, value);
        }
    }
}

/// `Max-Age` counts before `Expires` (RFC 6265, section 4.1.2.2).
fn is_expired(cookie: &Cookie<'_>) -> bool {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    match (cookie.max_age(), cookie.expires_datetime()) {
        (Some(age), _) => !age.is_positive(),
        (None, Some(until)) => u64::try_from(until.unix_timestamp()).unwrap_or(0) <= now.as_secs(),
        (None, None) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(url: &str) -> Origin {
        url::Url::parse(url).unwrap().origin()
    }

    #[test]
    fn cookies_are_replaced_by_name_and_go_when_they_expire() {
        let set = |jar: &mut CookieJar, values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(SET_COOKIE, HeaderValue::from_static(value));
            }
            jar.take(&origin("http://a:1"), &headers);
        };
        let sent_to = |jar: &CookieJar, server: &str| {
            let mut headers = HeaderMap::new();
            jar.add_to(&origin(server), &mut headers);
            headers
                .get(COOKIE)
                .map(|value| value.to_str().unwrap().to_owned())
        };
        let sent = |jar: &CookieJar| sent_to(jar, "http://a:1");
        let mut jar = CookieJar::default();
        assert_eq!(sent(&jar), None);
        set(
            &mut jar,
            &[
                "session=a=b; path=/; httponly; samesite=lax",
                "n=1",
                "not a cookie",
            ],
        );
        assert_eq!(sent(&jar).unwrap(), "session=a=b; n=1");
        set(&mut jar, &["session=c", "n=1; Max-Age=0"]);
        assert_eq!(sent(&jar).unwrap(), "session=c");
        assert_eq!(sent_to(&jar, "http://b:1"), None);
        let past = ["session=d; expires=Thu, 01 Jan 1970 00:00:00 GMT"];
        set(&mut jar, &past);
        assert_eq!(sent(&jar), None);
    }
}
