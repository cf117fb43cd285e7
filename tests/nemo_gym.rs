//! NeMo Gym itself beside rollstream, against the same servers: `tests/nemo_gym/side_by_side.py` runs both and compares
//! all files that they leave.

#![allow(clippy::panic, clippy::unwrap_used)]

use std::process::Command;

/// The program `gym` of a virtual environment with nemo-gym 0.7.0.
const GYM: &str = "ROLLSTREAM_NEMO_GYM";

#[test]
#[ignore = "needs nemo-gym 0.7.0: ROLLSTREAM_NEMO_GYM=VENV/bin/gym"]
fn both_leave_the_same_files() {
    let gym = std::env::var_os(GYM).unwrap_or_else(|| panic!("{GYM} names no program"));
    let folder = tempfile::tempdir().unwrap();
    let script = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/nemo_gym/side_by_side.py"
    );
    let python = std::path::Path::new(&gym).with_file_name("python");
    let ran = Command::new(python)
        .arg(script)
        .arg("--gym")
        .arg(&gym)
        .args(["--rollstream", env!("CARGO_BIN_EXE_rollstream"), "--out"])
        .arg(folder.path())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env_remove(GYM)
        .env_remove("ROLLSTREAM_TEST_FULL")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(
        ran.status.success(),
        "{said}{}",
        String::from_utf8_lossy(&ran.stderr)
    );
    println!("{}", said.lines().last().unwrap_or_default());
}
