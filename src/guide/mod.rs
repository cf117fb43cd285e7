//! Guide pages: `rollstream help TOPIC` prints what stands here.

#[doc = include_str!("nemo_gym.md")]
pub mod nemo_gym {}

/// The topics, and the text of each.
const PAGES: &[(&str, &str)] = &[("nemo-gym", include_str!("nemo_gym.md"))];

/// The text of a topic.
pub fn page(topic: &str) -> Option<&'static str> {
    let mut pages = PAGES.iter();
    pages
        .find(|(name, _)| *name == topic)
        .map(|(_, text)| *text)
}
