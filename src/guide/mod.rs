//! The user guide: one page for each topic of `rollstream help TOPIC`.
//!
//! A page is a Markdown file beside this one and the documentation of a module below. [`page`] is the text of a topic,
//! [`topics`] the list that `rollstream help` ends with. A test runs every command of every page. [`TEMPLATES`] are files
//! for Kubernetes and Slurm, of which a test runs every command.

macro_rules! pages {
    ($($module:ident $topic:literal)*) => {
        $(#[doc = include_str!(concat!($topic, ".md"))]
        pub mod $module {})*

        /// Each topic with the text of its page.
        pub const PAGES: &[(&str, &str)] = &[$(($topic, include_str!(concat!($topic, ".md")))),*];
    };
}

pages! {
    collecting "collecting"
    resuming "resuming"
    agents "agents"
    native "native"
    metrics "metrics"
    viewing "viewing"
    comparing "comparing"
    sql "sql"
    gates "gates"
    object_stores "object-stores"
    cluster "cluster"
    deploying "deploying"
    nemo_gym "nemo-gym"
    operating "operating"
    extending "extending"
}

macro_rules! templates {
    ($($name:literal $file:literal)*) => {
        /// Each file that `rollstream cluster template` prints, by its name.
        pub const TEMPLATES: &[(&str, &str)] = &[$(($name, include_str!(concat!("deploying/", $file)))),*];
    };
}

templates! {
    "kubernetes" "kubernetes.yaml"
    "kubernetes-shards" "kubernetes-shards.yaml"
    "slurm" "slurm.sh"
    "container" "Containerfile"
    "certificates" "certificates.sh"
}

/// Returns the text of a topic's page.
pub fn page(topic: &str) -> Option<&'static str> {
    let (_, text) = PAGES.iter().find(|(name, _)| *name == topic)?;
    Some(text)
}

/// Returns the topics, a line each, with the title of their pages.
pub fn topics() -> String {
    let lines = PAGES.iter().map(|(topic, text)| {
        let title = text.lines().next().unwrap_or_default();
        format!("\n  {topic:<14} {}", title.trim_start_matches("# "))
    });
    format!(
        "Guides, which `rollstream help TOPIC` prints:{}",
        lines.collect::<String>()
    )
}
