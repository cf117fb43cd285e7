//! Tasks that the simulated agent can work on, of some 300 bytes or as many as it takes.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::Context;

/// The row of a task, by its index.
pub fn task_row(task: usize) -> String {
    task_row_of("sim", task, 0)
}

/// The row of a task of an agent, of at least so many bytes.
pub fn task_row_of(agent: &str, task: usize, size: usize) -> String {
    let (apples, pears) = (task % 97 + 2, task % 89 + 3);
    let row = |more: &str| {
        format!(
            "{{\"responses_create_params\":{{\"input\":[{{\"role\":\"user\",\"content\":\"{more}Basket {task} holds \
             {apples} apples and {pears} pears. How many pieces of fruit does it hold? Give the number alone, with no \
             words around it.\"}}],\"temperature\":1.0}},\"expected_answer\":{},\"agent_ref\":{{\"name\":\"{agent}\"}}}}",
            apples + pears
        )
    };
    let short = row("");
    match size.saturating_sub(short.len()) {
        0 => short,
        missing => row(&format!("{:.<missing$}", "Once there was a basket ")),
    }
}

/// Writes an input file of so many tasks.
pub fn write_tasks(path: &Path, num_tasks: usize) -> anyhow::Result<()> {
    write_rows(path, (0..num_tasks).map(task_row))
}

/// Writes an input file of these rows.
pub fn write_rows(path: &Path, rows: impl Iterator<Item = String>) -> anyhow::Result<()> {
    let write = || {
        let mut file = BufWriter::new(File::create(path)?);
        for row in rows {
            writeln!(file, "{row}")?;
        }
        file.flush()
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}
