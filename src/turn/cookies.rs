use cookie::Cookie;
use reqwest::header::{COOKIE, HeaderMap, HeaderValue, SET_COOKIE};

/// The cookies of one episode at one server. They are never shared between episodes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CookieJar(Vec<(String, String)>);

impl CookieJar {
    /// Takes what an answer sets. A cookie of a name that is there replaces it; one that has expired
    /// removes it.
    pub fn take(&mut self, headers: &HeaderMap) {
        for value in headers.get_all(SET_COOKIE) {
            let parsed = value.to_str().ok().map(Cookie::parse);
            let Some(Ok(cookie)) = parsed else { continue };
            self.0.retain(|(name, _)| name != cookie.name());
            let is_expired = cookie.max_age().is_some_and(|age| !age.is_positive());
            if !is_expired {
                let (name, value) = (cookie.name(), cookie.value());
                self.0.push((name.to_owned(), value.to_owned()));
            }
        }
    }

    /// Adds the cookies to a request's headers.
    pub fn add_to(&self, headers: &mut HeaderMap) {
        if self.0.is_empty() {
            return;
        }
        let pairs: Vec<String> = self
            .0
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        if let Ok(mut value) = HeaderValue::try_from(pairs.join("; ")) {
            value.set_sensitive(true);
            headers.insert(COOKIE, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_are_replaced_by_name_and_go_when_they_expire() {
        let set = |jar: &mut CookieJar, values: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(SET_COOKIE, HeaderValue::from_static(value));
            }
            jar.take(&headers);
        };
        let sent = |jar: &CookieJar| {
            let mut headers = HeaderMap::new();
            jar.add_to(&mut headers);
            headers
                .get(COOKIE)
                .map(|value| value.to_str().unwrap().to_owned())
        };
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
    }
}
