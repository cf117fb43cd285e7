//! Tasks that the simulated agent can work on, of some 300 bytes.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::Context;

/// The row of a task, by its index.
pub fn task_row(task: usize) -> String {
    let (apples, pears) = (task % 97 + 2, task % 89 + 3);
    format!(
        "{{\"responses_create_params\":{{\"input\":[{{\"role\":\"user\",\"content\":\"Basket {task} holds {apples} \
         apples and {pears} pears. How many pieces of fruit does it hold? Give the number alone, with no words \
         around it.\"}}],\"temperature\":1.0}},\"expected_answer\":{},\"agent_ref\":{{\"name\":\"sim\"}}}}",
        apples + pears
    )
}

/// Writes an input file of so many tasks.
pub fn write_tasks(path: &Path, num_tasks: usize) -> anyhow::Result<()> {
    let write = || {
        let mut file = BufWriter::new(File::create(path)?);
        for task in 0..num_tasks {
            writeln!(file, "{}", task_row(task))?;
        }
        file.flush()
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}
